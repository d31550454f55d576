"""The interface of a cost model: a time for every node, a peak for every device (`03-cost`).

A cost model is one class registered in the entry-point group `rpegc.cost_models`. It is built once per
problem and must be pure: the same arguments give the same numbers. Every duration is returned as its
parts in seconds, in the order in which they are added.
"""

import abc
from collections.abc import Sequence
from typing import ClassVar

from ir_schema.base import Record, Tier
from ir_schema.device import Allocation
from ir_schema.problem import Layout, Placement, Problem, Vertex
from ir_schema.stages import DeviceMemory, Node

Parts = dict[str, float]


class FusedCost(Record, frozen=True, kw_only=True):
    """What a fused pair of training operators costs beside its microtasks.

    `forward_ns` and `backward_ns` are one microtask's duration per member model; `parts` the remaining
    terms of both models, already added.
    """

    forward_ns: tuple[int, int]
    backward_ns: tuple[int, int]
    microbatches: tuple[int, int]
    parts: Parts


def nanoseconds(parts: Parts) -> int:
    """Whole nanoseconds of a duration given by its parts, added in their order, rounded half to even."""
    total = 0.0
    for seconds in parts.values():
        total += seconds
    return round(total * 1e9)


class CostModel(abc.ABC):
    """Times and memory of one problem's operators and transfers.

    `supports_accumulation` says whether microbatches without a pipeline, token-based lower bounds (P4, P5
    as decided) and generation waves are legal under this model.
    """

    name: ClassVar[str]
    supports_accumulation: ClassVar[bool]

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abc.abstractmethod
    def parameters(self, model: str) -> int:
        """N_m, the number of parameters of `model`."""

    @abc.abstractmethod
    def operator(self, vertex: Vertex, placement: Placement) -> Parts:
        """Parts [s] of the whole operator T_op (unsplit)."""

    @abc.abstractmethod
    def phase(self, vertex: Vertex, placement: Placement, phase: int) -> Parts:
        """Parts [s] of phase `phase` (from 1) of a split operator."""

    @abc.abstractmethod
    def fused(self, members: tuple[Vertex, Vertex], placement: Placement) -> FusedCost:
        """Microtask durations and remaining terms of two training vertices fused on one placement."""

    @abc.abstractmethod
    def comm(self, payload_bytes: int, source: Allocation, target: Allocation, tier: Tier) -> Parts:
        """Parts [s] of moving `payload_bytes` between allocations whose union spans `tier`."""

    @abc.abstractmethod
    def reshard(self, model: str, allocation: Allocation, source: Layout, target: Layout) -> Parts:
        """Parts [s] of changing the layout of the weights of `model` on one allocation."""

    @abc.abstractmethod
    def operator_bytes(self, vertex: Vertex, placement: Placement) -> int:
        """Bytes that `vertex` alone needs on its fullest GPU (candidate filter)."""

    @abc.abstractmethod
    def memory(self, plan: dict[str, Placement], nodes: Sequence[Node]) -> dict[str, DeviceMemory]:
        """Peak of every GPU of the device space under `plan`; `nodes` is the lowered graph."""
