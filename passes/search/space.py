"""What is searched for one structure: its problem, its evaluator, and every vertex's candidates."""

import dataclasses
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from ir_schema.base import Objective
from ir_schema.diagnostics import Diagnostic
from ir_schema.problem import PartialPlacement, Problem
from passes.cost.base import CostModel
from passes.search.candidates import WAVE_LEVELS, Candidates, Enumeration
from passes.search.constraints import Rules
from passes.search.evaluator import Evaluator, Rows
from passes.search.guess import Guess
from passes.search.legality import explain
from passes.search.restriction import EVERYTHING, DecisionSpace, Relation, lie
from passes.search.structures import Structure

Enumerated = tuple[Candidates, list[Diagnostic]]
Block = tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """The plans of one structure. `index` is the structure's position in Y_cand."""

    index: int
    structure: Structure
    problem: Problem
    evaluator: Evaluator
    candidates: Mapping[str, Candidates]
    within: DecisionSpace = EVERYTHING
    objective: Objective = "throughput"

    @property
    def vertices(self) -> tuple[str, ...]:
        """The vertices to be placed, by index."""
        return self.evaluator.placed

    @cached_property
    def options(self) -> list[Candidates]:
        """Candidates by vertex number."""
        return [self.candidates[v] for v in self.vertices]

    @cached_property
    def fronts(self) -> list[dict[int, NDArray[np.int64]]]:
        """By vertex number and number of GPUs, the shapes than which no other is as fast and needs as little
        memory, both that stays and that comes and goes; fastest first."""
        found = []
        for v, options in enumerate(self.options):
            kept: dict[int, list[tuple[float, float, int]]] = {n: [] for n in options.sizes}
            for shape, number in zip(options.shapes, options.numbers.tolist(), strict=True):
                stays, comes = self.guess.memory(v, number) or (0.0, float(shape.nbytes))
                if not any(s <= stays and c <= comes for s, c, _ in kept[shape.gpus]):
                    kept[shape.gpus].append((stays, comes, number))
            found.append({n: np.array([k[-1] for k in front]) for n, front in kept.items()})
        return found

    @cached_property
    def guess(self) -> Guess:
        """Bounds and guesses of rows."""
        return Guess(self.evaluator, self.objective)

    @property
    def size(self) -> int:
        """Number of plans made of candidates."""
        count = 1
        for options in self.options:
            count *= len(options)
        return count

    @cached_property
    def relations(self) -> list[tuple[int, int, Relation]]:
        """Pairs of vertices whose allocations may not lie in any way."""
        role = {v.name: v.role for v in self.problem.graph.vertices}
        pairs = itertools.combinations(range(len(self.vertices)), 2)
        related = [
            (u, v, self.within.relation(role[self.vertices[u]], role[self.vertices[v]])) for u, v in pairs
        ]
        return [(u, v, r) for u, v, r in related if r != "any"]

    @cached_property
    def blocks(self) -> list[Block]:
        """The vertices in groups whose allocations must be the same, by smallest number."""
        block = list(range(len(self.vertices)))
        for u, v, relation in self.relations:
            if relation == "same":
                block = [block[u] if b == block[v] else b for b in block]
        return [tuple(v for v, b in enumerate(block) if b == c) for c in dict.fromkeys(block)]

    def allows(self, rows: Rows, without: Collection[int] = ()) -> NDArray[np.bool_]:
        """Whether the decision space contains each of `rows`, which are made of candidates, (N,); whatever
        the vertices `without` do."""
        allowed = np.ones(len(rows), dtype=bool)
        if not self.relations:
            return allowed
        first, gpus = rows[:, :, 1], self.guess.gpus(rows)
        for u, v, relation in self.relations:
            if u not in without and v not in without:
                allowed &= lie(relation, first[:, u], gpus[:, u], first[:, v], gpus[:, v])
        return allowed


def build(
    index: int,
    structure: Structure,
    problem: Problem,
    *,
    excluded: int = 0,
    fixed_microbatches: bool = False,
    wave_levels: int = WAVE_LEVELS,
    within: DecisionSpace = EVERYTHING,
    objective: Objective = "throughput",
    threads: int = 1,
    known: dict[object, Enumerated] | None = None,
    models: dict[bytes, CostModel] | None = None,
) -> tuple[Space, list[Diagnostic]]:
    """The space of `structure`, and why candidate sets are empty if any is.

    `known` carries candidates over between structures that differ in how they split and fuse, and in the
    staleness of other models, only; `models` cost models with a closed form, which does not depend on how a
    structure splits and fuses.
    """
    known = {} if known is None else known
    models = {} if models is None else models
    unstructured = msgspec.structs.replace(
        problem, plan={}, options=msgspec.structs.replace(problem.options, split="never", fuse=None)
    )
    same = msgspec.json.encode(unstructured)
    evaluator = Evaluator(problem, threads, models.get(same))
    if evaluator.engine.closed:
        models[same] = evaluator.model
    alike = (
        tuple((v.name, v.role, v.model) for v in problem.graph.vertices),
        tuple(problem.models.items()),
    )
    candidates: dict[str, Candidates] = {}
    found: list[Diagnostic] = []
    for v in problem.graph.vertices:
        if v.model is None:
            continue
        identity = (alike, v.name, problem.graph.staleness.get(v.model, 0))
        if identity not in known:
            fixed = problem.plan.get(v.name, PartialPlacement())
            enumeration = Enumeration(
                evaluator,
                Rules(problem, v, excluded),
                fixed,
                fixed_microbatches=fixed_microbatches,
                wave_levels=wave_levels,
            )
            enumerated = enumeration.candidates()
            reasons = [] if len(enumerated) else explain(enumeration)
            enumerated = dataclasses.replace(enumerated, shapes=tuple(within.shapes(enumerated.shapes)))
            known[identity] = enumerated, reasons
        unbound, reasons = known[identity]
        candidates[v.name] = unbound.bound(evaluator)
        found += reasons
    return Space(index, structure, problem, evaluator, candidates, within, objective), found
