"""Decision spaces: what a search may decide, to compare with systems that decide less.

Each earlier system can be read as a restriction of the space that a file allows (semantics: Evaluation).
A restriction is intersected with what the file allows; it never adds a choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ir_schema.base import Role
from ir_schema.problem import Problem
from passes.search.candidates import Shape
from passes.search.structures import Structure

Relation = Literal["any", "same", "disjoint", "same_or_disjoint"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def lie(relation: Relation, first: Ints, gpus: Ints, other_first: Ints, other_gpus: Ints) -> Bools:
    """Whether allocations, each of `gpus` from GPU `first` on, lie to the others as `relation` says."""
    same = (first == other_first) & (gpus == other_gpus)
    apart = (first + gpus <= other_first) | (other_first + other_gpus <= first)
    kinds: dict[Relation, Bools] = {
        "any": np.ones_like(same),
        "same": same,
        "disjoint": apart,
        "same_or_disjoint": same | apart,
    }
    return kinds[relation]


class NotAllowed(Exception):
    """Nothing that the file allows lies in the decision space; the message is what the space needs."""


@dataclass(frozen=True)
class DecisionSpace:
    """What may be decided. `summary` tells it in words; spaces are equal when the same may be decided.

    `relations` says how the allocations of two vertices must lie to each other, by their roles; a pair that
    is not listed may lie in any way. `least_staleness` is of the models that generate, `most_staleness` of
    all that are trained (None: any). `splitting`, `fusing` and `sharing` off leave those structures out.
    `fixed_microbatches` is ablation A3. With `smallest_layout` a vertex on n GPUs takes the smallest P_t,
    then the smallest P_p, whose memory fits; P_d follows.
    """

    name: str = field(compare=False)
    summary: str = field(compare=False)
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
        return not self._missing(problem, structure)

    def needs(self, problem: Problem, found: Sequence[Structure]) -> str:
        """What the space needs that the nearest of the structures `found`, none of which it allows, lacks."""
        fewest = min((self._missing(problem, structure) for structure in found), key=lambda m: (len(m), m))
        return " and ".join(fewest)

    def _missing(self, problem: Problem, structure: Structure) -> list[str]:
        """What keeps `structure` of `problem` out of the space."""
        generating = {v.model for v in problem.graph.vertices if v.role == "generation"}
        splits = structure.split != "never" and len(problem.workload.length_quantiles) > 1
        least, most = self.least_staleness, self.most_staleness
        missing = []
        for model, tau in structure.staleness:
            if model in generating and tau < least:
                missing.append(f"staleness {least} or more of `{model}`")
            if most is not None and tau > most:
                missing.append(f"staleness {most}{' or less' if most else ''} of `{model}`")
        if splits and not self.splitting:
            missing.append("no splitting")
        if structure.fuse is not None and not self.fusing:
            missing.append("no fused training")
        if structure.share is not None and not self.sharing:
            missing.append("no shared backbone")
        return missing

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

EVERYTHING = DecisionSpace("rpeg", "everything that the file allows")

PEERS = {
    space.name: space
    for space in (
        DecisionSpace(
            "colocated",
            "verl's hybrid engine: all operators on the same GPUs, synchronous",
            relations=_everywhere("same"),
            most_staleness=0,
        ),
        DecisionSpace(
            "real",
            "ReaL: GPUs and layouts free, microbatches fixed, synchronous; no splitting, fusing, sharing",
            most_staleness=0,
            splitting=False,
            fusing=False,
            sharing=False,
            fixed_microbatches=True,
        ),
        DecisionSpace(
            "rlhfuse",
            "RLHFuse: as real, with splitting and fused training",
            most_staleness=0,
            sharing=False,
            fixed_microbatches=True,
        ),
        DecisionSpace(
            "areal",
            "AReaL: generation on its own GPUs, all else together on others, staleness of 1 or more",
            relations=_GENERATION_APART,
            least_staleness=1,
        ),
        DecisionSpace("asyncflow", "AsyncFlow: as areal", relations=_GENERATION_APART, least_staleness=1),
        DecisionSpace(
            "rlinf",
            "RLinf: one group of GPUs per role, the same or disjoint; the smallest layouts that fit alone; "
            "no fusing, sharing",
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
        DecisionSpace(
            "split",
            "disaggregated verl, NeMo-RL: as areal, with a staleness of 0 or 1",
            relations=_GENERATION_APART,
            most_staleness=1,
        ),
    )
}
"""The systems that are compared with by name."""
