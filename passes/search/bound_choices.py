"""What a plan's bound depends on, by vertex: times, work and bytes of every shape, fewest numbers per shape.

A *choice* is a row of `COLUMNS` whole numbers. Where a plan decides what a number is (whole or in phases,
fused or not, weights resident or not), a choice has the least of what it may be; so no plan has less, and of
two choices on the same blocks the one that is nowhere larger stands for both (`docs/bound.md`).
"""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from ir_schema.problem import Placement, Vertex
from passes.cost.base import CostModel, nanoseconds
from passes.search.candidates import Candidates
from passes.search.evaluator import Evaluator
from passes.structure import phase_fractions

GPUS, PLACE, TIME, FIRST, LAST, LOAD, HELD, TRANSIENT = range(8)
"""Columns: GPUs; number of their footprint; ns from start to end, of the first and of the last phase, and of
work on each GPU; `GRID`ths of a GPU's memory held throughout, and beside that while it runs."""

COLUMNS = 8
GRID = 256
DIGITS = 12
"""Binary digits of times."""

LARGEST = 1 << 60

Ints = NDArray[np.int64]


class Choices:
    """Reads choices of one structure's vertices from its evaluator's cost model."""

    def __init__(self, evaluator: Evaluator) -> None:
        problem = evaluator.problem
        self.evaluator = evaluator
        self.analysis, self.model = evaluator.analysis, evaluator.model
        self.limit = evaluator.limit_bytes
        self.fractions = phase_fractions(self.analysis)
        self.splits = problem.options.split != "never" and len(self.fractions) > 1
        self.rule = _rule(self.model)
        # Sums over steps and vertices stay within 64 bits.
        self.cap = LARGEST // (2 * problem.options.steps * max(1, len(problem.graph.vertices)))

    def of(
        self, vertex: Vertex, candidates: Candidates, places: dict[int, int], also: Iterable[Placement] = ()
    ) -> tuple[Ints, list[Placement]]:
        """The choices of a placed vertex, (n, COLUMNS), without those that another one stands for, and a
        placement (up to its origin) that has each.

        They are those of the candidates, of placements `also`, and of these with other numbers of waves up to
        the largest that occurs. `places` is the number of the footprint by that of GPUs.
        """
        known = {s.placement: s.time_ns for s in candidates.shapes}
        others = {p: nanoseconds(self.model.operator(vertex, p)) for p in _unlisted(known, also)}
        rows = [
            (p.layout.gpus, places[p.layout.gpus], *self._times(vertex, p, whole), *self._bytes(vertex, p))
            for p, whole in (known | others).items()
        ]
        numbers = np.array(rows, dtype=np.int64)
        numbers[:, TIME : LOAD + 1] = _coarse(numbers[:, TIME : LOAD + 1])
        placements = [*known, *others]
        first = {tuple(row): p for row, p in zip(numbers[::-1].tolist(), placements[::-1], strict=True)}
        kept = _least(numbers)
        return kept, [first[tuple(row)] for row in kept.tolist()]

    def of_host(self, vertex: Vertex) -> Ints:
        """The one choice of a host vertex, (1, COLUMNS): time, and nothing on a GPU."""
        problem = self.analysis.problem
        host = problem.host[vertex.name]
        whole = problem.workload.sequences * host.seconds_per_response / host.workers
        phases = [nanoseconds({"host": whole * f}) for f in self.fractions]
        return np.array(
            [[0, 0, *self._capped(nanoseconds({"host": whole}), phases), 0, 0, 0]], dtype=np.int64
        )

    def _capped(self, whole: int, phases: list[int]) -> tuple[int, int, int]:
        """Time, and that of the first and of the last phase."""
        if not self.splits:
            phases = [whole]
        times = min(whole, sum(phases)), min(whole, phases[0]), min(whole, phases[-1])
        a, b, c = (min(self.cap, t) for t in times)
        return a, b, c

    def _times(self, vertex: Vertex, p: Placement, whole: int) -> tuple[int, int, int, int]:
        phases = [whole]
        if self.splits and vertex.role != "training" and p.waves == 1:
            count = len(self.fractions)
            phases = [nanoseconds(self.model.phase(vertex, p, q)) for q in range(1, count + 1)]
        time, first, last = self._capped(whole, phases) if len(phases) > 1 else (min(self.cap, whole),) * 3
        return time, first, last, self._load(vertex, p, time)

    def _load(self, vertex: Vertex, p: Placement, time: int) -> int:
        """Work of a step on each of its GPUs. In a fused pair bubbles may be filled, microtasks are rounded
        to ns, two for each microbatch, and so is the composite."""
        fuse = self.analysis.problem.options.fuse
        if fuse is None or vertex.name not in fuse:
            return time
        if self.rule is None:
            return 0
        bubble = self.model.operator(vertex, p)["bubble"]
        return max(0, time - round(bubble * 1e9) - p.microbatches - 2)

    def _bytes(self, vertex: Vertex, p: Placement) -> tuple[int, int]:
        """`HELD` and `TRANSIENT`, rounded down."""
        held, transient = self._least_bytes(vertex, p)
        scale = GRID / self.limit
        return int(held * scale), int(transient * scale)

    def _least_bytes(self, vertex: Vertex, p: Placement) -> tuple[float, float]:
        if self.rule is None or vertex.model is None:
            return 0.0, 0.0
        parts = self.model.shape_bytes(vertex, p)
        transient = sum(parts.transient)
        if vertex.role == "training":
            return sum(parts.state), transient
        frozen = vertex.model not in self.analysis.staleness
        if self.rule == "megatron" or frozen:
            beside = transient if self.rule == "megatron" else transient - parts.weights
            return parts.copies, beside
        # Weights are with the operator or a shadow copy of it; a copy of another operator may replace them.
        alone = self.analysis.staleness[vertex.model] == 0 or len(self.analysis.serving(vertex.model)) == 1
        return 0.0, transient if alone else transient - parts.weights


def _rule(model: CostModel) -> str | None:
    """The formulas that the model's own class promises; None if they are not known."""
    form = model.closed_form() if "closed_form" in vars(type(model)) else None
    return None if form is None else form.rule


def _unlisted(listed: Iterable[Placement], also: Iterable[Placement]) -> Iterator[Placement]:
    """Placements like those `listed` and `also`, with numbers of waves that are not listed: from the fewest
    listed (else 1) to the most that occur."""
    waves: dict[Placement, set[int]] = {}
    for p in listed:
        waves.setdefault(msgspec.structs.replace(p, waves=1), set()).add(p.waves)
    most = {one: max(known) for one, known in waves.items()}
    for p in also:
        one = msgspec.structs.replace(p, waves=1)
        most[one] = max(p.waves, most.get(one, 1))
    for one, last in most.items():
        known = waves.get(one, set())
        for w in range(min(known, default=1), last + 1):
            if w not in known:
                yield msgspec.structs.replace(one, waves=w)


def _coarse(times: Ints) -> Ints:
    """`times` rounded down to `DIGITS` binary digits, so that fewer differ in ways that do not matter."""
    shift = np.maximum(np.frexp(times.astype(np.float64))[1].astype(np.int64) - DIGITS, 0)
    coarse: Ints = times >> shift << shift
    return coarse


def _least(rows: Ints) -> Ints:
    """`rows` without those that another one in the same place is nowhere larger than."""
    rows = np.unique(rows, axis=0)
    kept: list[Ints] = []
    for place in np.unique(rows[:, PLACE]):
        front = np.empty((0, COLUMNS), dtype=np.int64)
        # In lexicographic order no row is dominated by a later one.
        for row in rows[rows[:, PLACE] == place]:
            if not (front <= row).all(axis=1).any():
                front = np.vstack([front, row])
        kept.append(front)
    return np.concatenate(kept)
