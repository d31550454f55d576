"""Direct preference optimisation (`docs/learning.md`): rows 2i and 2i + 1 are a chosen and a rejected
response to one prompt. The loss is a sum over pairs.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ir_schema.problem import RunConfig
from rpeg_rt.algorithms.batch import AllReduce, Columns, Metrics, TrainBatch
from rpeg_rt.algorithms.metrics import means

TIE = 1e-6
"""Margins up to this count as undecided: half right. A policy that equals its reference has no others, and
which way they round depends on the plan."""


def implicit_rewards(logp: Tensor, logp_ref: Tensor, mask: Tensor, beta: float) -> Tensor:
    """[n/2, 2]: beta * (log-probability - that of the reference) of the chosen and the rejected response."""
    difference = torch.where(mask, logp - logp_ref, 0.0)
    return beta * difference.sum(1).view(-1, 2)


def preferred(margins: Tensor) -> Tensor:
    """[n/2] float64: 1 where the chosen response has the greater implicit reward, 1/2 where undecided."""
    return (margins > TIE).double() + 0.5 * (margins.abs() <= TIE).double()


class DPO:
    """Trains a policy from pairs."""

    def __init__(self, run: RunConfig) -> None:
        self._beta = run.dpo_beta
        self.memory: dict[str, float] = {}

    def prepare(self, rows: Columns, all_reduce: AllReduce) -> tuple[TrainBatch, dict[str, float]]:
        """The step's batch, and what the policy that scored thinks of the pairs. Collective over the
        replicas."""
        if rows.logp_ref is None:
            raise ValueError("DPO needs the log-probabilities of a reference")
        mask = rows.mask
        batch = TrainBatch(
            prompts=rows.prompts, tokens=rows.tokens, mask=mask, logp_ref=rows.logp_ref, paired=True
        )
        pairs = batch.terms
        sums = {
            "prompt_tokens": rows.prompt_tokens.sum(dtype=torch.float64) / 2,
            "response_tokens": mask.sum(dtype=torch.float64) / 2,
        }
        if rows.logp is not None:
            rewards = implicit_rewards(rows.logp, rows.logp_ref, mask, self._beta)
            margins = rewards[:, 0] - rewards[:, 1]
            sums |= {
                "chosen_reward": rewards[:, 0].sum(),
                "rejected_reward": rewards[:, 1].sum(),
                "margin": margins.sum(),
                "accuracy": preferred(margins).sum(),
            }
        return batch, means(sums, pairs, all_reduce)

    def loss(self, logp: Tensor | None, values: Tensor | None, part: TrainBatch) -> tuple[Tensor, Metrics]:
        """Sum over pairs of -log sigmoid(implicit reward of the chosen - that of the rejected response),
        under the log-probabilities [n, L_r] just computed. There are no `values`."""
        if logp is None or part.logp_ref is None:
            raise ValueError("the loss needs the log-probabilities of policy and reference")
        rewards = implicit_rewards(logp, part.logp_ref, part.mask, self._beta)
        loss = -logsigmoid(rewards[:, 0] - rewards[:, 1]).sum()
        return loss, {"preference_loss": loss.detach().double()}
