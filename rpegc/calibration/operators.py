"""Operators by themselves: what the cost model says of one, and training iterations of tables as such."""

from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np

from calib.fits import Found, named
from calib.fitting import Array, fit
from calib.hardware import load_hardware
from calib.tables import COLUMNS, Row, Table
from ir_schema.device import DeviceSpace
from ir_schema.hardware import Hardware
from ir_schema.model import ModelSpec
from ir_schema.problem import Graph, Options, Placement, Problem, Vertex, Workload
from ir_schema.samples import OperatorCase
from passes.cost import parameters
from passes.cost.megatron import MegatronCost
from passes.magnitudes import check_magnitudes
from passes.verify import check_heads, check_sizes

NODE = 8
"""GPUs of a node of the machines that the tables are about."""
VOCABULARY = 51200
"""Tokens of a GPT model of which a table says nothing."""


def alone(case: OperatorCase, hardware: Hardware, space: DeviceSpace) -> tuple[MegatronCost, Vertex]:
    """The cost model of a machine that runs nothing but `case`, and the operator's vertex."""
    problem, vertex = _problem(case, hardware, space)
    return MegatronCost(problem), vertex


def _problem(case: OperatorCase, hardware: Hardware, space: DeviceSpace) -> tuple[Problem, Vertex]:
    vertex = Vertex(name="operator", role=case.role, model="model", reads=(), writes=())
    problem = Problem(
        options=Options(), workload=case.workload, models={"model": case.model}, hardware=hardware,
        device_space=space, graph=Graph(vertices=(vertex,)),
    )  # fmt: skip
    return problem, vertex


@cache
def _any_hardware() -> Hardware:
    """One that is possible, for checks that have nothing to do with it."""
    return load_hardware("h100")


def impossible_case(case: OperatorCase) -> list[str]:
    """Why nothing can run, or be predicted of, the operator: one sentence each, the first of them at least
    if there is any."""
    m, w, p = case.model, case.workload, case.placement
    problem, _ = _problem(case, _any_hardware(), p.extent)
    found = list(check_sizes(problem)) or [*check_heads(problem), *check_magnitudes(problem)]
    if found:
        return [f"{d.message}: {d.help}" for d in found]
    degrees = (p.data_parallel, p.pipeline_parallel, p.tensor_parallel, p.context_parallel, p.expert_parallel)
    if min(*degrees, p.microbatches, p.waves) < 1:
        return [f"degrees {list(degrees)}, {p.microbatches} microbatches and {p.waves} waves, of 1 at least"]
    reasons = []
    if p.pipeline_parallel > m.layers:
        reasons.append(f"{p.pipeline_parallel} pipeline stages for {m.layers} layers")
    if m.attention_heads % p.tensor_parallel:
        reasons.append(f"{m.attention_heads} attention heads on {p.tensor_parallel} tensor ranks")
    minibatches = w.minibatches if case.role == "training" else 1
    if w.sequences < p.data_parallel * minibatches * p.microbatches * p.waves:
        reasons.append(
            f"{w.sequences} sequences for {p.data_parallel} replicas, {minibatches} minibatches, "
            f"{p.microbatches} microbatches and {p.waves} waves"
        )
    if case.role == "generation" and not m.has_lm_head:
        reasons.append("a generation by a model without vocabulary head")
    return reasons


def operator_seconds(case: OperatorCase, hardware: Hardware, space: DeviceSpace) -> float:
    """Predicted time of the operator."""
    model, vertex = alone(case, hardware, space)
    return sum(model.operator(vertex, case.placement).values())


class Prediction(NamedTuple):
    """What the cost model says of an operator by itself: its time, and the bytes on its fullest GPU, weights
    and training state included."""

    seconds: float
    nbytes: int


def predict(case: OperatorCase, hardware: Hardware) -> Prediction:
    """Time and memory of the operator on a machine that consists of its placement's GPUs."""
    model, vertex = alone(case, hardware, case.placement.extent)
    seconds = sum(model.operator(vertex, case.placement).values())
    return Prediction(seconds, model.operator_bytes(vertex, case.placement))


def forward_flops(case: OperatorCase) -> float:
    """Operations of one forward pass through the layers: 2 per weight and token, and of the scores half of
    the square."""
    m, w = case.model, case.workload
    weights = parameters.layers_shard(m, range(m.layers)).total
    attended = 2 * m.layers * m.attention_heads * m.head_width * w.total_length
    return float(w.sequences * w.total_length * (2 * weights + attended))


def nodes_for(gpus: int) -> DeviceSpace:
    """The smallest machine of whole nodes with `gpus` GPUs."""
    return (1, -(-gpus // NODE), NODE) if gpus > NODE else (1, 1, gpus)


@cache
def gpt(hidden: int, layers: int, heads: int, vocabulary: int, positions: int) -> ModelSpec:
    """A GPT model as Megatron-LM builds it by default: tied embeddings, biases, layer norms, four times as
    wide inside, and a learned position for every token."""
    return ModelSpec(
        layers=layers, hidden=hidden, ffn=4 * hidden, vocabulary=vocabulary, head="lm",
        attention_heads=heads, gated_ffn=False, tied_embeddings=True, qkv_bias=True,
        attention_output_bias=True, mlp_bias=True, norm="layernorm", activation="gelu",
        learned_positions=positions,
    )  # fmt: skip


def iteration(row: Row) -> OperatorCase:
    """A training iteration with the layout and microbatch size `mbs` of the row. Raises ValueError for what
    is no whole number or cannot run, KeyError for a missing column."""
    hidden, layers, heads, length, gbs, mbs, dp, pp, tp = (
        _whole(name, row[name])
        for name in ("hidden", "layers", "heads", "seq_len", "gbs", "mbs", "dp", "pp", "tp")
    )
    if min(dp, mbs) < 1 or gbs % (dp * mbs):
        raise ValueError(f"{gbs} sequences are no whole number of microbatches of {mbs} on {dp} replicas")
    vocabulary = _whole("vocab", row.get("vocab", "").split(" ")[0] or str(VOCABULARY))
    case = OperatorCase(
        role="training",
        model=gpt(hidden, layers, heads, vocabulary, length),
        # All logits but the first token's are computed.
        workload=Workload(prompts=gbs, rollouts=1, prompt_length=1, response_length=length - 1),
        placement=place((dp, pp, tp), gbs // (dp * mbs)),
    )
    if reasons := impossible_case(case):
        raise ValueError(reasons[0])
    return case


def _whole(name: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value.is_integer():
        raise ValueError(f"{name} = {text!r} is no whole number")
    return int(value)


def place(layout: tuple[int, int, int], microbatches: int, expert_parallel: int = 1) -> Placement:
    """The first GPUs of a machine in `layout` (P_d, P_p, P_t)."""
    dp, pp, tp = layout
    return Placement(
        origin=(0, 0, 0), extent=nodes_for(dp * pp * tp), data_parallel=dp, pipeline_parallel=pp,
        tensor_parallel=tp, microbatches=microbatches, expert_parallel=expert_parallel,
    )  # fmt: skip


_ITERATIONS = {"launch_seconds": 1e-4, "score_bytes": 10.0}
"""What training iterations tell, and from where it is sought."""


def fit_iterations(table: Table, hardware: Hardware) -> Found:
    """`launch_seconds` and `score_bytes` with which `hardware` predicts the table's iterations best."""
    for column in COLUMNS["iterations"]:
        table.numbers(column)
    measured = table.numbers("iter_time_ms") * 1e-3
    cases = []
    for i, row in enumerate(table.rows, 1):
        try:
            cases.append(iteration(row))
        except ValueError as exc:
            raise ValueError(f"chosen row {i}: {exc}") from exc

    def predict(x: Array) -> Array:
        launch, score = map(float, x)
        tried = msgspec.structs.replace(
            hardware, kernel_seconds=0.0, launch_seconds=launch, score_bytes=score
        )
        spaces = (nodes_for(c.placement.layout.gpus) for c in cases)
        return np.array([operator_seconds(c, tried, s) for c, s in zip(cases, spaces, strict=True)])

    if len(cases) <= len(_ITERATIONS):
        raise ValueError(f"{len(cases)} iterations, and more than {len(_ITERATIONS)} are wanted")
    result = fit(predict, measured, tuple(_ITERATIONS.values()), rounds=12)
    return named(tuple(_ITERATIONS), result)


def whole_layer_flops(hardware: Hardware) -> float:
    """The rate [FLOP/s] that whole layers approach, what lies between their products included: F_peak of the
    model that has no other term for it. Of one layer of hidden size 8192 over 8 sequences of 1024 tokens."""
    hidden, length, sequences = 8192, 1024, 8
    model = msgspec.structs.replace(
        gpt(hidden, 1, 64, VOCABULARY, length), head="scalar", tied_embeddings=False
    )
    case = OperatorCase(
        role="inference", model=model, placement=place((1, 1, 1), 1),
        workload=Workload(prompts=sequences, rollouts=1, prompt_length=length - 1, response_length=1),
    )  # fmt: skip
    rows = sequences * length
    flops = rows * (2 * 12 * hidden**2 + 2 * length * hidden)
    reached = flops / operator_seconds(case, hardware, (1, 1, 1))
    return reached * (1 + hardware.gamma_M / rows) * (1 + hardware.gamma_K / hidden)
