"""X_cand(v): every legal (allocation, layout, microbatches, waves) of one vertex (semantics: Search).

Candidates of equal shape differ only in where they stand, and a machine is homogeneous, so time and memory
are computed once per shape, and candidates are kept as shapes with their origins. They are sorted by
estimated time, then (P_t, P_p, P_d, mb, waves), then origin: the order in which ties are broken.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from ir_schema.device import Coordinate
from ir_schema.problem import PartialPlacement, Placement
from passes.search.constraints import Extent, Rules, divisors
from passes.search.evaluator import Evaluator

STAGES = ("tensor", "pipeline", "data", "packing", "microbatches", "extent", "origin", "memory")
WAVE_LEVELS = 3
ALL_WAVE_LEVELS = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """A placement up to its origin, with its estimated time T_op [ns] and single-operator memory [bytes]."""

    placement: Placement
    gpus: int
    time_ns: int
    nbytes: int

    @property
    def key(self) -> tuple[int, ...]:
        """Sort key."""
        p = self.placement
        degrees = (p.tensor_parallel, p.pipeline_parallel, p.data_parallel, p.microbatches, p.waves)
        return (self.time_ns, *degrees, p.context_parallel, p.expert_parallel)

    def at(self, origin: Coordinate) -> Placement:
        """The placement at `origin`."""
        return msgspec.structs.replace(self.placement, origin=origin)


@dataclass(frozen=True)
class Candidates:
    """The candidates of `vertex`: shapes in order and the origins of each extent.

    In numbers, those of the evaluator they are bound to: `numbers` are the shapes' numbers in order, `starts`
    the first GPUs (in the flattened device space) of allocations by their number of GPUs, in order.
    """

    vertex: str
    shapes: tuple[Shape, ...]
    origins: dict[Extent, tuple[Coordinate, ...]]
    numbers: NDArray[np.int64]
    starts: dict[int, NDArray[np.int64]]

    def bound(self, evaluator: Evaluator) -> "Candidates":
        """The same candidates with the numbers of `evaluator`."""
        vertex = evaluator.placed.index(self.vertex)
        numbers = [evaluator.shape(vertex, s.placement) for s in self.shapes]
        return dataclasses.replace(self, numbers=np.array(numbers, dtype=np.int64))

    def on(self, gpus: int) -> "Candidates":
        """Those on `gpus` GPUs."""
        return self.only(*(i for i, s in enumerate(self.shapes) if s.gpus == gpus))

    def only(self, *chosen: int) -> "Candidates":
        """Those of the shapes at these positions."""
        return dataclasses.replace(
            self, shapes=tuple(self.shapes[i] for i in chosen), numbers=self.numbers[list(chosen)]
        )

    def __len__(self) -> int:
        return sum(len(self.origins[s.placement.extent]) for s in self.shapes)

    def __iter__(self) -> Iterator[Placement]:
        for shape in self.shapes:
            yield from self.placements(shape)

    def placements(self, shape: Shape) -> list[Placement]:
        """The candidates of one shape."""
        return [shape.at(origin) for origin in self.origins[shape.placement.extent]]

    @cached_property
    def sizes(self) -> list[int]:
        """The numbers of GPUs that occur, ascending."""
        return sorted({s.gpus for s in self.shapes})

    @cached_property
    def numbers_on(self) -> dict[int, NDArray[np.int64]]:
        """Shape numbers by number of GPUs, in order."""
        gpus = np.array([s.gpus for s in self.shapes], dtype=np.int64)
        return {n: self.numbers[gpus == n] for n in self.sizes}


def _worth_spreading(shapes: Iterable[Shape]) -> list[Shape]:
    """`shapes`, sorted, without those that another P_e in the same layout beats in time or memory and equals
    in the other: how experts are spread changes nothing else."""
    kept: list[Shape] = []
    least: dict[Placement, int] = {}
    for shape in shapes:
        layout = msgspec.structs.replace(shape.placement, expert_parallel=1)
        if layout not in least or shape.nbytes < least[layout]:
            least[layout] = shape.nbytes
            kept.append(shape)
    return kept


class Enumeration:
    """One enumeration of a vertex's candidates: what passed each constraint, in the order of `STAGES`.

    `fixed` holds the fields that the plan in the file fixes; `least` is the placement that needs least memory
    of those that memory was asked of, with its bytes. `fixed_microbatches` (ablation A3) leaves one
    number: P_p for generation and inference, 2 P_p for training, 1 without a pipeline. A generation runs in
    the fewest waves that fit alone, twice as many, and so on, `wave_levels` numbers in all.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        rules: Rules,
        fixed: PartialPlacement,
        *,
        fixed_microbatches: bool = False,
        wave_levels: int = WAVE_LEVELS,
    ) -> None:
        self.evaluator = evaluator
        self.rules = rules
        self.fixed = fixed
        self.fixed_microbatches = fixed_microbatches
        self.wave_levels = wave_levels
        self.passed: set[str] = set()
        self.least: tuple[Placement, int] | None = None
        self._origins: dict[Extent, tuple[Coordinate, ...]] = {}

    def candidates(self) -> Candidates:
        """All candidates; possibly none."""
        shapes = _worth_spreading(sorted(self._shapes(), key=lambda s: s.key))
        extents = {s.placement.extent for s in shapes}
        origins = {extent: self._origins[extent] for extent in extents}
        _, nodes, per_node = self.rules.problem.device_space
        starts = {
            e[0] * e[1] * e[2]: np.array(
                [(r * nodes + n) * per_node + g for r, n, g in found], dtype=np.int64
            )
            for e, found in origins.items()
        }
        name = self.rules.vertex.name
        unbound = Candidates(name, tuple(shapes), origins, np.empty(0, dtype=np.int64), starts)
        return unbound.bound(self.evaluator)

    def leanest(self) -> Placement | None:
        """Of the placements on most GPUs the one that needs least memory (of several the first in the order
        of candidates); None if none is legal."""
        legal = list(self._legal())
        least = min(((-p.layout.gpus, nbytes) for p, nbytes in legal), default=None)
        alike = (self._shape(p, nbytes) for p, nbytes in legal if (-p.layout.gpus, nbytes) == least)
        return min(alike, key=lambda s: s.key).placement if least is not None else None

    def possible(self) -> bool:
        """Whether any placement is legal, whatever memory it needs; found without asking a cost model."""
        return any(
            self.fixed.waves is None or self.rules.waves(p.data_parallel, self.fixed.waves) is None
            for p in self._placed()
        )

    @property
    def emptied_by(self) -> str | None:
        """The first constraint that nothing passed."""
        return next((stage for stage in STAGES if stage not in self.passed), None)

    def degrees(self) -> Iterator[tuple[int, int, int, int, int]]:
        """(P_d, P_p, P_t, P_c, P_e) that pass P1, P2, P3, P6 and P8."""
        rules, fixed = self.rules, self.fixed
        per_node = rules.problem.device_space[2]
        tps = self._pass("tensor", rules.tensor, fixed.tensor_parallel, range(1, per_node + 1))
        pps = self._pass("pipeline", rules.pipeline, fixed.pipeline_parallel, divisors(rules.model.layers))
        dps = self._pass("data", rules.data, fixed.data_parallel, divisors(rules.problem.workload.prompts))
        cps = rules.context_options() if fixed.context_parallel is None else [fixed.context_parallel]
        for tp, pp, dp, cp in itertools.product(tps, pps, dps, cps):
            if rules.packing(pp, tp) or rules.context(cp) or rules.gpus(dp * pp * tp * cp):
                continue
            ranks = dp * tp * cp
            eps = rules.expert_options(ranks) if fixed.expert_parallel is None else [fixed.expert_parallel]
            for ep in eps:
                if rules.experts(ep, ranks) is None:
                    self.passed.add("packing")
                    yield dp, pp, tp, cp, ep

    def _pass(
        self, stage: str, rule: Callable[[int], str | None], fixed: int | None, options: Iterable[int]
    ) -> list[int]:
        found = [x for x in (options if fixed is None else [fixed]) if rule(x) is None]
        if found:
            self.passed.add(stage)
        return found

    def _microbatches(self, dp: int, pp: int) -> list[int]:
        options = self.rules.microbatch_options(dp, pp)
        if self.fixed_microbatches:
            wanted = 1 if pp == 1 else pp * (2 if self.rules.vertex.role == "training" else 1)
            options = [m for m in options if m == wanted]
        if self.fixed.microbatches is not None:
            options = [m for m in options if m == self.fixed.microbatches]
        if options:
            self.passed.add("microbatches")
        return options

    def _where(self, extent: Extent) -> tuple[Coordinate, ...]:
        known = self._origins.get(extent)
        if known is None:
            fixed = self.fixed.origin
            found = self.rules.origins(extent)
            known = tuple(o for o in found if fixed is None or o == fixed)
            self._origins[extent] = known
        if known:
            self.passed.add("origin")
        return known

    def _shapes(self) -> Iterator[Shape]:
        """Every legal placement that fits in memory alone."""
        for p, nbytes in self._legal():
            if nbytes <= self.evaluator.limit_bytes:
                self.passed.add("memory")
                yield self._shape(p, nbytes)

    def _shape(self, p: Placement, nbytes: int) -> Shape:
        vertex = self.evaluator.placed.index(self.rules.vertex.name)
        time_ns = self.evaluator.operator_ns(vertex, self.evaluator.shape(vertex, p))
        return Shape(placement=p, gpus=p.layout.gpus, time_ns=time_ns, nbytes=nbytes)

    def _legal(self) -> Iterator[tuple[Placement, int]]:
        """Every legal placement at its first origin, with the bytes it needs alone, whether it has them or
        not."""
        for placement in self._placed():
            yield from self._in_memory(placement)

    def _placed(self) -> Iterator[Placement]:
        """Every legal placement at its first origin, in one wave."""
        for dp, pp, tp, cp, ep in self.degrees():
            extent = self.rules.extent_of(dp * pp * tp * cp)
            options = self._microbatches(dp, pp)
            if not options or self.fixed.extent not in (None, extent):
                continue
            self.passed.add("extent")
            origins = self._where(extent)
            if not origins:
                continue
            for mb in options:
                yield Placement(
                    origin=origins[0],
                    extent=extent,
                    data_parallel=dp,
                    pipeline_parallel=pp,
                    tensor_parallel=tp,
                    microbatches=mb,
                    context_parallel=cp,
                    expert_parallel=ep,
                )

    def _in_memory(self, placement: Placement) -> Iterator[tuple[Placement, int]]:
        """The placement with the bytes it needs alone; a generation with the smallest number of waves that
        fits, and some more for plans in which it shares its GPUs."""
        for waves in self._wave_options(placement):
            p = _in_waves(placement, waves)
            nbytes = self._nbytes(p)
            if self.least is None or nbytes < self.least[1]:
                self.least = p, nbytes
            yield p, nbytes

    def _wave_options(self, placement: Placement) -> list[int]:
        dp = placement.data_parallel
        if self.fixed.waves is not None:
            return [w for w in (self.fixed.waves,) if self.rules.waves(dp, w) is None]
        if self.rules.waves(dp, 2) is not None:
            return [1]
        most = self.rules.problem.workload.sequences // dp
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self._nbytes(_in_waves(placement, middle)) <= self.evaluator.limit_bytes:
                high = middle
            else:
                low = middle + 1
        return sorted({min(most, low << level) for level in range(self.wave_levels)})

    def _nbytes(self, placement: Placement) -> int:
        return self.evaluator.model.operator_bytes(self.rules.vertex, placement)


def _in_waves(placement: Placement, waves: int) -> Placement:
    return placement if waves == 1 else msgspec.structs.replace(placement, waves=waves)
