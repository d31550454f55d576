"""What a worker computes for an Op: generation, scoring, or optimizer steps, on its replica's rows.

The versions it reports are the ones that its engines say they used.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ir_schema.problem import Placement, RunConfig, Workload
from ir_schema.stages import Microtask, MicrotaskSchedule
from rpeg_rt.algorithms import Learner
from rpeg_rt.algorithms.batch import Columns, Metrics, TrainBatch, minibatches
from rpeg_rt.engine.engine import Engine
from rpeg_rt.engine.fused import Update, train_fused
from rpeg_rt.engine.generation import Generation
from rpeg_rt.engine.groups import LayoutGroups
from rpeg_rt.engine.training import NumericError, TokenOutputs
from rpeg_rt.precision import number_type
from rpeg_rt.rows import block, count, phase_count
from rpeg_rt.sampling import derive_seed
from rpeg_rt.semantics import Generate, Score, Train
from rpeg_rt.store import Rows


@dataclass(frozen=True)
class Site:
    """One vertex on this worker: its engine, groups and plan."""

    vertex: str
    engine: Engine
    groups: LayoutGroups
    placement: Placement

    @property
    def replica(self) -> int:
        """Index of this worker's data-parallel replica."""
        assert self.groups.position is not None
        return self.groups.position.data


class Generating:
    """Generation vertices on this worker; a split generation keeps its state between phases."""

    def __init__(self, run: RunConfig, workload: Workload, seed: int, eos: int | None) -> None:
        self.run, self.workload, self.seed, self.eos = run, workload, seed, eos
        self._active: dict[tuple[str, int], Generation] = {}

    def phase(
        self, site: Site, task: Generate, step: int, phase: int, phases: int, prompts: Rows | None
    ) -> dict[str, Rows]:
        """Decode until this phase's share of the replica's sequences has finished, and return it."""
        w, replicas = self.workload, site.placement.data_parallel
        key = (site.vertex, step)
        if prompts is not None:
            if site.placement.waves > 1:
                return self._waves(site, task, step, prompts)
            self._active[key] = self._start_step(site, step, prompts)
        local = count(block(w, replicas, site.replica))
        done = local if phase == phases else phase_count(w, replicas, phase)
        finished = self._active[key].run_until(min(done, local))
        if phase == phases:
            del self._active[key]
        return self._rows(task, finished.indices, finished.tokens, finished.logp)

    def _rows(self, task: Generate, indices: Tensor, tokens: Tensor, logp: Tensor) -> dict[str, Rows]:
        if not torch.isfinite(logp).all():
            raise NumericError("log-probabilities of sampled tokens are not finite")
        return {
            task.tokens: Rows(indices, tokens),
            task.logprobs: Rows(indices, logp.to(getattr(torch, number_type(self.run.precision)))),
        }

    def _start_step(self, site: Site, step: int, prompts: Rows) -> Generation:
        return self._start(site, step, prompts, rollouts=self.workload.rollouts, seed=self.seed)

    def answer(self, site: Site, prompts: Rows) -> Tensor:
        """One response to each held-out prompt, tokens [n, L_p + L_r] in order; no more prompts at a time
        than a replica has sequences in a step. The random numbers are the same in every evaluation."""
        seed = derive_seed(self.seed, "evaluation")
        parts = _parts(site, len(prompts.indices), self.workload)
        cut = zip(prompts.indices.tensor_split(parts), prompts.values.tensor_split(parts), strict=True)
        return torch.cat(
            [
                self._start(site, 0, Rows(*part), rollouts=1, seed=seed).run_until(len(part[0])).tokens
                for part in cut
            ]
        )

    def _start(self, site: Site, step: int, prompts: Rows, *, rollouts: int, seed: int) -> Generation:
        return site.engine.start_generation(
            prompts.values,
            prompts.indices.tolist(),
            rollouts,
            seed=seed,
            step=step,
            temperature=self.run.temperature,
            top_p=self.run.top_p,
            eos=self.eos,
            microbatches=site.placement.microbatches,
        )

    def _waves(self, site: Site, task: Generate, step: int, prompts: Rows) -> dict[str, Rows]:
        """The replica's prompts in `waves` parts, one after the other, to bound the key/value cache."""
        parts: dict[str, list[Tensor]] = {"indices": [], "tokens": [], "logp": []}
        waves = site.placement.waves
        for indices, values in zip(
            torch.tensor_split(prompts.indices, waves), torch.tensor_split(prompts.values, waves), strict=True
        ):
            finished = self._start_step(site, step, Rows(indices, values)).run_until(
                len(indices) * self.workload.rollouts
            )
            for name, collected in parts.items():
                collected.append(getattr(finished, name))
        indices, tokens, logp = (torch.cat(p) for p in parts.values())
        return self._rows(task, indices, tokens, logp)


def score(site: Site, task: Score, tokens: Rows, run: RunConfig) -> dict[str, Rows]:
    """One teacher-forced forward pass over this replica's rows."""
    kind = {"logprobs": "logp"}.get(task.kind, task.kind)
    values = site.engine.score(tokens.values, site.placement.microbatches, kind, run.temperature)  # type: ignore[arg-type]
    if not torch.isfinite(values).all():
        raise NumericError(f"{task.kind} of `{site.vertex}` are not finite")
    return {task.output: Rows(tokens.indices, values.to(getattr(torch, number_type(run.precision))))}


def likelihoods(site: Site, tokens: Tensor, workload: Workload) -> Tensor:
    """Log-probabilities [n] of whole responses, float64; no more rows at a time than a replica has sequences
    in a step."""
    scores = [
        site.engine.score(rows, site.placement.microbatches, "logp")
        for rows in tokens.tensor_split(_parts(site, len(tokens), workload))
    ]
    return torch.cat(scores).sum(1, dtype=torch.float64)


def _parts(site: Site, rows: int, workload: Workload) -> int:
    """Into how many parts a replica's `rows` questions are split: none has more of them than a replica has
    sequences in a step. In lockstep, all replicas have the same number of parts."""
    most = max(1, workload.sequences // site.placement.data_parallel)
    parts = torch.tensor(-(-rows // most))
    if site.groups.lockstep:
        dist.all_reduce(parts, op=dist.ReduceOp.MAX, group=site.groups.collection.dp_cp)
    return int(parts)


class Training:
    """One training vertex at one step: what is prepared before its optimizer steps, and its metrics.

    `metrics` are those of the batch and the means over the optimizer steps so far.
    """

    def __init__(
        self,
        site: Site,
        task: Train,
        learner: Learner,
        rows: Mapping[str, Rows],
        run: RunConfig,
        workload: Workload,
        eos: int | None,
    ) -> None:
        self.site, self.learner, self.run = site, learner, run
        self._updates = 0

        def values(container: str | None) -> Tensor | None:
            if container is None:
                return None
            if not torch.equal(rows[container].indices, rows[task.tokens].indices):
                raise KeyError(f"`{container}` and `{task.tokens}` hold different sequences")
            return rows[container].values

        def all_reduce(tensor: Tensor) -> Tensor:
            total = tensor.clone()
            dist.all_reduce(total, group=site.groups.collection.dp)
            return total

        columns = Columns(
            prompts=rows[task.tokens].indices // workload.rollouts,
            tokens=rows[task.tokens].values,
            prompt_length=workload.prompt_length,
            eos=eos,
            logp=values(task.logprobs),
            logp_ref=values(task.reference),
            rewards=values(task.reward),
            values=values(task.values),
        )
        batch, self.metrics = learner.prepare(columns, all_reduce)
        self.parts = minibatches(batch, workload.minibatches, workload.epochs)

    def loss(self, outputs: TokenOutputs, part: TrainBatch) -> tuple[Tensor, Metrics]:
        """Sums over some rows: what is minimised, and other figures."""
        return self.learner.loss(outputs.logp, outputs.values, part)

    def add(self, figures: dict[str, float]) -> None:
        """One more optimizer step is done. Raises NumericError where a figure is not finite."""
        bad = [name for name, value in figures.items() if not math.isfinite(value)]
        if bad:
            raise NumericError(f"{bad[0]} of `{self.site.vertex}` is {figures[bad[0]]}")
        self._updates += 1
        for name, value in figures.items():
            mean = self.metrics.get(name, 0.0) if self._updates > 1 else 0.0
            self.metrics[name] = mean + (value - mean) / self._updates


def train(training: Training) -> None:
    """All optimizer steps of a training vertex at one RL step."""
    engine, microbatches = training.site.engine, training.site.placement.microbatches
    for part in training.parts:
        training.add(engine.train_minibatch(part, training.loss, microbatches, training.run.temperature))


def train_together(
    first: Training, second: Training, schedule: MicrotaskSchedule
) -> tuple[tuple[Microtask, ...], ...]:
    """All optimizer steps of two vertices, interleaved; this rank's microtasks of each, as they ran."""
    pair = (first, second)
    executed = []
    for parts in zip(first.parts, second.parts, strict=True):
        one, two = (
            Update(t.site.engine, part, t.loss, t.site.placement.microbatches)
            for t, part in zip(pair, parts, strict=True)
        )
        step = train_fused(one, two, schedule, first.run.temperature)
        for t, figures in zip(pair, step.metrics, strict=True):
            t.add(figures)
        executed.append(step.executed)
    return tuple(executed)
