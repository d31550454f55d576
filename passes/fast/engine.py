"""Calls the kernels for plans of one problem, and asks the cost model for what they lack.

Kernels, and with them the compiler, are imported when the first plan is evaluated: much of what is done
with a problem evaluates none.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ir_schema.problem import Layout, Placement
from passes.analysis import Analysis
from passes.cost.base import ClosedForm, CostModel
from passes.fast.tables import (
    UNKNOWN,
    WANTED,
    Ints,
    Shapes,
    contents_tables,
    graph_tables,
    links_of,
)

if TYPE_CHECKING:
    from passes.fast import lowering, scheduling

CHUNK = 16  # plans whose nodes a core's cache holds
NO_LINKS = ClosedForm("paper", ((0.0, 0.0),) * 3, ((0.0, 0.0),) * 3, 1.0)
EXACT = 1 << 53  # integers up to here are floating-point numbers too

Timer = Callable[[int, Placement, int], int]
PairTimer = Callable[[Placement, Placement], int]


class Trace(NamedTuple):
    """One plan's schedule: `start`, `finish` and `duration` [ns] and `owner` (a vertex)
    by node, whether it is an `operator`, the `order`
    of placement and the critical `path` from its end, in nodes; `fused`, whether the pair is one node."""

    start: Ints
    finish: Ints
    duration: Ints
    owner: NDArray[np.int32]
    operator: NDArray[np.bool_]
    order: NDArray[np.int32]
    path: Ints
    fused: bool


class _Buffers(NamedTuple):
    """Where one thread lowers and schedules `CHUNK` plans."""

    lowered: "lowering.Lowered"
    timed: "scheduling.Timed"


class Engine:
    """Evaluates plans of one problem under a cost model with a closed form.

    `timer` tells the time [ns] of a place's operator in a shape, whole (0) or in a phase (from 1); `pair`
    that of a fused pair. `closed`: whether figures can be computed at all: the model has a closed form and
    the problem's numbers lie in the range where compiled and interpreted arithmetic agree.
    """

    def __init__(
        self, analysis: Analysis, model: CostModel, timer: Timer, pair: PairTimer, threads: int
    ) -> None:
        own = "closed_form" in vars(type(model))
        form = model.closed_form() if own else None
        self.model, self.timer, self.pair = model, timer, pair
        self.graph = graph_tables(analysis)
        self.contents = contents_tables(analysis, megatron=form is not None and form.rule == "megatron")
        small = max([0, *self.graph.weights.tolist()]) * self.contents.gpus <= EXACT
        self.closed = form is not None and small and len(self.contents.model) < 63
        self.links = links_of(form or NO_LINKS)
        self.vertices = [v for v in analysis.graph.vertices if v.model is not None]
        self.placements: list[list[Placement]] = [[] for _ in self.vertices]
        self._layouts: dict[tuple[int, Layout], int] = {}
        self._alike: dict[tuple[int, int], int] = {}
        self._shapes = self._capacity(0, 0)
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._local = threading.local()

    # Shapes ------------------------------------------------------------------------------------------

    def add(self, place: int, placement: Placement) -> int:
        """Number a new shape of `place`."""
        number = len(self.placements[place])
        self.placements[place].append(placement)
        layout = placement.layout
        common = self._layouts.setdefault((placement.allocation.gpus, layout), len(self._layouts))
        alike = self._alike.get((place, common), 0)
        self._alike[place, common] = alike + 1
        if number >= self._shapes.gpus.shape[1] or alike >= self._shapes.fused.shape[1]:
            self._shapes = self._capacity(number + 1, alike + 1)
        s = self._shapes
        s.gpus[place, number] = placement.allocation.gpus
        s.layout[place, number], s.alike[place, number] = common, alike
        s.waved[place, number] = placement.waves > 1
        if self.closed:
            parts = self.model.shape_bytes(self.vertices[place], placement)
            s.weights[place, number], s.copies[place, number] = parts.weights, parts.copies
            s.state[place, number, : len(parts.state)] = parts.state
            s.transient[place, number, : len(parts.transient)] = parts.transient
            s.node_ns[place, number] = self.model.node_ns(self.vertices[place], placement)
        text = msgspec.json.encode(msgspec.structs.replace(placement, origin=(0, 0, 0)))
        digest = hashlib.blake2b(text, digest_size=16).digest()
        s.digest[place, number] = np.frombuffer(digest, dtype=np.uint64)
        return number

    def _capacity(self, shapes: int, alike: int) -> Shapes:
        """Tables for at least so many shapes of a place, and so many of one layout, with what is known."""
        places, old = len(self.vertices), self._shapes if shapes else None
        if old is not None:
            kept, pairs = old.gpus.shape[1], old.fused.shape[1]
            shapes = kept if shapes <= kept else max(64, 2 * shapes)
            alike = pairs if alike <= pairs else 2 * alike
        size = (places, shapes)
        new = Shapes(
            gpus=np.zeros(size, dtype=np.int64),
            layout=np.zeros(size, dtype=np.int64),
            waved=np.zeros(size, dtype=np.int64),
            alike=np.zeros(size, dtype=np.int64),
            node_ns=np.zeros(size, dtype=np.int64),
            times=np.full((*size, 1 + self.graph.phases), UNKNOWN, dtype=np.int64),
            fused=np.full((shapes, alike), UNKNOWN, dtype=np.int64),
            weights=np.zeros(size),
            copies=np.zeros(size),
            state=np.zeros((*size, 3)),
            transient=np.zeros((*size, 4)),
            digest=np.zeros((*size, 2), dtype=np.uint64),
        )
        if old is not None:
            for name, table in old._asdict().items():
                corner = tuple(slice(n) for n in table.shape)
                getattr(new, name)[corner] = table
        return new

    def _fill(self) -> None:
        """Ask for every time that a kernel wanted."""
        times, fused = self._shapes.times, self._shapes.fused
        for place, shape, phase in np.argwhere(times == WANTED).tolist():
            self.operator_ns(place, shape, phase)
        if not (fused == WANTED).any():
            return
        first, second = (int(self.graph.place[v]) for v in self.graph.pair)
        for shape, alike in np.argwhere(fused == WANTED).tolist():
            same = self._shapes.layout[second] == self._shapes.layout[first, shape]
            same &= self._shapes.alike[second] == alike
            known = len(self.placements[second])
            partner = int(np.flatnonzero(same[:known])[0])
            fused[shape, alike] = self.pair(self.placements[first][shape], self.placements[second][partner])

    def operator_ns(self, place: int, shape: int, phase: int) -> int:
        """Time [ns] of an operator in a shape, whole (0) or in a phase (from 1)."""
        times = self._shapes.times[place, shape]
        if times[phase] < 0:
            times[phase] = self.timer(place, self.placements[place][shape], phase)
        return int(times[phase])

    # Plans -------------------------------------------------------------------------------------------

    def figures(self, rows: Ints) -> Ints:
        """Makespan [ns], busy GPU time [GPU ns] and largest peak [bytes] of `rows` (N, V, 2), as (N, 3).

        Raises ValueError for a plan whose graph has a cycle.
        """
        found = np.empty((len(rows), 3), dtype=np.int64)
        unknown = np.arange(len(rows))
        while len(unknown):
            todo = rows if len(unknown) == len(rows) else rows[unknown]
            result, missing = self._pass(np.ascontiguousarray(todo))
            found[unknown] = result
            unknown = unknown[missing]
            if len(unknown):
                self._fill()
        if len(rows) and found[:, 0].min() < 0:
            raise ValueError("the lowered graph has a cycle")
        if self._shapes.node_ns.any():
            np.maximum(found[:, 0], self._processors_ns(rows), out=found[:, 0])
        return found

    def _processors_ns(self, rows: Ints) -> Ints:
        """See `passes.cost.processors.processors_ns`, of each plan of `rows`."""
        places, shape, first = np.arange(len(self.vertices)), rows[:, :, 0], rows[:, :, 1]
        gpus, each = self._shapes.gpus[places, shape], self._shapes.node_ns[places, shape]
        most = np.zeros(len(rows), dtype=np.int64)
        for begin in range(0, self.contents.gpus, self.contents.node):
            end = begin + self.contents.node
            there = np.maximum(np.minimum(first + gpus, end) - np.maximum(first, begin), 0)
            np.maximum(most, (there * each).sum(1), out=most)
        return self.graph.steps * most

    def _pass(self, rows: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Figures of plans, and for which of them times were missing."""
        found = np.empty((len(rows), 3), dtype=np.int64)
        missing = np.empty(len(rows), dtype=np.bool_)

        def work(part: slice) -> None:
            for at in range(part.start, part.stop, CHUNK):
                chunk = slice(at, min(at + CHUNK, part.stop))
                self._chunk(rows[chunk], found[chunk], missing[chunk])

        parts = list(_parts(len(rows), self._threads))
        if len(parts) == 1:
            work(parts[0])
        else:
            self._pool = self._pool or ThreadPoolExecutor(self._threads)
            list(self._pool.map(work, parts))
        return found, missing

    def _chunk(self, rows: Ints, found: Ints, missing: NDArray[np.bool_]) -> None:
        from passes.fast import lowering, regions, scheduling

        buffers: _Buffers | None = getattr(self._local, "buffers", None)
        if buffers is None:
            nodes = self.graph.most_nodes()
            buffers = self._local.buffers = _Buffers(
                lowering.space_for(self.graph, CHUNK), scheduling.space_for(nodes, CHUNK)
            )
        lowered, timed = buffers
        self._schedule(rows, lowered, timed)
        peaks = np.empty(len(rows), dtype=np.int64)
        regions.peaks(self.contents, self._shapes, rows, lowered.counts, lowered.handover, peaks)
        found[:, :2], found[:, 2] = timed.figures[: len(rows)], peaks
        missing[:] = lowered.counts[: len(rows), lowering.MISSING]

    def _schedule(self, rows: Ints, lowered: "lowering.Lowered", timed: "scheduling.Timed") -> None:
        from passes.fast.lowering import lower
        from passes.fast.scheduling import schedule

        lower(self.graph, self.links, self._shapes, rows, lowered)
        schedule(
            lowered.duration,
            lowered.tie,
            lowered.group,
            lowered.flags,
            lowered.head,
            lowered.source,
            lowered.target,
            lowered.conflicts,
            lowered.group_gpus,
            lowered.counts,
            len(rows),
            not self.graph.as_printed,
            timed,
        )

    def trace(self, row: Ints) -> Trace:
        """The schedule of one plan. Raises ValueError as `figures` does."""
        from passes.fast import lowering, scheduling

        self.figures(row[None])
        lowered = lowering.space_for(self.graph, 1)
        timed = scheduling.space_for(self.graph.most_nodes(), 1)
        self._schedule(row[None], lowered, timed)
        nodes, edges = (int(lowered.counts[0, i]) for i in (lowering.NODES, lowering.EDGES))
        start, finish, order = timed.start[0, :nodes], timed.finish[0, :nodes], timed.order[0, :nodes]
        path = scheduling.critical_path(
            lowered.group[0],
            lowered.source[0],
            lowered.target[0],
            lowered.conflicts[0],
            start,
            finish,
            order,
            nodes,
            edges,
        )
        return Trace(
            start,
            finish,
            lowered.duration[0, :nodes],
            lowered.owner[0, :nodes],
            lowered.flags[0, :nodes] & lowering.OP != 0,
            order,
            path,
            bool(lowered.counts[0, lowering.FUSED]),
        )

    def critical_time(self, row: Ints) -> Ints:
        """Time [ns] of each place, with the transfers made for it, on the critical path of a plan."""
        trace = self.trace(row)
        weights = np.zeros(len(self.graph.role), dtype=np.int64)
        np.add.at(weights, trace.owner[trace.path], trace.duration[trace.path])
        if trace.fused:
            first, second = self.graph.pair
            composite = trace.path[trace.owner[trace.path] == first]
            operators = composite[trace.operator[composite]]
            weights[second] += trace.duration[operators].sum()
        return weights[self.graph.place >= 0]

    def keys(self, rows: Ints) -> NDArray[np.uint64]:
        """128 bits of each plan of `rows`, (N, 2)."""
        from passes.fast import regions

        found = np.empty((len(rows), 2), dtype=np.uint64)
        regions.keys(self.contents, self._shapes, np.ascontiguousarray(rows), found)
        return found


def _parts(count: int, threads: int) -> Iterator[slice]:
    """`count` plans in up to `threads` parts, none smaller than a chunk unless it is the only one."""
    parts = max(1, min(threads, count // CHUNK))
    for i in range(parts):
        yield slice(count * i // parts, count * (i + 1) // parts)
