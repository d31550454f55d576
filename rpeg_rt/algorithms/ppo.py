"""Proximal policy optimisation, formula by formula as in `docs/learning.md`.

Shapes: n sequences of at most L_r response tokens; `mask` [n, L_r] bool marks response tokens. Every result
is 0 outside the mask. Losses are sums over tokens.
"""

import torch
from torch import Tensor

from ir_schema.problem import RunConfig
from rpeg_rt.algorithms.batch import AllReduce, Columns, Metrics, TrainBatch
from rpeg_rt.algorithms.metrics import response_metrics
from rpeg_rt.algorithms.policy import Estimator, kl_estimate, policy_loss

WHITEN_EPSILON = 1e-8


def last_token(mask: Tensor) -> Tensor:
    """[n, L_r] bool: the last response token of each row; a row without tokens has none."""
    return mask & (mask.flip(1).cumsum(1).flip(1) == 1)


def token_rewards(
    rewards: Tensor,
    logp: Tensor | None,
    logp_ref: Tensor | None,
    mask: Tensor,
    kl_coefficient: float,
    estimator: Estimator = "k1",
) -> Tensor:
    """[n, L_r]: -kl_coefficient * KL estimate per token, plus the sequence reward [n] at the last.

    Without either log-probability there is no KL term: a graph may have no reference, and the PPO preset's
    critic does not read the behaviour's log-probabilities.
    """
    sequence = torch.where(last_token(mask), rewards[:, None], 0.0)
    if logp is None or logp_ref is None:
        return sequence
    return sequence - kl_coefficient * kl_estimate(logp, logp_ref, mask, estimator)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, discount: float, gae_lambda: float) -> Tensor:
    """[n, L_r] advantages: A_t = sum_k (discount*lambda)^k delta_{t+k} with
    delta_t = r_t + discount*V_{t+1} - V_t.

    The value after the last token is 0, truncated or not.
    """
    values = torch.where(mask, values, 0.0)
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    delta = torch.where(mask, rewards + discount * following - values, 0.0)
    advantages = torch.zeros_like(delta)
    running = torch.zeros_like(delta[:, 0])
    for t in range(delta.shape[1] - 1, -1, -1):
        running = delta[:, t] + discount * gae_lambda * running
        advantages[:, t] = running
    return torch.where(mask, advantages, 0.0)


def whiten(advantages: Tensor, mask: Tensor, all_reduce: AllReduce) -> Tensor:
    """(A - mean) / sqrt(variance + 1e-8), moments over all response tokens of all replicas, in float64."""
    wide = torch.where(mask, advantages.double(), 0.0)
    total, count = all_reduce(torch.stack([wide.sum(), mask.sum(dtype=torch.float64)]))
    centred = torch.where(mask, wide - total / count.clamp(min=1), 0.0)
    variance = all_reduce(centred.square().sum()) / count.clamp(min=1)
    return (centred * torch.rsqrt(variance + WHITEN_EPSILON)).to(advantages.dtype)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, value_clip: float
) -> tuple[Tensor, Metrics]:
    """Sum over tokens of 1/2 max((V - ret)^2, (clip(V, V_old +- value_clip) - ret)^2)."""
    clipped = torch.minimum(torch.maximum(values, old_values - value_clip), old_values + value_clip)
    squared = torch.maximum((values - returns).square(), (clipped - returns).square())
    loss = 0.5 * torch.where(mask, squared, 0.0).sum()
    return loss, {"value_loss": loss.detach().double()}


class PPO:
    """Trains a policy, a value function, or both at once."""

    def __init__(self, run: RunConfig, *, policy: bool, value: bool) -> None:
        self._run, self._policy, self._value = run, policy, value
        self.memory: dict[str, float] = {}

    def prepare(self, rows: Columns, all_reduce: AllReduce) -> tuple[TrainBatch, dict[str, float]]:
        """The step's batch and metrics. Collective over the replicas."""
        if rows.rewards is None or rows.values is None:
            raise ValueError("PPO needs rewards and values")
        run, mask = self._run, rows.mask
        rewards = rows.rewards.to(rows.values.dtype)
        given = token_rewards(
            rewards, rows.logp, rows.logp_ref, mask, run.kl_coefficient, run.kl_estimator or "k1"
        )
        advantages = gae(given, rows.values, mask, run.discount, run.gae_lambda)
        batch = TrainBatch(
            prompts=rows.prompts,
            tokens=rows.tokens,
            mask=mask,
            logp=rows.logp,
            values=rows.values,
            advantages=whiten(advantages, mask, all_reduce),
            returns=torch.where(mask, advantages + rows.values, 0.0),
        )
        told = {"value": rows.values, "return": advantages + rows.values}
        return batch, response_metrics(rows, rewards, told, all_reduce)

    def loss(self, logp: Tensor | None, values: Tensor | None, part: TrainBatch) -> tuple[Tensor, Metrics]:
        """Policy loss and value loss, as far as they are trained, of the rows of `part` under the
        log-probabilities and values [n, L_r] just computed."""
        total: Tensor | None = None
        sums: Metrics = {}
        if self._policy:
            if logp is None or part.logp is None or part.advantages is None:
                raise ValueError("the policy loss needs the log-probabilities of the version that generated")
            total, sums = policy_loss(logp, part.logp, part.advantages, part.mask, self._run.clip_ratio)
        if self._value:
            if values is None or part.values is None or part.returns is None:
                raise ValueError("the value loss needs the values that were predicted before")
            loss, more = value_loss(values, part.values, part.returns, part.mask, self._run.value_clip)
            total, sums = loss if total is None else total + loss, sums | more
        if total is None:
            raise ValueError("neither a policy nor a value function is trained")
        return total, sums
