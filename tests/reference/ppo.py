"""PPO in one process, with separate models or one backbone for policy and values."""

import torch
from torch import Tensor

from tests.reference.process import Batch, Process


class PPO(Process):
    """See `docs/learning.md`."""

    def prepare(self, batch: Batch) -> None:
        graph = self.problem.graph
        generation = next(v for v in graph.vertices if v.role == "generation")
        assessed = {e.container for e in graph.data_edges if e.source == generation.name}
        behaviour = {c for c in generation.writes if c not in assessed}
        critic = next(v for v in graph.vertices if v.role == "training" and v.model == self.critic)
        kl = self.divergence(batch.old_logp, batch.ref, self.run.kl_estimator or "k1")
        kl = torch.where(batch.mask, kl, 0.0)
        advantages = self.gae(batch, kl)
        seen = advantages if behaviour & set(critic.reads) else self.gae(batch, 0 * kl)
        self.returns = seen + batch.values
        flat = advantages[batch.mask]
        self.white = torch.zeros_like(advantages)
        self.white[batch.mask] = (flat - flat.mean()) / (flat.var(correction=0) + 1e-8).sqrt()

    def gae(self, batch: Batch, kl: Tensor) -> Tensor:
        r, values, lengths = -self.run.kl_coefficient * kl, batch.values, batch.mask.sum(1)
        present = lengths > 0
        r[present, lengths[present] - 1] += batch.rewards[present]
        after = torch.zeros(len(r), dtype=self.dtype)
        running = torch.zeros(len(r), dtype=self.dtype)
        out = torch.zeros_like(r)
        for t in reversed(range(r.shape[1])):
            inside = t < lengths
            delta = r[:, t] + self.run.discount * after - values[:, t]
            running = torch.where(inside, delta + self.run.discount * self.run.gae_lambda * running, 0.0)
            after = torch.where(inside, values[:, t], 0.0)
            out[:, t] = running
        return out

    def losses(self, batch: Batch, rows: Tensor) -> dict[str, tuple[str, Tensor]]:
        mask, v = batch.mask[rows], self.run.value_clip
        new = self.values(self.critic, self.weights[self.critic], batch.tokens[rows])[mask]
        old, target = batch.values[rows][mask], self.returns[rows][mask]
        clipped = old + (new - old).clamp(-v, v)
        value = 0.5 * torch.maximum((new - target) ** 2, (clipped - target) ** 2).sum() / mask.sum()
        policy = self.clipped(batch, rows, self.white)
        return {"policy_loss": (self.actor, policy), "value_loss": (self.critic, value)}
