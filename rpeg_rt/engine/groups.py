"""Process groups of a layout on an explicit list of ranks.

Megatron's global parallel state allows one layout per process, so it is never initialised; every module
is given the groups it works in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ir_schema.problem import Layout
from rpeg_rt.engine.sharding import Position


@dataclass(frozen=True)
class LayoutGroups:
    """A layout on `ranks`; `collection` and `position` are None on a rank that is not a member."""

    ranks: tuple[int, ...]
    layout: Layout
    position: Position | None
    collection: Any

    @property
    def member(self) -> bool:
        """Whether this rank takes part."""
        return self.position is not None


def make_layout(ranks: Sequence[int], layout: Layout) -> LayoutGroups:
    """Process groups of `layout` on `ranks`, created once per distinct (ranks, layout).

    Collective over the whole world: every rank makes the same calls in the same order, members or not.
    """
    raise NotImplementedError
