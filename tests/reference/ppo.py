"""Synchronous PPO as one process would write it: the yardstick of plan independence.

It shares with the runtime only what defines a run (sampling, initial weights, prompt order) and repeats
everything else in its own words: the model, the losses, the optimizer loop.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ir_schema.model import ModelSpec
from ir_schema.problem import Optimizer, Problem, RunConfig, Workload
from rpeg_rt.data.prompts import Prompt, PromptSet, load_prompts, token_matrix
from rpeg_rt.data.tokenizers import Tokenizer, load_tokenizer
from rpeg_rt.sampling import derive_seed, sample, uniforms
from tests.reference.model import Weights, hidden_states, initial_weights, logits

Verify = Callable[[str, str, dict], float]


@dataclass
class Step:
    """What one RL step produced. `tokens` is Y [B*R, L_p + L_r]."""

    tokens: Tensor
    rewards: Tensor
    metrics: dict[str, float]


@dataclass
class PPO:
    """The state of a run; `train` advances it."""

    run: RunConfig
    workload: Workload
    specs: dict[str, ModelSpec]  # "actor", "reference", "critic"
    names: dict[str, str]  # the same keys to model names
    critic_sees_kl: bool
    prompts: PromptSet
    tokenizer: Tokenizer
    verify: Verify
    weights: dict[str, Weights] = field(init=False)
    optimizers: dict[str, torch.optim.AdamW] = field(init=False)
    updates: int = 0

    def __post_init__(self) -> None:
        self.dtype = getattr(torch, self.run.precision)
        self.weights = {
            key: initial_weights(spec, self.names[key], self.run.seed, self.dtype)
            for key, spec in self.specs.items()
        }
        self.optimizers = {key: self._optimizer(key) for key in ("actor", "critic")}

    def _settings(self, key: str) -> Optimizer:
        return self.run.optimizers.get(self.names[key], self.run.optimizer)

    def _optimizer(self, key: str) -> torch.optim.AdamW:
        o = self._settings(key)
        parameters = [t.requires_grad_() for t in self.weights[key].values()]
        return torch.optim.AdamW(
            parameters,
            lr=o.learning_rate,
            betas=(o.beta1, o.beta2),
            eps=o.epsilon,
            weight_decay=o.weight_decay,
        )

    @torch.no_grad()
    def generate(self, prompts: list[Prompt], step: int, seed: int, rollouts: int) -> tuple[Tensor, Tensor]:
        """Y of `rollouts` responses to each prompt, and the log-probabilities of its response tokens."""
        w = self.workload
        start = torch.from_numpy(token_matrix(prompts, w.prompt_length)).repeat_interleave(rollouts, 0)
        n = len(start)
        tokens = torch.cat([start, torch.full((n, w.response_length), -1, dtype=torch.int32)], 1)
        logp = torch.zeros(n, w.response_length, dtype=self.dtype)
        index = np.arange(n)
        alive = torch.ones(n, dtype=torch.bool)
        for t in range(w.response_length):
            here = w.prompt_length + t
            hidden = hidden_states(self.specs["actor"], self.weights["actor"], tokens[:, :here])[:, -1]
            u = torch.from_numpy(uniforms(seed, step, index // rollouts, index % rollouts, t))
            chosen, lp = sample(
                logits(self.specs["actor"], self.weights["actor"], hidden),
                u,
                self.run.temperature,
                self.run.top_p,
            )
            tokens[:, here] = torch.where(alive, chosen.int(), -1)
            logp[:, t] = torch.where(alive, lp.to(self.dtype), 0.0)
            alive = alive & (chosen != self.tokenizer.eos)
            if not alive.any():
                break
        return tokens, logp

    def score(self, prompts: list[Prompt], tokens: Tensor) -> Tensor:
        """The verifier's rewards of equally many responses to each prompt."""
        out = []
        for i, row in enumerate(tokens[:, self.workload.prompt_length :].tolist()):
            p = prompts[i * len(prompts) // len(tokens)]
            response = [t for t in row if t >= 0 and t != self.tokenizer.eos]
            out.append(float(self.verify(p.text, self.tokenizer.decode(response), p.record)))
        return torch.tensor(out, dtype=self.dtype)

    def examine(self, prompts: list[Prompt]) -> Tensor:
        """Rewards of one response to each held-out prompt."""
        tokens, _ = self.generate(prompts, 0, derive_seed(self.run.seed, "evaluation"), 1)
        return self.score(prompts, tokens)

    def outputs(self, key: str, tokens: Tensor) -> Tensor:
        """[n, L_r] log-probabilities (language model head) or values (scalar head), 0 beyond the end."""
        spec, w, lp = self.specs[key], self.weights[key], self.workload.prompt_length
        hidden = hidden_states(spec, w, tokens)[:, lp - 1 : -1]
        response = tokens[:, lp:]
        if spec.has_scalar_head:
            out = hidden @ w["value_head.weight"][0]
        else:
            distribution = torch.log_softmax(logits(spec, w, hidden) / self.run.temperature, -1)
            out = distribution.gather(-1, response.clamp(min=0).long()[..., None])[..., 0]
        return torch.where(response >= 0, out, 0.0)

    def step(self, k: int) -> Step:
        """Generate, assess, train."""
        prompts = self.prompts.take(k, self.workload.prompts)
        tokens, old_logp = self.generate(prompts, k, self.run.seed, self.workload.rollouts)
        rewards = self.score(prompts, tokens)
        with torch.no_grad():
            ref, values = self.outputs("reference", tokens), self.outputs("critic", tokens)
        mask = tokens[:, self.workload.prompt_length :] >= 0
        lengths = mask.sum(1)
        kl = old_logp - ref
        advantages = self._advantages(rewards, kl, values, lengths)
        seen = advantages if self.critic_sees_kl else self._advantages(rewards, 0 * kl, values, lengths)
        returns = seen + values
        flat = advantages[mask]
        white = torch.zeros_like(advantages)
        white[mask] = (flat - flat.mean()) / (flat.var(correction=0) + 1e-8).sqrt()
        metrics = {
            "reward": float(rewards.mean()),
            "kl_to_reference": float(kl[mask].mean()),
            "entropy": -float(old_logp[mask].mean()),
            "response_tokens": float(lengths.double().mean()),
            "truncated": float((tokens != self.tokenizer.eos).all(1).double().mean()),
        }
        prompt_of = torch.arange(len(tokens)) // self.workload.rollouts
        for _ in range(self.workload.epochs):
            for m in range(self.workload.minibatches):
                rows = (prompt_of % self.workload.minibatches == m).nonzero()[:, 0]
                metrics |= self._update(rows, tokens, mask, old_logp, white, values, returns)
        return Step(tokens, rewards, metrics)

    def _advantages(self, rewards: Tensor, kl: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        r = -self.run.kl_coefficient * kl
        present = lengths > 0
        r[present, lengths[present] - 1] += rewards[present]
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

    def _update(self, rows, tokens, mask, old_logp, advantages, old_values, returns) -> dict[str, float]:
        mask, count = mask[rows], mask[rows].sum()
        c, v = self.run.clip_ratio, self.run.value_clip
        ratio = (self.outputs("actor", tokens[rows]) - old_logp[rows])[mask].exp()
        a = advantages[rows][mask]
        policy = -torch.minimum(ratio * a, ratio.clamp(1 - c, 1 + c) * a).sum() / count
        new, old, target = (
            self.outputs("critic", tokens[rows])[mask],
            old_values[rows][mask],
            returns[rows][mask],
        )
        clipped = old + (new - old).clamp(-v, v)
        value = 0.5 * torch.maximum((new - target) ** 2, (clipped - target) ** 2).sum() / count
        self.updates += 1
        for key, loss in (("actor", policy), ("critic", value)):
            settings, optimizer = self._settings(key), self.optimizers[key]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.weights[key].values(), settings.max_gradient_norm)
            warm = min(1.0, self.updates / settings.warmup_steps) if settings.warmup_steps else 1.0
            optimizer.param_groups[0]["lr"] = settings.learning_rate * warm
            optimizer.step()
        return {"policy_loss": float(policy.detach()), "value_loss": float(value.detach())}

    def train(self, steps: int) -> Iterator[Step]:
        """The run's steps."""
        for k in range(steps):
            yield self.step(k)


def from_problem(problem: Problem, directory: Path, verify: Verify) -> PPO:
    """The run that `problem` describes: PPO of one actor, one frozen reference, one critic and a verifier."""
    run = problem.run
    assert run is not None
    assert run.prompts is not None
    vertices = problem.graph.vertices
    trainable = problem.graph.trainable
    generation = next(v for v in vertices if v.role == "generation")
    inference = [v.model for v in vertices if v.role == "inference" and v.model is not None]
    names = {
        "actor": generation.model,
        "reference": next(m for m in inference if m not in trainable and problem.models[m].has_lm_head),
        "critic": next(m for m in inference if m in trainable and problem.models[m].has_scalar_head),
    }
    critic_training = next(v for v in vertices if v.role == "training" and v.model == names["critic"])
    assessed = {e.container for e in problem.graph.data_edges if e.source == generation.name}
    behaviour = [c for c in generation.writes if c not in assessed]
    tokenizer = load_tokenizer(run.tokenizer, directory)
    prompts = load_prompts(
        directory / run.prompts,
        tokenizer,
        prompt_length=problem.workload.prompt_length,
        field=run.prompt_field,
        long_prompts=run.long_prompts,
        seed=run.seed,
    )
    return PPO(
        run=run,
        workload=problem.workload,
        specs={key: problem.models[name] for key, name in names.items()},
        names=names,
        critic_sees_kl=bool(set(behaviour) & set(critic_training.reads)),
        prompts=prompts,
        tokenizer=tokenizer,
        verify=verify,
    )
