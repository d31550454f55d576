"""A run as one process would write it in plain torch: the yardstick of plan independence.

It shares with the runtime only what defines a run (sampling, initial weights, order and tokens of the data)
and repeats everything else in its own words: the model, the losses, the optimizer loop.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ir_schema.problem import Optimizer, Problem
from rpeg_rt.data.prompts import Prompt, load_prompts, token_matrix
from rpeg_rt.data.tokenizers import load_tokenizer
from rpeg_rt.sampling import derive_seed, sample, uniforms
from tests.reference.model import Weights, hidden_states, initial_weights, logits

Verify = Callable[[str, str, dict], float]


@dataclass
class Step:
    """What one RL step produced. `tokens` is Y [B*R, L_p + L_r]; `rewards` [B*R], of pairs none."""

    tokens: Tensor
    rewards: Tensor
    metrics: dict[str, float]


@dataclass
class Batch:
    """The rows of a step: n sequences; the rest [n, L_r] or, of rewards, [n]."""

    tokens: Tensor
    mask: Tensor
    old_logp: Tensor
    ref: Tensor
    rewards: Tensor
    values: Tensor


class Process:
    """The state of a run; `train` advances it. `behind`: how many versions serving lags, by model."""

    def __init__(
        self,
        problem: Problem,
        directory: Path,
        verify: Verify | None,
        behind: Mapping[str, int] | None = None,
    ) -> None:
        run, graph, models = problem.run, problem.graph, problem.models
        assert run is not None
        assert run.prompts is not None
        self.problem, self.run, self.workload, self.specs = problem, run, problem.workload, models
        self.verify, self.directory = verify, directory
        self.behind = graph.staleness if behind is None else behind
        training = [v.model for v in graph.vertices if v.role == "training"]
        scoring = [v.model for v in graph.vertices if v.role == "inference" and v.model is not None]
        frozen = [m for m in scoring if m not in graph.trainable]
        self.actor = next(m for m in training if models[m].has_lm_head)
        self.critic = next((m for m in training if models[m].has_scalar_head), None)
        self.reference = next(m for m in frozen if models[m].has_lm_head)
        self.judge = next((m for m in frozen if models[m].has_scalar_head), None)
        self.dtype = getattr(torch, run.precision)
        self.tokenizer = load_tokenizer(run.tokenizer, directory)
        self.prompts = self.load(run.prompts)
        self.weights = {m: initial_weights(models[m], m, run.seed, self.dtype) for m in {*training, *scoring}}
        self.history = {m: [] for m in graph.trainable}
        self.optimizers = {m: self._optimizer(m) for m in graph.trainable}
        self.updates = 0

    def load(self, file: str):
        return load_prompts(
            self.directory / file,
            self.tokenizer,
            prompt_length=self.workload.prompt_length,
            field=self.run.prompt_field,
            long_prompts=self.run.long_prompts,
            seed=self.run.seed,
        )

    def settings(self, model: str) -> Optimizer:
        return self.run.optimizers.get(model, self.run.optimizer)

    def _optimizer(self, model: str) -> torch.optim.AdamW:
        o = self.settings(model)
        return torch.optim.AdamW(
            [t.requires_grad_() for t in self.weights[model].values()],
            lr=o.learning_rate,
            betas=(o.beta1, o.beta2),
            eps=o.epsilon,
            weight_decay=o.weight_decay,
        )

    def remember(self) -> None:
        """Keep the weights that a step begins with as one more version."""
        for model, versions in self.history.items():
            versions.append({n: t.detach().clone() for n, t in self.weights[model].items()})

    def served(self, model: str) -> Weights:
        """The version that serving uses in the step that was begun last."""
        if model not in self.history:
            return self.weights[model]
        versions = self.history[model]
        return versions[max(0, len(versions) - 1 - self.behind.get(model, 0))]

    # What models compute -----------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self, weights: Weights, prompts: list[Prompt], step: int, seed: int, rollouts: int
    ) -> tuple[Tensor, Tensor]:
        """Y of `rollouts` responses to each prompt, and the log-probabilities of its response tokens."""
        w, spec = self.workload, self.specs[self.actor]
        start = torch.from_numpy(token_matrix(prompts, w.prompt_length)).repeat_interleave(rollouts, 0)
        n = len(start)
        tokens = torch.cat([start, torch.full((n, w.response_length), -1, dtype=torch.int32)], 1)
        logp = torch.zeros(n, w.response_length, dtype=self.dtype)
        index = np.arange(n)
        alive = torch.ones(n, dtype=torch.bool)
        for t in range(w.response_length):
            here = w.prompt_length + t
            hidden = hidden_states(spec, weights, tokens[:, :here])[:, -1]
            u = torch.from_numpy(uniforms(seed, step, index // rollouts, index % rollouts, t))
            chosen, lp = sample(logits(spec, weights, hidden), u, self.run.temperature, self.run.top_p)
            tokens[:, here] = torch.where(alive, chosen.int(), -1)
            logp[:, t] = torch.where(alive, lp.to(self.dtype), 0.0)
            alive = alive & (chosen != self.tokenizer.eos)
            if not alive.any():
                break
        return tokens, logp

    def log_probabilities(self, model: str, weights: Weights, tokens: Tensor) -> Tensor:
        """[n, L_r], 0 beyond the end."""
        spec, lp = self.specs[model], self.workload.prompt_length
        hidden = hidden_states(spec, weights, tokens)[:, lp - 1 : -1]
        response = tokens[:, lp:]
        distribution = torch.log_softmax(logits(spec, weights, hidden) / self.run.temperature, -1)
        chosen = distribution.gather(-1, response.clamp(min=0).long()[..., None])[..., 0]
        return torch.where(response >= 0, chosen, 0.0)

    @torch.no_grad()
    def entropy(self, tokens: Tensor, mask: Tensor) -> float:
        """Mean over response tokens of that of the newest policy's distribution."""
        weights, spec = self.weights[self.actor], self.specs[self.actor]
        hidden = hidden_states(spec, weights, tokens)[:, self.workload.prompt_length - 1 : -1][mask]
        p = (logits(spec, weights, hidden) / self.run.temperature).softmax(-1)
        return float(-(p * p.log()).sum(-1).mean())

    def values(self, model: str, weights: Weights, tokens: Tensor) -> Tensor:
        """[n, L_r] at the positions that predict the response tokens, 0 beyond the end."""
        lp = self.workload.prompt_length
        hidden = hidden_states(self.specs[model], weights, tokens)[:, lp - 1 : -1]
        return torch.where(tokens[:, lp:] >= 0, hidden @ weights["value_head.weight"][0], 0.0)

    @torch.no_grad()
    def score(self, prompts: list[Prompt], tokens: Tensor) -> Tensor:
        """[n] rewards of equally many responses to each prompt: the verifier's, or the reward model's at each
        sequence's last token."""
        if self.judge is not None:
            weights = self.weights[self.judge]
            hidden = hidden_states(self.specs[self.judge], weights, tokens)
            last = torch.arange(tokens.shape[1]).expand(tokens.shape).masked_fill(tokens < 0, -1).amax(1)
            return hidden[torch.arange(len(tokens)), last] @ weights["value_head.weight"][0]
        out = []
        for i, row in enumerate(tokens[:, self.workload.prompt_length :].tolist()):
            p = prompts[i * len(prompts) // len(tokens)]
            response = [t for t in row if t >= 0 and t != self.tokenizer.eos]
            out.append(float(self.verify(p.text, self.tokenizer.decode(response), p.record)))
        return torch.tensor(out, dtype=self.dtype)

    def examine(self, prompts: list[Prompt]) -> Tensor:
        """Rewards of one response of the newest policy to each held-out prompt."""
        seed = derive_seed(self.run.seed, "evaluation")
        tokens, _ = self.generate(self.weights[self.actor], prompts, 0, seed, 1)
        return self.score(prompts, tokens)

    # Learning ----------------------------------------------------------------------------------------------

    def step(self, k: int) -> Step:
        """Generate, assess, train."""
        self.remember()
        prompts = self.prompts.take(k, self.workload.prompts)
        served = self.served(self.actor)
        tokens, old_logp = self.generate(served, prompts, k, self.run.seed, self.workload.rollouts)
        with torch.no_grad():
            ref = self.log_probabilities(self.reference, self.weights[self.reference], tokens)
            values = torch.zeros_like(ref)
            if self.critic is not None:
                values = self.values(self.critic, self.served(self.critic), tokens)
        mask = tokens[:, self.workload.prompt_length :] >= 0
        batch = Batch(tokens, mask, old_logp, ref, self.score(prompts, tokens), values)
        metrics = {
            "reward": float(batch.rewards.mean()),
            "kl_to_reference": float((old_logp - ref)[mask].mean()),
            "response_tokens": float(mask.sum(1).double().mean()),
            "truncated": float((tokens != self.tokenizer.eos).all(1).double().mean()),
        }
        self.prepare(batch)
        return Step(tokens, batch.rewards, metrics | self.optimise(batch))

    def prepare(self, batch: Batch) -> None:
        """What a step needs before its first update."""
        raise NotImplementedError

    def losses(self, batch: Batch, rows: Tensor) -> dict[str, tuple[str, Tensor]]:
        """By the name of each loss of a minibatch's `rows`, the model that it trains and its value."""
        raise NotImplementedError

    def optimise(self, batch: Batch) -> dict[str, float]:
        """All updates of a step; the mean over them of the policy's entropy and of each loss."""
        prompt_of = torch.arange(len(batch.tokens)) // self.workload.rollouts
        told: dict[str, list[float]] = {}
        for _ in range(self.workload.epochs):
            for m in range(self.workload.minibatches):
                rows = (prompt_of % self.workload.minibatches == m).nonzero()[:, 0]
                found = self.losses(batch, rows)
                told.setdefault("entropy", []).append(self.entropy(batch.tokens[rows], batch.mask[rows]))
                for name, (_, loss) in found.items():
                    told.setdefault(name, []).append(float(loss.detach()))
                self.update([pair for name, pair in found.items() if not name.startswith("_")])
        return {name: sum(values) / len(values) for name, values in told.items()}

    def update(self, losses: list[tuple[str, Tensor]]) -> None:
        """One step of every optimizer, on the sum of its model's losses."""
        self.updates += 1
        for model in self.optimizers:
            mine = [loss for m, loss in losses if m == model]
            settings, optimizer = self.settings(model), self.optimizers[model]
            optimizer.zero_grad()
            torch.stack(mine).sum().backward()
            torch.nn.utils.clip_grad_norm_(self.weights[model].values(), settings.max_gradient_norm)
            warm = min(1.0, self.updates / settings.warmup_steps) if settings.warmup_steps else 1.0
            optimizer.param_groups[0]["lr"] = settings.learning_rate * warm
            optimizer.step()

    def clipped(self, batch: Batch, rows: Tensor, advantages: Tensor) -> Tensor:
        """Mean over the rows' response tokens of the clipped policy loss."""
        mask = batch.mask[rows]
        logp = self.log_probabilities(self.actor, self.weights[self.actor], batch.tokens[rows])
        ratio = (logp - batch.old_logp[rows])[mask].exp()
        a, c = advantages[rows][mask], self.run.clip_ratio
        return -torch.minimum(ratio * a, ratio.clamp(1 - c, 1 + c) * a).sum() / mask.sum()

    def divergence(self, logp: Tensor, ref: Tensor, estimator: str) -> Tensor:
        """Schulman's k1, k2 and k3 of each element."""
        log_ratio = ref - logp
        return {"k1": -log_ratio, "k2": log_ratio**2 / 2, "k3": torch.expm1(log_ratio) - log_ratio}[estimator]

    def train(self, steps: int) -> Iterator[Step]:
        """The run's steps."""
        for k in range(steps):
            yield self.step(k)
