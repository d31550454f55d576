"""The nodes of a plan as one worker carries them out: models, their versions, and operators."""

import time
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from ir_schema.problem import Layout
from ir_schema.stages import Executable
from ir_schema.trace import Fused
from rpeg_rt.algorithms import Learner, make_learner
from rpeg_rt.beginning import FRESH
from rpeg_rt.engine.engine import Engine
from rpeg_rt.engine.groups import LayoutGroups, make_layout
from rpeg_rt.engine.microtasks import schedule_hash
from rpeg_rt.engine.routing import Fragment, route
from rpeg_rt.engine.shim import device
from rpeg_rt.engine.transfer import move_fragments
from rpeg_rt.holdings import Holdings, Ledger
from rpeg_rt.network import BACKEND
from rpeg_rt.operators import Generating, Site, Training, likelihoods, score, train, train_together
from rpeg_rt.precision import weight_type
from rpeg_rt.preflight import available_memory
from rpeg_rt.protocol import (
    Answers,
    Command,
    Done,
    Evaluate,
    Keep,
    Kept,
    Save,
    Saved,
    Start,
    from_array,
    to_array,
)
from rpeg_rt.realise import BoundNode, Realisation, Weights, WeightTransfer, layout_name
from rpeg_rt.semantics import Generate, Score, Train
from rpeg_rt.snapshots.contents import written_by
from rpeg_rt.snapshots.directory import read_manifest
from rpeg_rt.snapshots.engines import restore, take
from rpeg_rt.snapshots.resuming import beginning
from rpeg_rt.store import Rows
from rpeg_rt.weights import starting_weights, write_shards
from rpeg_rt.world import join_world


class EngineError(Exception):
    """A model cannot be made as the plan describes it: the model, its vertices and what it failed on."""


class Executor:
    """One rank's models, process groups and rows. Construction is collective over all workers."""

    def __init__(self, rank: int, start: Start, listener: int | None) -> None:
        executable = msgspec.json.decode(start.executable, type=Executable)
        self.rank, self.start = rank, start
        self.snapshot = None if start.snapshot is None else read_manifest(Path(start.snapshot))
        self.realisation = Realisation(executable, beginning(self.snapshot) if self.snapshot else FRESH)
        self.problem = executable.problem
        assert self.problem.run is not None
        self.run = self.problem.run
        join_world(start.store, rank, self.realisation.world, listener, BACKEND)
        self.groups: dict[tuple[tuple[int, ...], object], LayoutGroups] = {
            place: make_layout(*place) for place in self.realisation.layouts()
        }
        self.engines = {w: self._built(w) for w in self.realisation.places() if self._groups(w).member}
        self.holdings = Holdings(self.realisation, rank)
        self.learners: dict[str, Learner] = {}
        self.generating = Generating(self.run, self.problem.workload, start.seed, start.eos)
        self.routes: dict[int, list[Fragment]] = {}
        self._weights_taken: dict[Weights, int] = {}

    def _groups(self, place: Weights) -> LayoutGroups:
        return self.groups[self.realisation.ranks_of(place), place.layout]

    def _built(self, place: Weights) -> Engine:
        try:
            return self._build(place)
        except dist.DistError:
            raise
        except Exception as exc:
            users = ", ".join(f"`{v}`" for v, w in self.realisation.serving.items() if w == place)
            raise EngineError(f"model `{place.model}` of {users} could not be made: {told(exc)}") from exc

    def _build(self, place: Weights) -> Engine:
        spec = self.problem.models[place.model]
        dtype: torch.dtype = getattr(torch, weight_type(spec, self.run.precision))
        engine = Engine(
            spec,
            self._groups(place),
            precision=dtype,
            workload=self.problem.workload,
            trainable=self.run.optimizers.get(place.model, self.run.optimizer) if place.training else None,
            copies=place.copies,
            room=self._room(place) if place.training else 0,
        )
        if self.snapshot is not None and place.model in self.snapshot.models:
            assert self.start.snapshot is not None
            restore(engine, place, self.realisation, self.snapshot, Path(self.start.snapshot))
            return engine
        checkpoint = self.start.checkpoints.get(place.model)
        engine.load(starting_weights(spec, place.model, self.start.seed, checkpoint))
        return engine

    def _room(self, place: Weights) -> int:
        """Bytes in which training may keep activations, equal on all its workers: what the plan leaves of a
        GPU, and on CPUs no more than half of a worker's share of what is free. Collective."""
        room = self.realisation.room(place)
        if device().type == "cpu":
            room = min(room, (available_memory() or 0) // (2 * self.realisation.world))
        least = torch.tensor([room], device=device())
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=self._groups(place).collection.intra_dist_opt)
        return int(least)

    def now(self) -> int:
        """Nanoseconds since the start of the run."""
        return time.monotonic_ns() - self.start.origin_ns

    def execute(self, command: Command) -> Done:
        """Carry out one node."""
        begun = self.now()
        bound = self.realisation.bound[command.node]
        ledger = Ledger()
        held = self.holdings.bring(command, ledger)
        reads: dict[str, int] = {}
        writes: dict[str, int] = {}
        metrics: dict[str, dict[str, float]] = {}
        fused: Fused | None = None
        layout = ""
        if bound.transfer is not None:
            reads, writes = self._transfer(bound, bound.transfer, command.step, ledger)
            left: dict[str, Rows] = {}
        elif bound.node.kind == "Op":
            reads = self._use(bound, command.step)
            layout = self._layout_in_use(bound)
            left = {}
            if isinstance(self.realisation.semantics.tasks[bound.vertices[0]], Train):
                writes, metrics, fused = self._train(bound, held)
            else:
                left = self._serve(bound, command.step, held)
        else:
            left = held if self.rank in self.realisation.destination(bound.node) else {}
        self._release_weights(bound, command.step)
        self.holdings.keep(bound, command.step, left)
        return Done(
            node=command.node,
            step=command.step,
            start_ns=begun,
            finish_ns=self.now(),
            layout=layout,
            reads=reads,
            writes=writes,
            sent=ledger.sent,
            received=ledger.received,
            rows={name: rows.ranges for name, rows in left.items()},
            metrics=metrics,
            host_rows=self.holdings.for_host(bound, left),
            fused=fused,
        )

    def evaluate(self, question: Evaluate) -> Answers:
        """Answer held-out prompts, or score held-out pairs."""
        site = self._site(question.vertex)
        rows = torch.from_numpy(from_array(question.rows))
        if question.paired:
            found = likelihoods(site, rows, self.problem.workload)
        else:
            indices = torch.arange(question.first, question.first + len(rows))
            found = self.generating.answer(site, Rows(indices, rows))
        return Answers(question.first, site.engine.version, to_array(found.cpu().numpy()))

    def save(self, request: Save) -> Saved:
        """Write this worker's slices of a model, but those that it leaves to others who hold them too."""
        place = self.realisation.serving[request.vertex]
        engine, spec = self.engines[place], self.problem.models[place.model]
        mine = written_by(self.rank, spec, self.realisation.ranks_of(place), place.layout)
        write_shards((s for s in engine.shards() if s.slices in mine.get(s.name, ())), Path(request.path))
        return Saved(request.vertex, engine.version)

    def keep(self, request: Keep) -> Kept:
        """Write this worker's part of a snapshot."""
        try:
            files = take(self.realisation, self.engines, self.rank, request.step, Path(request.path))
        except OSError as exc:
            return Kept({}, {}, {}, f"{exc.strerror or exc}")
        updates = {w.model: e.updates for w, e in self.engines.items() if w.training}
        return Kept(files, updates, {vertex: learner.memory for vertex, learner in self.learners.items()})

    # Weights -----------------------------------------------------------------------------------------------

    def _transfer(
        self, bound: BoundNode, transfer: WeightTransfer, step: int, ledger: Ledger
    ) -> tuple[dict[str, int], dict[str, int]]:
        """This worker's part in installing a version; returns the versions read and installed."""
        model, version = transfer.source.model, self.realisation.transferred(transfer, step)
        spec = self.problem.models[model]
        if bound.node.id not in self.routes:
            ends = [(self.realisation.ranks_of(w), w.layout) for w in (transfer.source, transfer.target)]
            self.routes[bound.node.id] = route(spec, *ends)
        fragments = self.routes[bound.node.id]
        source, target = self.engines.get(transfer.source), self.engines.get(transfer.target)
        dtype: torch.dtype = getattr(torch, weight_type(spec, self.run.precision))
        reads: dict[str, int] = {}
        writes: dict[str, int] = {}
        if source is not None:
            source.use(version)
            reads[model] = source.version
        move_fragments(
            fragments,
            None if source is None else source.shards(version),
            None if target is None else target.shards(version),
            dtype,
        )
        if target is not None:
            target.install(version)
            writes[model] = version
        sent: dict[int, int] = {}
        received: dict[int, int] = {}
        for f in fragments:
            if f.source != f.destination:
                size = f.elements * dtype.itemsize
                if f.source == self.rank:
                    sent[f.destination] = sent.get(f.destination, 0) + size
                elif f.destination == self.rank:
                    received[f.source] = received.get(f.source, 0) + size
        ledger.add(sent, received)
        return reads, writes

    def _release_weights(self, bound: BoundNode, step: int) -> None:
        """Let go of weights that do not last, after their last reader of the step."""
        for place in self.realisation.weights_read(bound):
            if place.lasting or place not in self.engines:
                continue
            taken = self._weights_taken.pop(place, 0) + 1
            if taken == self.realisation.weight_readers(place, step):
                self.engines[place].release()
            else:
                self._weights_taken[place] = taken

    # Operators ---------------------------------------------------------------------------------------------

    def _site(self, vertex: str) -> Site:
        place = self.realisation.serving[vertex]
        return Site(vertex, self.engines[place], self._groups(place), self.realisation.plan[vertex])

    def _layout_in_use(self, bound: BoundNode) -> str:
        """Sizes of the groups that the operator's collectives really run in."""
        groups = self._groups(self.realisation.serving[bound.vertices[0]]).collection
        return layout_name(
            Layout(
                data_parallel=groups.dp.size(),
                pipeline_parallel=groups.pp.size(),
                tensor_parallel=groups.tp.size(),
                context_parallel=groups.cp.size(),
                expert_parallel=groups.ep.size(),
            )
        )

    def _use(self, bound: BoundNode, step: int) -> dict[str, int]:
        """Put the versions that an Op reads in place; those that its engines then have, by model."""
        wanted = self.realisation.version(bound.node, step)
        reads = {}
        for place in self.realisation.weights_read(bound):
            self.engines[place].use(wanted[place.model])
            reads[place.model] = self.engines[place].version
        return reads

    def _serve(self, bound: BoundNode, step: int, held: dict[str, Rows]) -> dict[str, Rows]:
        """Run an Op that generates or scores; the rows that it leaves."""
        node = bound.node
        site, task = self._site(node.vertex), self.realisation.semantics.tasks[node.vertex]
        if isinstance(task, Generate):
            assert node.phase is not None
            return self.generating.phase(site, task, step, node.phase, node.phases, held.get(task.prompts))
        assert isinstance(task, Score)
        return score(site, task, held[task.tokens], self.run)

    def _train(
        self, bound: BoundNode, held: dict[str, Rows]
    ) -> tuple[dict[str, int], dict[str, dict[str, float]], Fused | None]:
        """Run an Op that trains; the versions written, metrics by vertex, and what was interleaved."""
        trainings = []
        for vertex in bound.vertices:
            task = self.realisation.semantics.tasks[vertex]
            assert isinstance(task, Train)
            site, workload = self._site(vertex), self.problem.workload
            learner = self.learners.get(vertex)
            if learner is None:
                learner = make_learner(self.run, workload, policy=task.policy, value=task.value)
                if self.snapshot is not None:
                    learner.memory.update(self.snapshot.memory.get(vertex, {}))
                self.learners[vertex] = learner
            trainings.append(Training(site, task, learner, held, self.run, workload, self.start.eos))
        schedule = self.realisation.microtasks(bound)
        fused = None
        if schedule is None:
            (alone,) = trainings
            train(alone)
        else:
            first, second = trainings
            executed = train_together(first, second, schedule)
            fused = Fused(schedule=schedule_hash(schedule), executed=executed)
        places = (self.realisation.serving[vertex] for vertex in bound.vertices)
        writes = {place.model: self.engines[place].finish_version() for place in places}
        return writes, {t.site.vertex: t.metrics for t in trainings}, fused


def told(exc: BaseException) -> str:
    """An exception in words."""
    return f"{type(exc).__name__}: {exc}"
