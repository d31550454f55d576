"""The stages between a problem and an executable file, one type each.

    Problem -> Configuration -> Unrolled -> Lowered -> Costed -> Scheduled -> Executable

Every stage embeds the configuration it came from, so that each stage file can be resumed alone.
Node ids are insertion order; predecessors are node ids. Times are whole nanoseconds and peaks whole
bytes, so that a stage is the same on every platform; the payload of a phase may be a fraction of a byte.
"""

from typing import Literal

from ir_schema.base import NodeKind, Record
from ir_schema.device import Allocation
from ir_schema.problem import Layout, Placement, Problem


class Ties(Record, frozen=True, kw_only=True):
    """Plans whose step time the uncertainty of predictions does not tell from that of the chosen one, at
    `coverage`: so many of the `kept` other plans, the best of every structure, and which baselines.
    """

    coverage: float
    kept: int
    indistinguishable: int
    baselines: tuple[str, ...] = ()


class SearchReport(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How a configuration was found. Wall-clock figures are not kept here: results must repeat.

    No plan of the space that was searched has a step time below `lower_bound_s`; `optimality_gap` is
    (step time - bound) / step time of the plan that was found, 0 where it is proven optimal. Both are None
    where nothing was proven. `ties` is None where the hardware file does not say how far predictions are off.
    """

    method: str
    evaluations: int = 0
    cache_hits: int = 0
    seed: int = 0
    termination: str = "none"
    lower_bound_s: float | None = None
    optimality_gap: float | None = None
    candidates: dict[str, int] = {}
    baselines: dict[str, float] = {}
    ties: Ties | None = None
    notes: tuple[str, ...] = ()


class Configuration(Record, frozen=True, kw_only=True):
    """C* = (G0, P): a problem whose structural choices are made (its `search` is None, its `plan` empty)
    and the complete plan."""

    problem: Problem
    plan: dict[str, Placement]
    search: SearchReport | None = None


class UnrolledVertex(Record, frozen=True, kw_only=True):
    """Vertex `vertex` at step `step`, with the model versions it reads and writes."""

    id: int
    vertex: str
    vertex_index: int
    step: int
    reads: dict[str, int]
    writes: dict[str, int]


class UnrolledEdge(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A dependence between unrolled vertices (by id).

    data: a container inside a step; publication: weights to a later step; order: training steps of one
    model; run_ahead: bound on steps in flight; overwrite: serving before training of the same step (E*).
    """

    kind: Literal["data", "publication", "order", "run_ahead", "overwrite"]
    source: int
    target: int
    container: str | None = None


class Unrolled(Record, frozen=True, kw_only=True):
    """The graph over steps 0..K-1; vertex ids are step * |V| + vertex index."""

    configuration: Configuration
    vertices: tuple[UnrolledVertex, ...]
    edges: tuple[UnrolledEdge, ...]


class Node(Record, frozen=True, kw_only=True):
    """A node of the lowered graph.

    `vertex` of a Comm or Reshard is the consumer it was inserted for; of a composite, its `members`
    joined by "+". `allocation` is the reserved set: the whole sigma of an Op, the destination of a
    transfer (None for a host vertex). `phase` counts from 1 and is None for transfers; `src_phase` is the
    phase of a phase-by-phase transfer. `layout` and `source_layout` are those of destination and source.
    """

    id: int
    kind: NodeKind
    vertex: str
    vertex_index: int
    step: int
    phase: int | None = None
    phases: int = 1
    members: tuple[str, ...] = ()
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    container: str | None = None
    model: str | None = None
    publication: bool = False
    source: str | None = None
    source_step: int | None = None
    src_phase: int | None = None
    payload_bytes: int | float = 0
    allocation: Allocation | None = None
    source_allocation: Allocation | None = None
    layout: Layout | None = None
    source_layout: Layout | None = None
    predecessors: tuple[int, ...] = ()


class Lowered(Record, frozen=True, kw_only=True):
    """The executable graph: every byte that moves and every exclusive reservation has a node."""

    configuration: Configuration
    nodes: tuple[Node, ...]


class Microtask(Record, frozen=True, array_like=True):
    """`[model, stage, microbatch, "F"|"B"]` of a fused training operator; model is 0 or 1."""

    model: int
    stage: int
    microbatch: int
    direction: Literal["F", "B"]


class MicrotaskSchedule(Record, frozen=True, kw_only=True):
    """Order of microtasks per pipeline position, and the hash that identifies it."""

    order: tuple[tuple[Microtask, ...], ...]
    makespan_ns: int
    second_model_reversed: bool
    hash: str


class CostedNode(Node, frozen=True, kw_only=True):
    """A node with its duration (whole ns) and the parts it is made of (seconds)."""

    time_ns: int = 0
    parts_s: dict[str, float] = {}


class DeviceMemory(Record, frozen=True, kw_only=True):
    """Peak of one GPU: persistent bytes by model and part, transient bytes by operator and part.

    peak = persistent_bytes + transient_bytes, the latter being `transient_worst`'s total.
    """

    peak_bytes: int
    persistent_bytes: int
    transient_bytes: int
    transient_worst: str | None
    persistent: dict[str, dict[str, int]]
    transient: dict[str, dict[str, int]]


class Costed(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The lowered graph with a time for every node and a peak for every device. `processors_ns`: how long the
    processors that a machine's workers share need for all nodes; 0 where they share none."""

    configuration: Configuration
    nodes: tuple[CostedNode, ...]
    microtasks: dict[str, MicrotaskSchedule]
    devices: dict[str, DeviceMemory]
    processors_ns: int = 0


class ScheduledNode(CostedNode, frozen=True, kw_only=True):
    """A costed node with its start and finish, its list-scheduling rank and the GPUs it reserves."""

    reserved: tuple[str, ...] = ()
    rank_ns: int = 0
    start_ns: int = 0
    finish_ns: int = 0


class Score(Record, frozen=True, kw_only=True):
    """The figures by which a plan is judged (semantics: Schedule). Makespans are the largest finish, or what
    the processors need that workers share, where that is longer."""

    makespan_ns: int
    makespan_both_reserved_ns: int
    score_tokens_per_s: float
    score_pen: float
    utilisation: float
    P_eff: float
    memory_feasible: bool
    max_peak_bytes: int
    memory_limit_bytes: int
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    gpu_hours_per_step: float
    mean_response_length: float


class Scheduled(Score, frozen=True, kw_only=True):
    """A start time for every node and the score of the whole (body of the fixed interchange form)."""

    configuration: Configuration
    nodes: tuple[ScheduledNode, ...]
    placement_order: tuple[int, ...]
    critical_path: tuple[int, ...]
    devices: dict[str, DeviceMemory]
    microtasks: dict[str, MicrotaskSchedule] = {}


class TemplateEdge(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A dependence on template node `source`, `distance` steps earlier; it exists from consumer step
    `first_step` on."""

    source: int
    distance: int = 0
    first_step: int = 0


class TemplateNode(CostedNode, frozen=True, kw_only=True):
    """One step's node. It exists at step k when k >= first_step and k + lookahead < total steps.

    `reads`, `writes` and `source_step` hold offsets: the version read at step k is max(0, k + reads[m]),
    the version written is k + writes[m], the producer's step is k + source_step. Frozen models are not in
    `reads`: their version is always 0. `predecessors` is unused.
    """

    first_step: int = 0
    lookahead: int = 0
    edges: tuple[TemplateEdge, ...] = ()


class Prediction(Record, frozen=True, kw_only=True):
    """What the cost model expects of the plan; a prediction, not a measurement."""

    cost_model: str
    hardware: str
    score: Score
    devices: dict[str, DeviceMemory]


class Executable(Record, frozen=True, kw_only=True):
    """`plan.exe.json`: all that `rpeg-rt` needs for any number of steps. Its envelope id is the plan hash."""

    problem: Problem
    plan: dict[str, Placement]
    template: tuple[TemplateNode, ...]
    microtasks: dict[str, MicrotaskSchedule]
    prediction: Prediction
    search: SearchReport | None = None
