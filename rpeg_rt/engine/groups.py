"""Process groups of a layout on an explicit list of ranks.

Megatron's global parallel state allows one layout per process, so it is never initialised; every module
is given the groups it works in.
"""

import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch.distributed as dist

from ir_schema.problem import Layout
from rpeg_rt.engine.context import Share
from rpeg_rt.engine.sharding import Position, in_lockstep, position_of
from rpeg_rt.engine.shim import ProcessGroupCollection

_created: dict[tuple[int, ...], dist.ProcessGroup] = {}
_layouts: dict[tuple[tuple[int, ...], Layout], "LayoutGroups"] = {}


@dataclass(frozen=True)
class LayoutGroups:
    """A layout on `ranks`; `collection` and `position` are None on a rank that is not a member.

    `ranks[i]` stands at `position_of(i, layout)`; `machines` are the names of all ranks' machines.
    """

    ranks: tuple[int, ...]
    layout: Layout
    position: Position | None
    collection: Any
    machines: tuple[str, ...]

    @property
    def member(self) -> bool:
        """Whether this rank takes part."""
        return self.position is not None

    @property
    def place(self) -> Position:
        """This rank's position; an error on a rank that is not a member."""
        if self.position is None:
            raise ValueError(f"rank {dist.get_rank()} is not one of {self.ranks}")
        return self.position

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank embeds tokens."""
        return self.place.pipeline == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank computes logits and values."""
        return self.place.pipeline == self.layout.pipeline_parallel - 1

    @property
    def lockstep(self) -> bool:
        """Whether all replicas make the same passes through the model."""
        return in_lockstep(self.layout)

    @property
    def share(self) -> Share:
        """This rank's share of every sequence of its replica."""
        return Share(self.place.context, self.layout.context_parallel)

    def stage_rank(self, stage: int) -> int:
        """Global rank of another pipeline stage of this rank's replica, context and tensor index."""
        return int(_grid(self.ranks, self.layout)[self.place._replace(pipeline=stage)])

    def between_machines(self, stage: int) -> bool:
        """Whether this rank's tensor group and that of another pipeline stage are on one machine each, and
        these are two."""
        grid = _grid(self.ranks, self.layout)
        here, there = (
            {self.machines[rank] for rank in grid[self.place._replace(pipeline=s)[:-1]]}
            for s in (self.place.pipeline, stage)
        )
        return len(here) == len(there) == 1 and here != there


def make_layout(ranks: Sequence[int], layout: Layout) -> LayoutGroups:
    """Process groups of `layout` on `ranks`, created once per distinct (ranks, layout).

    Collective over the whole world: every rank makes the same calls in the same order, members or not.
    Layouts share groups of equal ranks.
    """
    key = (tuple(ranks), layout)
    if key not in _layouts:
        if len(set(ranks)) != layout.gpus:
            raise ValueError(f"a layout of {layout.gpus} ranks was given ranks {list(ranks)}")
        _layouts[key] = _make(key[0], layout)
    return _layouts[key]


@cache
def _grid(ranks: tuple[int, ...], layout: Layout) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Ranks by position."""
    shape = Position(
        data=layout.data_parallel,
        pipeline=layout.pipeline_parallel,
        context=layout.context_parallel,
        tensor=layout.tensor_parallel,
    )
    grid = np.empty(shape, dtype=np.int64)
    for i, rank in enumerate(ranks):
        grid[position_of(i, layout)] = rank
    return grid


def _make(ranks: tuple[int, ...], layout: Layout) -> LayoutGroups:
    grid = _grid(ranks, layout)
    axes = ("t", "p", "d", "pt", "dct", "dpct", "", "c", "dc", "ct")
    mine = {inside: _own_group(_rows(grid, inside)) for inside in axes}
    expert = layout.expert_parallel
    planes = _rows(grid, "dct")
    holding = _own_group([plane[i : i + expert] for plane in planes for i in range(0, len(plane), expert)])
    sharing = _own_group([plane[i::expert] for plane in planes for i in range(expert)])
    ends = _own_group(_rows(grid[:, [0, -1]], "p")) if layout.pipeline_parallel > 1 else None
    machines = _machines()
    if dist.get_rank() not in ranks:
        return LayoutGroups(ranks, layout, None, None, machines)
    collection = ProcessGroupCollection(
        tp=mine["t"],
        pp=mine["p"],
        mp=mine["pt"],
        dp=mine["d"],
        dp_cp=mine["dc"],
        intra_dp_cp=mine["dc"],
        cp=mine["c"],
        tp_cp=mine["ct"],
        tp_dp_cp=mine["dct"],
        embd=ends,
        pos_embd=None,
        ep=holding,
        expt_tp=mine[""],
        tp_ep=holding,
        tp_ep_pp=mine["dpct"],
        expt_dp=sharing,
        intra_expt_dp=sharing,
        intra_dist_opt=mine["dpct"],
    )
    position = position_of(ranks.index(dist.get_rank()), layout)
    return LayoutGroups(ranks, layout, position, collection, machines)


@cache
def _machines() -> tuple[str, ...]:
    """The name of every rank's machine. Collective over the whole world at its first call."""
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, socket.gethostname())
    return tuple(names)


def _rows(grid: "np.ndarray[Any, np.dtype[np.int64]]", inside: str) -> list[list[int]]:
    """The ranks of each group whose members differ in the axes `inside` (letters of "dpct") alone."""
    apart = [axis for axis, letter in enumerate("dpct") if letter not in inside]
    within = [axis for axis, letter in enumerate("dpct") if letter in inside]
    size = math.prod(grid.shape[axis] for axis in within)
    rows: list[list[int]] = grid.transpose(apart + within).reshape(-1, size).tolist()
    return rows


def _own_group(rows: list[list[int]]) -> dist.ProcessGroup | None:
    """Create a group per row of ranks (in the given order of ranks); return the one this rank is in."""
    own = None
    for row in rows:
        key = tuple(row)
        if key not in _created:
            _created[key] = dist.new_group(row, sort_ranks=False)
        if dist.get_rank() in row:
            own = _created[key]
    return own
