"""What a report says. The same object is printed by `rpegc report --json` and embedded in the page.

Times are whole nanoseconds from the start of the run, durations of parts are seconds, memory is in bytes.
"""

from typing import Literal

from ir_schema.base import NodeKind, Record, Role
from ir_schema.device import DeviceSpace
from ir_schema.problem import Workload
from ir_schema.stages import DeviceMemory, Microtask, Score, SearchReport
from passes.uncertainty import Uncertainty

Flow = Literal["operator", "data", "weights", "reshard"]


class HardwareSummary(Record, frozen=True, kw_only=True):
    """The hardware file: its name, whether its figures are nominal (not calibrated), one GPU's memory."""

    name: str
    nominal: bool
    memory_bytes: float
    notes: str


class Operator(Record, frozen=True, kw_only=True):
    """One row of the plan: a vertex, where and how it runs, and its share of one step.

    A fused vertex has no time of its own: `timed_as` is then the composite's name, whose time both share.
    `gpus` is 0 and the layout's degrees are None on the host.
    """

    name: str
    role: Role
    model: str | None
    timed_as: str
    allocation: str
    gpus: int
    data_parallel: int | None = None
    pipeline_parallel: int | None = None
    tensor_parallel: int | None = None
    context_parallel: int | None = None
    expert_parallel: int | None = None
    microbatches: int | None = None
    waves: int | None = None


class OperatorTime(Record, frozen=True, kw_only=True):
    """Time of an operator (or a fused pair) in one step: the sum and the parts [s] over its phases."""

    name: str
    members: tuple[str, ...]
    phases: int
    time_ns: int
    parts_s: dict[str, float]


class Transfer(Record, frozen=True, kw_only=True):
    """Transfers of one step that carry the same thing between the same two vertices, added up."""

    flow: Flow
    what: str
    source: str
    target: str
    count: int
    payload_bytes: float
    time_ns: int
    parts_s: dict[str, float]


class Bar(Record, frozen=True, kw_only=True):
    """One node of the schedule. `vertex` of a transfer is the consumer; `gpus` counts the reserved ones."""

    id: int
    kind: NodeKind
    flow: Flow
    label: str
    vertex: str
    members: tuple[str, ...]
    step: int
    phase: int | None
    phases: int
    what: str | None
    source: str | None
    start_ns: int
    finish_ns: int
    parts_s: dict[str, float]
    payload_bytes: float
    allocation: str
    source_allocation: str
    gpus: int
    layout: str
    reads: dict[str, int]
    writes: dict[str, int]
    predecessors: tuple[int, ...]
    critical: bool


class Lane(Record, frozen=True, kw_only=True):
    """GPUs with the same schedule: the nodes that reserve them, and the transfers that leave from them.

    A lane without devices holds host operators that do not overlap in time. `busy` is the reserved fraction
    of the makespan.
    """

    label: str
    devices: tuple[str, ...]
    nodes: tuple[int, ...]
    sends: tuple[int, ...]
    busy: float


class MemoryRegion(Record, frozen=True, kw_only=True):
    """GPUs with the same contents."""

    label: str
    devices: tuple[str, ...]
    memory: DeviceMemory


class TimedMicrotask(Record, frozen=True, kw_only=True):
    """A microtask of a fused pair, from the start of the composite."""

    task: Microtask
    start_ns: int
    finish_ns: int


class FusedPipeline(Record, frozen=True, kw_only=True):
    """How a fused pair of trainings fills its pipeline: microtasks in order, per position."""

    name: str
    members: tuple[str, str]
    second_model_reversed: bool
    makespan_ns: int
    positions: tuple[tuple[TimedMicrotask, ...], ...]


class CriticalShare(Record, frozen=True, kw_only=True):
    """How long the critical path runs through one vertex or one kind of transfer into it."""

    flow: Flow
    vertex: str
    time_ns: int


class PlacedVertex(Record, frozen=True, kw_only=True):
    """A vertex of the drawn graph: its layer (longest path) and the centre of its box across the layer, in
    units of one box."""

    name: str
    layer: int
    y: float


class RoutedEdge(Record, frozen=True, kw_only=True):
    """An edge of the drawn graph with all it carries; `bends` are its positions in the layers between."""

    source: str
    target: str
    publication: bool
    containers: tuple[str, ...]
    bends: tuple[tuple[int, float], ...]


class Drawing(Record, frozen=True, kw_only=True):
    """The compact graph laid out in layers from left to right; `y` runs from 0 to `height`."""

    vertices: tuple[PlacedVertex, ...]
    edges: tuple[RoutedEdge, ...]
    layers: int
    height: float


class Alternative(Record, frozen=True, kw_only=True):
    """Another plan that the search scored, in the figures of this one. `indistinguishable`: the uncertainty
    of predictions does not tell the two step times apart; None where it is not known."""

    name: str
    score_tokens_per_s: float
    tokens_per_s: float
    step_time_s: float
    gpu_hours_per_step: float
    indistinguishable: bool | None = None


class Report(Record, frozen=True, kw_only=True):
    """Everything the page shows. Every figure of time and memory is predicted by the cost model."""

    name: str
    about: str
    stage: str
    stage_id: str
    cost_model: str
    as_printed: bool
    split: str
    fused: tuple[str, str] | None
    steps: int
    shown_step: int
    staleness: dict[str, int]
    hardware: HardwareSummary
    device_space: DeviceSpace
    gpus: int
    workload: Workload
    score: Score
    uncertainty: Uncertainty
    notices: tuple[str, ...]
    operators: tuple[Operator, ...]
    operator_times: tuple[OperatorTime, ...]
    transfers: tuple[Transfer, ...]
    fused_pipelines: tuple[FusedPipeline, ...]
    nodes: tuple[Bar, ...]
    lanes: tuple[Lane, ...]
    critical_path: tuple[int, ...]
    critical_shares: tuple[CriticalShare, ...]
    memory: tuple[MemoryRegion, ...]
    graph: Drawing
    alternatives: tuple[Alternative, ...]
    search: SearchReport | None
