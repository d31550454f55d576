"""The optimum over all candidates, where there are few enough plans to look at each (semantics: Search)."""

import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np

from ir_schema.problem import Placement
from passes.search.candidates import Candidates, Shape
from passes.search.constraints import Rules
from passes.search.ledger import FLOOR, MAX_LOSS, Ledger
from passes.search.space import Space

MOST_PLANS = 1_000_000
AT_ONCE = 1 << 15


def enumerable(spaces: Sequence[Space]) -> bool:
    """Whether all plans of all structures are few enough."""
    return sum(space.size for space in spaces) <= MOST_PLANS


def enumerate_all(spaces: Sequence[Space], ledger: Ledger) -> None:
    """Evaluate every plan that is not proven worse than the best one found so far.

    Of the plans that differ only in where they stand one is evaluated. Raises OutOfBudget when it is stopped.
    """
    for space in spaces:
        counts = [len(options) for options in space.options]
        tables = [_table(options) for options in space.options]
        total = int(np.prod(counts))
        for start in range(0, total, AT_ONCE):
            index = np.unravel_index(np.arange(start, min(total, start + AT_ONCE)), counts)
            rows = np.stack([table[i] for table, i in zip(tables, index, strict=True)], axis=1)
            rows = rows[space.allows(rows)]
            ceiling = ledger.ceiling(space.guess.judge(rows)[0])
            ledger.evaluate(space, rows[ceiling > _worth(ledger)])
            ledger.end_round()
            ledger.check()


def _worth(ledger: Ledger) -> float:
    """Plans of this Score or less cannot become the best."""
    if ledger.objective == "efficiency":
        return (1 - MAX_LOSS) * ledger.best_score * (1 - 1e-9)
    return FLOOR if ledger.best is None else ledger.value(ledger.best)


def _table(options: Candidates) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """(shape number, first GPU) of every candidate, in order."""
    return np.array(
        [
            (number, start)
            for shape, number in zip(options.shapes, options.numbers.tolist(), strict=True)
            for start in options.starts[shape.gpus].tolist()
        ],
        dtype=np.int64,
    ).reshape(-1, 2)


def with_waves(spaces: list[Space]) -> list[Space]:
    """The spaces with generations in every number of waves from the fewest that fit alone, in each layout: to
    the most that are legal, or to the most among the candidates, as far as plans stay few enough."""
    most = spaces[0].problem.workload.sequences
    for all_legal in (True, False):
        if all_legal and sum(space.size for space in spaces) * most > MOST_PLANS:
            continue
        waving = [_with_waves(space, all_legal=all_legal) for space in spaces]
        if enumerable(waving):
            return waving
    return spaces


def _with_waves(space: Space, *, all_legal: bool) -> Space:
    evaluator = space.evaluator
    vertices = {v.name: v for v in space.problem.graph.vertices}
    more: dict[str, Candidates] = {}
    for v, options in enumerate(space.options):
        name = space.vertices[v]
        rules, fixed = Rules(space.problem, vertices[name]), space.problem.plan.get(name)
        if fixed is not None and fixed.waves is not None:
            more[name] = options
            continue
        shapes = {s.placement: s for s in options.shapes}
        fewest: dict[Placement, Shape] = {}
        most: dict[Placement, int] = {}
        for s in options.shapes:
            one = msgspec.structs.replace(s.placement, waves=1)
            if one not in fewest or s.placement.waves < fewest[one].placement.waves:
                fewest[one] = s
            most[one] = max(s.placement.waves, most.get(one, 1))
        for one, first in fewest.items():
            last = rules.problem.workload.sequences // one.data_parallel if all_legal else most[one]
            for waves in range(first.placement.waves, last + 1):
                p = msgspec.structs.replace(first.placement, waves=waves)
                if p in shapes or rules.waves(p.data_parallel, waves) is not None:
                    continue
                number = evaluator.shape(v, p)
                shapes[p] = dataclasses.replace(
                    first,
                    placement=p,
                    time_ns=evaluator.operator_ns(v, number),
                    nbytes=evaluator.model.operator_bytes(rules.vertex, p),
                )
        ordered = tuple(sorted(shapes.values(), key=lambda s: s.key))
        more[name] = dataclasses.replace(options, shapes=ordered).bound(evaluator)
    return dataclasses.replace(space, candidates=more)
