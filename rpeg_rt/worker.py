"""A persistent worker: one process per GPU, hosting the shards of every model placed on it.

It carries out commands in the order in which they come, one at a time; every worker of a node is given the
node in one common order, so collectives match. It reports what it really did, and leaves when its
controller goes away.
"""

import os
import socket
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from ir_schema.problem import Layout
from ir_schema.stages import Executable
from ir_schema.trace import Fused
from rpeg_rt.algorithms import Learner, make_learner
from rpeg_rt.beginning import FRESH
from rpeg_rt.bench.worker import BenchWorker
from rpeg_rt.engine.engine import Engine
from rpeg_rt.engine.groups import LayoutGroups, make_layout
from rpeg_rt.engine.microtasks import schedule_hash
from rpeg_rt.engine.routing import Fragment, route
from rpeg_rt.engine.shim import device
from rpeg_rt.engine.training import NumericError
from rpeg_rt.engine.transfer import exchange, move_fragments
from rpeg_rt.network import BACKEND, keep_alive
from rpeg_rt.operators import Generating, Site, Training, likelihoods, score, train, train_together
from rpeg_rt.precision import number_type, weight_type
from rpeg_rt.preflight import available_memory
from rpeg_rt.protocol import (
    PULSE_SECONDS,
    Answers,
    Bench,
    Channel,
    Command,
    Done,
    Evaluate,
    Failed,
    Hello,
    Keep,
    Kept,
    Move,
    Pulse,
    Ready,
    RowsFrame,
    Save,
    Saved,
    Start,
    Stop,
    from_array,
    to_array,
)
from rpeg_rt.realise import BoundNode, Realisation, Weights, WeightTransfer, layout_name
from rpeg_rt.rows import Key, count, replica_ranks, to_indices
from rpeg_rt.semantics import Generate, Score, Train
from rpeg_rt.snapshots.contents import written_by
from rpeg_rt.snapshots.directory import read_manifest
from rpeg_rt.snapshots.engines import restore, take
from rpeg_rt.snapshots.resuming import beginning
from rpeg_rt.store import Rows, Store, gather
from rpeg_rt.weights import starting_weights, write_shards
from rpeg_rt.world import join_world


class _Ledger:
    """Bytes that this worker sent and received while carrying out one command, by peer."""

    def __init__(self) -> None:
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}

    def add(self, sent: dict[int, int], received: dict[int, int]) -> None:
        for total, more in ((self.sent, sent), (self.received, received)):
            for peer, size in more.items():
                total[peer] = total.get(peer, 0) + size


class EngineError(Exception):
    """A model cannot be made as the plan describes it: the model, its vertices and what it failed on."""


class Worker:
    """One rank's models, process groups and rows."""

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
        self.store = Store()
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
        ledger = _Ledger()
        held: dict[str, Rows] = {name: self._from_host(frame) for name, frame in command.rows.items()}
        held |= {move.container: self._move(move, command.step, ledger) for move in command.moves}
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
        readers = self.realisation.worker_readers
        for name, rows in left.items():
            self.store.put(Key(command.node, command.step, name), rows, readers[command.node, name])
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
            host_rows=self._for_host(bound, left),
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

    # Rows --------------------------------------------------------------------------------------------------

    def _from_host(self, frame: RowsFrame) -> Rows:
        return Rows(torch.from_numpy(to_indices(frame.rows)), torch.from_numpy(from_array(frame.values)))

    def _for_host(self, bound: BoundNode, left: dict[str, Rows]) -> dict[str, RowsFrame]:
        """The rows that a host vertex reads, from the first worker of each replica."""
        wanted = [a for a in left if self.realisation.host_readers[bound.node.id, a]]
        if not wanted:
            return {}
        placement = self.realisation.plan[bound.node.vertex]
        first = {replica_ranks(bound.ranks, placement.layout, d)[0] for d in range(placement.data_parallel)}
        if self.rank not in first:
            return {}
        return {a: RowsFrame(left[a].ranges, to_array(left[a].values.cpu().numpy())) for a in wanted}

    def _move(self, move: Move, step: int, ledger: _Ledger) -> Rows:
        """Bring the needed rows of a container together: from the own store, and from other workers."""
        taken = [self.store.take(Key(source, step, move.container)) for source in move.sources]
        parts = [rows for rows in taken if rows is not None]
        mine = gather(parts) if parts else None
        kept: list[Rows] = []
        if count(move.local):
            assert mine is not None
            kept.append(Rows(torch.from_numpy(to_indices(move.local)), mine.select(move.local)))
        sends = {}
        for peer, rows in move.sends:
            assert mine is not None
            sends[peer] = mine.select(rows).contiguous()
        receives = {peer: self._empty(move.container, count(rows)) for peer, rows in move.receives}
        if sends or receives:
            exchange(sends, receives)
        ledger.add({p: t.nbytes for p, t in sends.items()}, {p: t.nbytes for p, t in receives.items()})
        kept += [Rows(torch.from_numpy(to_indices(rows)), receives[peer]) for peer, rows in move.receives]
        return gather(kept or [Rows(torch.empty(0, dtype=torch.int64), self._empty(move.container, 0))])

    def _empty(self, container: str, rows: int) -> torch.Tensor:
        semantics = self.realisation.semantics
        width = semantics.width(container, self.problem)
        name = "int32" if semantics.meaning[container] == "tokens" else number_type(self.run.precision)
        return torch.empty((rows,) if width is None else (rows, width), dtype=getattr(torch, name))

    # Weights -----------------------------------------------------------------------------------------------

    def _transfer(
        self, bound: BoundNode, transfer: WeightTransfer, step: int, ledger: _Ledger
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


def _failure(command: Command | None, exc: BaseException) -> Failed:
    text, frames = told(exc), traceback.format_tb(exc.__traceback__)
    if isinstance(exc, EngineError):
        # Most likely a setting: the message names it, and of the engine's inside the last place will do.
        text, frames = str(exc), traceback.format_tb((exc.__cause__ or exc).__traceback__)[-1:]
    lower = text.lower()
    lost = isinstance(exc, dist.DistError) or "gloo" in lower or "connection" in lower
    kind = "numeric" if isinstance(exc, NumericError | FloatingPointError) else "peer" if lost else "error"
    node, step = (None, None) if command is None else (command.node, command.step)
    return Failed(node, step, kind, text, "".join(frames))


def _beat(channel: Channel) -> None:
    """Tell the controller for as long as there is one that this process lives, and how much it works."""
    with suppress(OSError):
        while True:
            channel.send(Pulse(time.monotonic_ns(), time.process_time_ns()))
            time.sleep(PULSE_SECONDS)


def main(rank: int, address: tuple[str, int], secret: str, listener: int | None) -> int:
    """Serve commands until the controller says stop or goes away; the process's exit code. `listener` is the
    descriptor of the store's socket, for worker 0."""
    torch.set_num_threads(1)
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        channel = Channel(connection)
        channel.send(Hello(secret, rank, os.getpid()))
        command: Command | None = None
        try:
            start = channel.receive()
            if isinstance(start, Bench):
                return BenchWorker(rank, start, listener).serve(channel)
            if not isinstance(start, Start):
                return 1
            threading.Thread(target=_beat, args=(channel,), daemon=True).start()
            worker = Worker(rank, start, listener)
            channel.send(Ready())
            while True:
                frame = channel.receive()
                if frame is None or isinstance(frame, Stop):
                    return 0
                if isinstance(frame, Evaluate):
                    channel.send(worker.evaluate(frame))
                    continue
                if isinstance(frame, Keep):
                    channel.send(worker.keep(frame))
                    continue
                if isinstance(frame, Save):
                    channel.send(worker.save(frame))
                    continue
                assert isinstance(frame, Command)
                command = frame
                channel.send(worker.execute(command))
                command = None
        except Exception as exc:
            traceback.print_exc()
            channel.send(_failure(command, exc))
            # Peers may be waiting for this worker: stay until the controller has heard and decides.
            channel.receive()
            return 1
