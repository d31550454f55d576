"""GRPO, RLOO and REINFORCE: one advantage per response, from sequence rewards alone (`docs/learning.md`).

A replica holds all R responses to each of its prompts, in consecutive rows, so that what is formed within a
group needs no other replica.
"""

import torch
from torch import Tensor

from ir_schema.problem import RunConfig
from rpeg_rt.algorithms.batch import AllReduce, Columns, Metrics, TrainBatch
from rpeg_rt.algorithms.metrics import means, response_metrics
from rpeg_rt.algorithms.policy import Estimator, kl_estimate, policy_loss

SCALE_EPSILON = 1e-6


def group_relative(rewards: Tensor, rollouts: int, *, scale: bool) -> Tensor:
    """[n] GRPO: (r - mean of the group) / (its standard deviation + 1e-6), the deviation with R - 1 in the
    denominator; without `scale` the difference alone."""
    groups = rewards.view(-1, rollouts)
    centred = groups - groups.mean(1, keepdim=True)
    if scale:
        centred = centred / (groups.std(1, keepdim=True) + SCALE_EPSILON)
    return centred.flatten()


def leave_one_out(rewards: Tensor, rollouts: int) -> Tensor:
    """[n] RLOO: r - mean of the group's other rewards."""
    groups = rewards.view(-1, rollouts)
    others = (groups.sum(1, keepdim=True) - groups) / (rollouts - 1)
    return (groups - others).flatten()


class Baseline:
    """REINFORCE: the running mean of the steps' mean rewards, b = decay * b + (1 - decay) * mean, which
    begins as the first step's mean. `memory` holds it as `baseline`, once there is one."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.memory: dict[str, float] = {}

    def update(self, mean: float) -> float:
        """Take one more step's mean reward; the new value."""
        before = self.memory.get("baseline", mean)
        self.memory["baseline"] = self._decay * before + (1 - self._decay) * mean
        return self.memory["baseline"]


class PolicyGradient:
    """Trains a policy by one of the three. REINFORCE keeps its baseline here from step to step."""

    def __init__(self, run: RunConfig, rollouts: int) -> None:
        self._run, self._rollouts = run, rollouts
        self._baseline = Baseline(run.baseline_decay)
        self.memory = self._baseline.memory
        self._kl_in_loss = run.algorithm == "grpo"
        self._estimator: Estimator = run.kl_estimator or ("k3" if self._kl_in_loss else "k1")

    def prepare(self, rows: Columns, all_reduce: AllReduce) -> tuple[TrainBatch, dict[str, float]]:
        """The step's batch and metrics. Collective over the replicas."""
        if rows.rewards is None or rows.logp is None:
            raise ValueError("rewards and the log-probabilities of the version that generated are needed")
        if len(rows.prompts) % self._rollouts or not bool(
            (rows.prompts.view(-1, self._rollouts) == rows.prompts[:: self._rollouts, None]).all()
        ):
            raise ValueError("the responses to a prompt are not together")
        mask, rewards = rows.mask, rows.rewards.to(rows.logp.dtype)
        given = rewards
        if rows.logp_ref is not None and not self._kl_in_loss:
            penalty = kl_estimate(rows.logp, rows.logp_ref, mask, self._estimator).sum(1)
            given = rewards - self._run.kl_coefficient * penalty
        advantages, told = self._advantages(given, all_reduce)
        batch = TrainBatch(
            prompts=rows.prompts,
            tokens=rows.tokens,
            mask=mask,
            logp=rows.logp,
            logp_ref=rows.logp_ref,
            advantages=torch.where(mask, advantages[:, None], 0.0),
        )
        return batch, told | response_metrics(rows, rewards, {}, all_reduce)

    def _advantages(self, rewards: Tensor, all_reduce: AllReduce) -> tuple[Tensor, dict[str, float]]:
        """[n] advantages, and what there is to tell about them."""
        if self._run.algorithm == "grpo":
            scale = self._run.scale_rewards == "group"
            return group_relative(rewards, self._rollouts, scale=scale), {}
        if self._run.algorithm == "rloo":
            return leave_one_out(rewards, self._rollouts), {}
        count = torch.tensor(float(len(rewards)), dtype=torch.float64, device=rewards.device)
        mean = means({"mean": rewards.sum(dtype=torch.float64)}, count, all_reduce)["mean"]
        baseline = self._baseline.update(mean)
        return rewards - baseline, {"baseline": baseline}

    def loss(self, logp: Tensor | None, values: Tensor | None, part: TrainBatch) -> tuple[Tensor, Metrics]:
        """Policy loss of the rows of `part` under the log-probabilities [n, L_r] just computed, and for GRPO
        the KL divergence to the reference. There are no `values`."""
        if logp is None or part.logp is None or part.advantages is None:
            raise ValueError("the policy loss needs the log-probabilities of the version that generated")
        total, sums = policy_loss(logp, part.logp, part.advantages, part.mask, self._run.clip_ratio)
        if self._kl_in_loss and part.logp_ref is not None:
            kl = kl_estimate(logp, part.logp_ref, part.mask, self._estimator).sum()
            total = total + self._run.kl_coefficient * kl
            sums = sums | {"kl_loss": kl.detach().double()}
        return total, sums
