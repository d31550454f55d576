"""GRPO, RLOO and REINFORCE in one process, with advantages in loops over Python numbers."""

import statistics

import torch
from torch import Tensor

from tests.reference.process import Batch, Process


class GroupProcess(Process):
    """What the three share: one advantage for all tokens of a response."""

    def assessed(self, batch: Batch) -> list[list[float]]:
        """Rewards by prompt, less the KL divergence of each response."""
        kl = self.divergence(batch.old_logp, batch.ref, self.run.kl_estimator or "k1")
        found = []
        for reward, row, mask in zip(batch.rewards.tolist(), kl, batch.mask, strict=True):
            found.append(reward - self.run.kl_coefficient * float(row[mask].sum()))
        r = self.workload.rollouts
        return [found[i : i + r] for i in range(0, len(found), r)]

    def advantages(self, batch: Batch) -> list[float]:
        raise NotImplementedError

    def prepare(self, batch: Batch) -> None:
        per_response = torch.tensor(self.advantages(batch), dtype=self.dtype)
        self.spread = per_response[:, None].expand(batch.mask.shape)

    def losses(self, batch: Batch, rows: Tensor) -> dict[str, tuple[str, Tensor]]:
        return {"policy_loss": (self.actor, self.clipped(batch, rows, self.spread))}


class RLOO(GroupProcess):
    def advantages(self, batch: Batch) -> list[float]:
        out = []
        for group in self.assessed(batch):
            for i, r in enumerate(group):
                out.append(r - statistics.fmean(group[:i] + group[i + 1 :]))
        return out


class REINFORCE(GroupProcess):
    baseline = None

    def advantages(self, batch: Batch) -> list[float]:
        flat = [r for group in self.assessed(batch) for r in group]
        mean, d = statistics.fmean(flat), self.run.baseline_decay
        self.baseline = mean if self.baseline is None else d * self.baseline + (1 - d) * mean
        return [r - self.baseline for r in flat]


class GRPO(GroupProcess):
    def advantages(self, batch: Batch) -> list[float]:
        out, flat, r = [], batch.rewards.tolist(), self.workload.rollouts
        for i in range(0, len(flat), r):
            group = flat[i : i + r]
            scale = statistics.stdev(group) + 1e-6 if self.run.scale_rewards == "group" else 1.0
            out += [(x - statistics.fmean(group)) / scale for x in group]
        return out

    def losses(self, batch: Batch, rows: Tensor) -> dict[str, tuple[str, Tensor]]:
        mask = batch.mask[rows]
        logp = self.log_probabilities(self.actor, self.weights[self.actor], batch.tokens[rows])[mask]
        kl = self.divergence(logp, batch.ref[rows][mask], self.run.kl_estimator or "k3").sum() / mask.sum()
        weighted = self.run.kl_coefficient * kl
        return super().losses(batch, rows) | {"kl": (self.actor, weighted), "_kl_loss": (self.actor, kl)}
