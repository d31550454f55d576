"""DPO in one process, pair by pair."""

import torch
from torch import Tensor

from rpeg_rt.data.pairs import load_pairs, pair_matrix
from rpeg_rt.data.prompts import Prompt
from tests.reference.process import Batch, Process, Step


class DPO(Process):
    """See `docs/learning.md`."""

    def load(self, file: str):
        return load_pairs(
            self.directory / file,
            self.tokenizer,
            prompt_length=self.workload.prompt_length,
            response_length=self.workload.response_length,
            field=self.run.prompt_field,
            long_prompts=self.run.long_prompts,
            long_responses=self.run.long_responses,
            seed=self.run.seed,
        )

    def rows(self, pairs: list[Prompt]) -> Tensor:
        """[2n, L_p + L_r]."""
        w = self.workload
        return torch.from_numpy(pair_matrix(pairs, w.prompt_length, w.response_length))

    def margins(self, logp: Tensor, ref: Tensor) -> Tensor:
        """[n] beta * ((chosen - its reference) - (rejected - its reference))."""
        return torch.stack(
            [
                self.run.dpo_beta * ((logp[i].sum() - ref[i].sum()) - (logp[i + 1].sum() - ref[i + 1].sum()))
                for i in range(0, len(logp), 2)
            ]
        )

    @torch.no_grad()
    def examine(self, prompts: list[Prompt]) -> Tensor:
        """Margins of held-out pairs."""
        tokens = self.rows(prompts)
        logp = self.log_probabilities(self.actor, self.weights[self.actor], tokens)
        return self.margins(
            logp, self.log_probabilities(self.reference, self.weights[self.reference], tokens)
        )

    def step(self, k: int) -> Step:
        self.remember()
        tokens = self.rows(self.prompts.take(k, self.workload.prompts))
        with torch.no_grad():
            ref = self.log_probabilities(self.reference, self.weights[self.reference], tokens)
            before = self.log_probabilities(self.actor, self.served(self.actor), tokens)
        nothing = torch.zeros(len(tokens), dtype=self.dtype)
        mask = tokens[:, self.workload.prompt_length :] >= 0
        margins = self.margins(before, ref)
        metrics = {
            "margin": float(margins.mean()),
            "accuracy": sum(0.5 if abs(m) <= 1e-6 else float(m > 0) for m in margins.tolist()) / len(margins),
            "chosen_reward": self.run.dpo_beta * float((before - ref)[::2].sum()) / len(margins),
            "response_tokens": float(mask.sum(1).double().mean()),
        }
        return Step(
            tokens,
            nothing,
            metrics | self.optimise(Batch(tokens, mask, before, ref, nothing, torch.zeros_like(ref))),
        )

    def losses(self, batch: Batch, rows: Tensor) -> dict[str, tuple[str, Tensor]]:
        logp = self.log_probabilities(self.actor, self.weights[self.actor], batch.tokens[rows])
        margins = self.margins(logp, batch.ref[rows])
        loss = torch.log1p(torch.exp(-margins)).mean()
        return {"preference_loss": (self.actor, loss)}
