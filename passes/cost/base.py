"""The interface of a cost model: a time for every node, a peak for every device (semantics: Cost).

A cost model is one class registered in the entry-point group `rpegc.cost_models`. It is built once per
problem and must be pure: the same arguments give the same numbers. Every duration is returned as its
parts in seconds, in the order in which they are added.
"""

import abc
from collections.abc import Sequence
from typing import ClassVar

from ir_schema.base import Record
from ir_schema.device import Allocation
from ir_schema.problem import Placement, Problem, Vertex
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
    def fused(self, members: tuple[Vertex, Vertex], placement: Placement, second: Placement) -> FusedCost:
        """Microtask durations and remaining terms of two training vertices fused on one allocation.

        The placements of first and second differ at most in their microbatches.
        """

    @abc.abstractmethod
    def transfer(self, node: Node) -> Parts:
        """Parts [s] of a Comm or Reshard node."""

    @abc.abstractmethod
    def operator_bytes(self, vertex: Vertex, placement: Placement) -> int:
        """Bytes that `vertex` alone needs on its fullest GPU (candidate filter)."""

    @abc.abstractmethod
    def memory(
        self, plan: dict[str, Placement], nodes: Sequence[Node]
    ) -> list[tuple[Allocation, DeviceMemory]]:
        """Peak of every GPU under `plan`, one entry per region of GPUs with equal contents.

        `plan` lacks host vertices; `nodes` is the lowered graph. See `passes.cost.memory.regions`.
        """
