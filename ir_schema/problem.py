"""The problem: what a user asks to be planned. Its JSON form is fixed (semantics: Interchange).

Invariant: a `Problem` says nothing that a preset would have to explain; presets and the text form
are expanded before it is built. Containers, vertices and edges keep the order of the file, because
vertex indices and declared edge order are part of the semantics.
"""

from typing import Literal

from ir_schema.base import Objective, Record, Role, Split
from ir_schema.device import Allocation, Coordinate, DeviceSpace
from ir_schema.hardware import Hardware
from ir_schema.model import ModelSpec


class Options(Record, frozen=True, kw_only=True):
    """How a configuration is scored: horizon K_eval, structural choices, printed form, cost model.

    `fuse` names the two training vertices to be interleaved.
    """

    steps: int = 8
    split: Split = "auto"
    fuse: tuple[str, str] | None = None
    as_printed: bool = False
    cost_model: str = "megatron"


class Workload(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One RL step's data: B prompts, R rollouts each, L_p and L_r tokens; `length_quantiles` [f, t]:
    a fraction f of the responses has ended after t tokens. E epochs of M minibatches in training."""

    prompts: int
    rollouts: int
    prompt_length: int
    response_length: int
    length_quantiles: tuple[tuple[float, int], ...] = ()
    epochs: int = 1
    minibatches: int = 1

    @property
    def sequences(self) -> int:
        """B*R responses of one step."""
        return self.prompts * self.rollouts

    @property
    def total_length(self) -> int:
        """L_p + L_r tokens of the longest sequence."""
        return self.prompt_length + self.response_length

    @property
    def mean_response_length(self) -> float:
        """Mean of the piecewise distribution, sum of (f_q - f_{q-1}) t_q; L_r without breakpoints."""
        if not self.length_quantiles:
            return float(self.response_length)
        mean, last = 0.0, 0.0
        for f, t in self.length_quantiles:
            mean += (f - last) * t
            last = f
        return mean


class Vertex(Record, frozen=True, kw_only=True):
    """One model's execution in one role. `model` is None for a host vertex (a verifier)."""

    name: str
    role: Role
    model: str | None = None
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class Edge(Record, frozen=True, array_like=True):
    """`[source, target, container]`: exactly one container flows from one vertex to another."""

    source: str
    target: str
    container: str


class Container(Record, frozen=True, kw_only=True):
    """A typed datum; `weights_of` names the model whose weights it is."""

    name: str
    elements: int
    bytes_each: int
    weights_of: str | None = None

    @property
    def payload_bytes(self) -> int:
        """|a| * s(a)."""
        return self.elements * self.bytes_each


class Graph(Record, frozen=True, kw_only=True):
    """The compact graph G0. A vertex's index is its position in `vertices`."""

    vertices: tuple[Vertex, ...]
    data_edges: tuple[Edge, ...] = ()
    publication_edges: tuple[Edge, ...] = ()
    containers: tuple[Container, ...] = ()
    trainable: tuple[str, ...] = ()
    staleness: dict[str, int] = {}
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class PartialPlacement(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of one vertex's plan that the user fixes; None is searched."""

    origin: Coordinate | None = None
    extent: Coordinate | None = None
    data_parallel: int | None = None
    pipeline_parallel: int | None = None
    tensor_parallel: int | None = None
    microbatches: int | None = None
    context_parallel: int | None = None
    expert_parallel: int | None = None
    waves: int | None = None


class Layout(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Degrees of parallelism Pi = (P_d, P_p, P_t[, P_c, P_e])."""

    data_parallel: int
    pipeline_parallel: int
    tensor_parallel: int
    context_parallel: int = 1
    expert_parallel: int = 1

    @property
    def gpus(self) -> int:
        """|sigma| that the layout needs."""
        return self.data_parallel * self.pipeline_parallel * self.tensor_parallel * self.context_parallel


class Placement(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One vertex's plan: allocation sigma, layout Pi, microbatches mb, and generation waves."""

    origin: Coordinate
    extent: Coordinate
    data_parallel: int
    pipeline_parallel: int
    tensor_parallel: int
    microbatches: int
    context_parallel: int = 1
    expert_parallel: int = 1
    waves: int = 1

    @property
    def allocation(self) -> Allocation:
        """sigma(v)."""
        return Allocation(origin=self.origin, extent=self.extent)

    @property
    def layout(self) -> Layout:
        """Pi(v)."""
        return Layout(
            data_parallel=self.data_parallel,
            pipeline_parallel=self.pipeline_parallel,
            tensor_parallel=self.tensor_parallel,
            context_parallel=self.context_parallel,
            expert_parallel=self.expert_parallel,
        )


class Verifier(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A host vertex: a callable (`package.module:function` or a registered name) without weights or GPU.

    A call that takes longer than `timeout_seconds`, or raises, ends the run (`on_error` "error") or earns
    nothing ("zero").
    """

    seconds_per_response: float
    workers: int = 1
    callable: str | None = None
    timeout_seconds: float = 60.0
    on_error: Literal["error", "zero"] = "error"


class SearchSpace(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The structural values that may be tried; what is not listed keeps its value in `options` and `graph`.

    `share` lists pairs (policy model, value model) to be merged into one shared actor-critic, or None
    for no sharing; `fuse` lists pairs of training vertices, or None; `exclude` lists GPUs ("r.n.g")
    that may not be used. `warm_start` is a plan of every vertex that has one, by name: the search starts
    from it in every structure that has exactly these vertices.
    """

    staleness: dict[str, tuple[int, ...]] = {}
    share: tuple[tuple[str, str] | None, ...] = ()
    fuse: tuple[tuple[str, str] | None, ...] = ()
    split: tuple[Split, ...] = ()
    objective: Objective = "throughput"
    exclude: tuple[str, ...] = ()
    warm_start: dict[str, Placement] = {}


class Optimizer(Record, frozen=True, kw_only=True, omit_defaults=True):
    """AdamW and its schedule for one model (`docs/learning.md`)."""

    learning_rate: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0
    warmup_steps: int = 0


class RunConfig(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What the runtime needs beyond the plan: algorithm, data and hyperparameters.

    `prompts` is a JSONL or Parquet file, relative to the problem file (of preference pairs for DPO);
    `tokenizer` is `bytes` or a Hugging Face `tokenizer.json`; `optimizer` is the default for all models,
    `optimizers` overrides it by model. `kl_estimator` None: k1 in rewards, k3 in the loss of GRPO. Which
    algorithm has which hyperparameter stands in `docs/learning.md`.
    """

    algorithm: Literal["ppo", "grpo", "rloo", "reinforce", "dpo"] = "ppo"
    steps: int = 1
    seed: int = 0
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    prompts: str | None = None
    eval_prompts: str | None = None
    prompt_field: str = "prompt"
    long_prompts: Literal["error", "truncate", "skip"] = "error"
    long_responses: Literal["error", "truncate", "skip"] = "error"
    tokenizer: str = "bytes"
    temperature: float = 1.0
    top_p: float = 1.0
    kl_coefficient: float = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    discount: float = 1.0
    gae_lambda: float = 0.95
    clip_ratio: float = 0.2
    value_clip: float = 0.2
    scale_rewards: Literal["group", "none"] = "group"
    baseline_decay: float = 0.9
    dpo_beta: float = 0.1
    optimizer: Optimizer = Optimizer()
    optimizers: dict[str, Optimizer] = {}


class Problem(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Everything the compiler is told. `name` and `about` are carried along and mean nothing."""

    name: str = "problem"
    about: str = ""
    options: Options
    workload: Workload
    models: dict[str, ModelSpec]
    hardware: Hardware
    device_space: DeviceSpace
    graph: Graph
    plan: dict[str, PartialPlacement] = {}
    search: SearchSpace | None = None
    host: dict[str, Verifier] = {}
    run: RunConfig | None = None
