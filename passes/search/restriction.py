"""Decision spaces: what a search may decide, to compare with systems that decide less.

Each earlier system can be read as a restriction of the space that a file allows (semantics: Evaluation).
A restriction is intersected with what the file allows; it never adds a choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ir_schema.base import Role
from ir_schema.problem import Problem
from passes.search.candidates import Shape
from passes.search.structures import Structure

Relation = Literal["any", "same", "disjoint", "same_or_disjoint"]


class NotAllowed(Exception):
    """No structure that the file allows lies in the decision space."""


@dataclass(frozen=True)
class DecisionSpace:
    """What may be decided.

    `relations` says how the allocations of two vertices must lie to each other, by their roles; a pair that
    is not listed may lie in any way. `least_staleness` is of the models that generate, `most_staleness` of
    all that are trained (None: any). `splitting`, `fusing` and `sharing` off leave those structures out.
    `fixed_microbatches` is ablation A3. With `smallest_layout` a vertex on n GPUs takes the smallest P_t,
    then the smallest P_p, whose memory fits; P_d follows.
    """

    name: str
    relations: tuple[tuple[Role, Role, Relation], ...] = ()
    least_staleness: int = 0
    most_staleness: int | None = None
    splitting: bool = True
    fusing: bool = True
    sharing: bool = True
    fixed_microbatches: bool = False
    smallest_layout: bool = False

    def relation(self, u: Role, v: Role) -> Relation:
        """How the allocations of two vertices of these roles must lie to each other."""
        return next((r for a, b, r in self.relations if (a, b) in ((u, v), (v, u))), "any")

    def allows(self, problem: Problem, structure: Structure) -> bool:
        """Whether `structure` of `problem`, as the file has it, is in the space."""
        generating = {v.model for v in problem.graph.vertices if v.role == "generation"}
        splits = structure.split != "never" and len(problem.workload.length_quantiles) > 1
        return (
            all(tau >= self.least_staleness for m, tau in structure.staleness if m in generating)
            and all(
                self.most_staleness is None or tau <= self.most_staleness for _, tau in structure.staleness
            )
            and (self.splitting or not splits)
            and (self.fusing or structure.fuse is None)
            and (self.sharing or structure.share is None)
        )

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Those of one vertex's `shapes`, all of which fit in memory alone, that the layout rule leaves."""
        if not self.smallest_layout:
            return list(shapes)
        smallest: dict[int, tuple[int, int]] = {}
        for s in shapes:
            smallest[s.gpus] = min(smallest.get(s.gpus, _degrees(s)), _degrees(s))
        return [s for s in shapes if _degrees(s) == smallest[s.gpus]]


def _degrees(shape: Shape) -> tuple[int, int]:
    return shape.placement.tensor_parallel, shape.placement.pipeline_parallel


def _everywhere(relation: Relation) -> tuple[tuple[Role, Role, Relation], ...]:
    roles: tuple[Role, ...] = ("generation", "inference", "training")
    return tuple((u, v, relation) for i, u in enumerate(roles) for v in roles[i:])


_ONE_PER_ROLE: tuple[tuple[Role, Role, Relation], ...] = (
    ("generation", "generation", "same"),
    ("inference", "inference", "same"),
    ("training", "training", "same"),
)
_GENERATION_APART: tuple[tuple[Role, Role, Relation], ...] = (
    *_ONE_PER_ROLE,
    ("generation", "inference", "disjoint"),
    ("generation", "training", "disjoint"),
    ("inference", "training", "same"),
)

EVERYTHING = DecisionSpace("rpeg")

PEERS = {
    space.name: space
    for space in (
        DecisionSpace("colocated", relations=_everywhere("same"), most_staleness=0),
        DecisionSpace(
            "real", most_staleness=0, splitting=False, fusing=False, sharing=False, fixed_microbatches=True
        ),
        DecisionSpace("rlhfuse", most_staleness=0, sharing=False, fixed_microbatches=True),
        DecisionSpace("areal", relations=_GENERATION_APART, least_staleness=1),
        DecisionSpace("asyncflow", relations=_GENERATION_APART, least_staleness=1),
        DecisionSpace(
            "rlinf",
            relations=(
                *_ONE_PER_ROLE,
                ("generation", "inference", "same_or_disjoint"),
                ("generation", "training", "same_or_disjoint"),
                ("inference", "training", "same_or_disjoint"),
            ),
            fusing=False,
            sharing=False,
            smallest_layout=True,
        ),
        DecisionSpace("split", relations=_GENERATION_APART, most_staleness=1),
        EVERYTHING,
    )
}
"""The systems of the comparison by name; the last is free in everything that the file allows."""
