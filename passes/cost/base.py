"""The interface of a cost model: a time for every node, a peak for every device (semantics: Cost).

A cost model is one class registered in the entry-point group `rpegc.cost_models`. It is built once per
problem and must be pure: the same arguments give the same numbers. Every duration is returned as its
parts in seconds, in the order in which they are added.
"""

import abc
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

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


class ClosedForm(NamedTuple):
    """How a model's transfers and memory follow from figures of links and shapes, so that compiled code can
    evaluate plans without asking the model (`passes.fast`).

    `rule` names the formulas: those of `passes.cost.paper` or of `passes.cost.megatron`. Links are
    (alpha [s], beta [s/byte]) by tier (intra, inter, rack); `copy_bandwidth` [bytes/s] is that of a GPU's
    memory.
    """

    rule: Literal["paper", "megatron"]
    point_to_point: tuple[tuple[float, float], ...]
    collective: tuple[tuple[float, float], ...]
    copy_bandwidth: float


class ShapeBytes(NamedTuple):
    """What one vertex in one shape contributes to the memory of a GPU [bytes], in the order of addition.

    `weights` is a shard of its model, `copies` what is served from while it stays on the GPU, `state` the
    parts of a training state, `transient` those of its transient (under `paper` (act, kv, weights, grad)
    with weights not resident).
    """

    weights: float
    copies: float
    state: tuple[float, ...]
    transient: tuple[float, ...]


class CostModel(abc.ABC):
    """Times and memory of one problem's operators and transfers.

    `supports_accumulation` says whether microbatches without a pipeline, token-based lower bounds (P4, P5
    as decided) and generation waves are legal under this model.
    """

    name: ClassVar[str]
    supports_accumulation: ClassVar[bool]

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def closed_form(self) -> ClosedForm | None:
        """The model's closed form; None if it has none, and plans are then evaluated by asking the model.

        It holds for the class that defines it, not for those derived from it. A model that has one also
        defines `shape_bytes`.
        """
        return None

    def shape_bytes(self, vertex: Vertex, placement: Placement) -> ShapeBytes:
        """What `memory` is made of, for one vertex and shape; only asked of models with a closed form."""
        raise NotImplementedError(f"cost model {self.name} has no closed form")

    @abc.abstractmethod
    def parameters(self, model: str) -> int:
        """N_m, the number of parameters of `model`."""

    @abc.abstractmethod
    def operator(self, vertex: Vertex, placement: Placement) -> Parts:
        """Parts [s] of the whole operator T_op (unsplit)."""

    @abc.abstractmethod
    def phase(self, vertex: Vertex, placement: Placement, phase: int) -> Parts:
        """Parts [s] of phase `phase` (from 1) of a split operator."""

    def node_ns(self, vertex: Vertex, placement: Placement) -> int:
        """Nanoseconds for which one worker of an operator would occupy all processors of its node, where the
        node's workers share them: its processor time over their number. 0: each has processors of its own."""
        return 0

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
