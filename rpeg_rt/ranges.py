"""What the values of a plan, or of a grid of operators, must be before anything is derived from them: numbers
within their ranges, names that exist, places within the machine.

A file whose hash is right was not necessarily written by `rpegc`, which checks the same and much more.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import inf, isfinite, nextafter

from ir_schema.base import Record
from ir_schema.device import Allocation
from ir_schema.model import ModelSpec
from ir_schema.problem import Problem, Workload
from ir_schema.samples import Grid
from ir_schema.stages import Executable, TemplateNode

Range = tuple[float, float]

_MOST = 2**31 - 1
_STEPS = 256
"""Steps between a producer and its consumer, at most: twice as many as `rpegc` lets weights be behind."""
_DEVICES = 1 << 20
_TINY = nextafter(0.0, 1.0)
_POSITIVE, _COUNT, _NATURAL = (_TINY, inf), (1, _MOST), (0, _MOST)
_SHARE, _BELOW_ONE = (0, 1), (0, nextafter(1.0, 0.0))

_WORKLOAD: Mapping[str, Range] = dict.fromkeys(
    ("prompts", "rollouts", "prompt_length", "response_length", "epochs", "minibatches"), _COUNT
)
_RUN: Mapping[str, Range] = {
    "steps": _COUNT,
    "seed": (0, 2**63 - 1),
    "temperature": _POSITIVE,
    "top_p": (_TINY, 1),
    "kl_coefficient": (0, inf),
    "discount": _SHARE,
    "gae_lambda": _SHARE,
    "clip_ratio": _POSITIVE,
    "value_clip": _POSITIVE,
    "baseline_decay": _BELOW_ONE,
    "dpo_beta": _POSITIVE,
}
_OPTIMIZER: Mapping[str, Range] = {
    "learning_rate": (0, inf),
    "beta1": _BELOW_ONE,
    "beta2": _BELOW_ONE,
    "epsilon": _POSITIVE,
    "weight_decay": (0, inf),
    "max_gradient_norm": _POSITIVE,
    "warmup_steps": _NATURAL,
}
_MODEL: Mapping[str, Range] = {
    **dict.fromkeys(("layers", "hidden", "ffn", "vocabulary", "attention_heads", "kv_heads"), _COUNT),
    **dict.fromkeys(("head_dim", "attention_scalar", "sliding_window", "full_attention_every"), _COUNT),
    **dict.fromkeys(("norm_epsilon", "rope_theta", "local_rope_theta"), _POSITIVE),
    **dict.fromkeys(("attention_softcap", "logit_softcap"), _POSITIVE),
    **dict.fromkeys(("learned_positions", "max_positions"), _NATURAL),
    "bytes_per_parameter": (1, 8),
}
_EXPERTS: Mapping[str, Range] = {
    **dict.fromkeys(("routed", "top_k", "ffn", "every"), _COUNT),
    **dict.fromkeys(("shared_ffn", "dense_layers"), _NATURAL),
    "skew": (1, inf),
}
_ROPE_SCALING: Mapping[str, Range] = {
    **dict.fromkeys(("factor", "low_frequency_factor", "high_frequency_factor"), _POSITIVE),
    **dict.fromkeys(("beta_fast", "beta_slow", "attention_factor"), _POSITIVE),
    "original_positions": _COUNT,
}
_VERIFIER: Mapping[str, Range] = {
    "seconds_per_response": (0, inf),
    "workers": (1, 4096),
    "timeout_seconds": _POSITIVE,
}
_LAYOUT: Mapping[str, Range] = dict.fromkeys(
    ("data_parallel", "pipeline_parallel", "tensor_parallel", "context_parallel", "expert_parallel"), _COUNT
)
_PLACEMENT: Mapping[str, Range] = {**_LAYOUT, "microbatches": _COUNT, "waves": _COUNT}
_NODE: Mapping[str, Range] = {
    "time_ns": (0, 2**63 - 1),
    "phase": _COUNT,
    "phases": _COUNT,
    "src_phase": _COUNT,
    "first_step": (0, _STEPS),
    "lookahead": (0, _STEPS),
    "source_step": (-_STEPS, 0),
}
_EDGE: Mapping[str, Range] = {"distance": (0, _STEPS), "first_step": (0, _STEPS)}


def implausible(executable: Executable) -> list[str]:
    """What of a plan cannot be so, one sentence each; nothing where the rest may be derived from it."""
    problem = executable.problem
    found = [*_numbers(problem), *_names(problem)]
    space = problem.device_space
    if not all(1 <= n <= _DEVICES for n in space) or space[0] * space[1] * space[2] > _DEVICES:
        return [*found, f"`device_space` is {list(space)}; each of its sizes must be 1 or more"]
    for name, placement in executable.plan.items():
        where = f"plan.{name}"
        found += _within(where, placement, _PLACEMENT)
        found += _inside(where, placement.allocation, problem)
    for node in executable.template:
        found += _template_node(node, executable)
    for device, memory in executable.prediction.devices.items():
        found += _within(f"prediction.devices.{device}", memory, {"peak_bytes": (0, 2**63 - 1)})
    return found


def implausible_grid(grid: Grid) -> list[str]:
    """What of a grid of operators cannot be so, one sentence each."""
    found = [text for name, model in grid.models.items() for text in _model(f"models.{name}", model)]
    for i, workload in enumerate(grid.workloads):
        found += _workload(f"workloads.{i}", workload)
    for i, layout in enumerate(grid.layouts):
        found += _within(f"layouts.{i}", layout, _LAYOUT)
    for i, count in enumerate(grid.microbatches):
        if not 1 <= count <= _MOST:
            found.append(f"`microbatches.{i}` is {count}; it must be from 1 to {_MOST}")
    for i, case in enumerate(grid.cases):
        found += _model(f"cases.{i}.model", case.model)
        found += _workload(f"cases.{i}.workload", case.workload)
        found += _within(f"cases.{i}.placement", case.placement, _PLACEMENT)
    return found


def _within(where: str, record: Record, ranges: Mapping[str, Range]) -> Iterator[str]:
    for name, (least, most) in ranges.items():
        value = getattr(record, name)
        if value is None or (isfinite(value) and least <= value <= most):
            continue
        if least == _TINY:
            wanted = "more than 0" + ("" if most == inf else f" and at most {most:g}")
        elif most == _BELOW_ONE[1]:
            wanted = "at least 0 and less than 1"
        else:
            wanted = f"at least {least}" if most in (inf, _MOST, 2**63 - 1) else f"from {least} to {most}"
            wanted += f" and at most {most}" if value > most else ""
        yield f"`{where}.{name}` is {value}; it must be {wanted}"


def _numbers(problem: Problem) -> Iterator[str]:
    yield from _workload("workload", problem.workload)
    for name, model in problem.models.items():
        yield from _model(f"models.{name}", model)
    for name, verifier in problem.host.items():
        yield from _within(f"host.{name}", verifier, _VERIFIER)
    for name, tau in problem.graph.staleness.items():
        if not 0 <= tau <= _STEPS:
            yield f"`graph.staleness.{name}` is {tau}; it must be from 0 to {_STEPS}"
    if problem.run is not None:
        yield from _within("run", problem.run, _RUN)
        yield from _within("run.optimizer", problem.run.optimizer, _OPTIMIZER)
        for name, optimizer in problem.run.optimizers.items():
            yield from _within(f"run.optimizers.{name}", optimizer, _OPTIMIZER)


def _workload(where: str, w: Workload) -> Iterator[str]:
    yield from _within(where, w, _WORKLOAD)
    if w.sequences * w.total_length > _MOST:
        yield f"`{where}` is of {w.sequences} sequences of {w.total_length} tokens; that is more than fits"
    breakpoints = [(0.0, 0), *w.length_quantiles]
    if any(f >= g or t > u for (f, t), (g, u) in pairwise(breakpoints)) or not (
        breakpoints[-1][0] <= 1 and breakpoints[-1][1] <= w.response_length
    ):
        yield (
            f"`{where}.length_quantiles` must ascend, in fractions up to 1 and tokens up to `response_length`"
        )


def _model(where: str, spec: ModelSpec) -> Iterator[str]:
    yield from _within(where, spec, _MODEL)
    if spec.rope_scaling is not None:
        yield from _within(f"{where}.rope_scaling", spec.rope_scaling, _ROPE_SCALING)
    if spec.experts is not None:
        yield from _within(f"{where}.experts", spec.experts, _EXPERTS)
        if spec.experts.top_k > spec.experts.routed:
            yield f"`{where}.experts.top_k` is {spec.experts.top_k} of {spec.experts.routed} experts"
    if spec.head_dim is None and spec.attention_heads > 0 and spec.hidden % spec.attention_heads:
        yield f"`{where}`: width {spec.hidden} does not divide over {spec.attention_heads} attention heads"


def _names(problem: Problem) -> Iterator[str]:
    """Names that stand for nothing, or for two things."""
    graph = problem.graph
    vertices = [v.name for v in graph.vertices]
    containers = [c.name for c in graph.containers]
    for what, names in (("vertices", vertices), ("containers", containers)):
        for name in {n for n in names if names.count(n) > 1}:
            yield f"`graph.{what}` has two of the name `{name}`"
    used: list[tuple[str, str, object, object]] = []  # kind, name, where it must be known, and who says it
    for v in graph.vertices:
        of = f"vertex `{v.name}`"
        if v.model is None:
            used.append(("verifier", v.name, problem.host, "`graph.vertices`"))
        else:
            used.append(("model", v.model, problem.models, of))
        used += [("container", a, containers, of) for a in (*v.reads, *v.writes)]
    for e in (*graph.data_edges, *graph.publication_edges):
        used += [("vertex", name, vertices, "an edge of the graph") for name in (e.source, e.target)]
        used.append(("container", e.container, containers, "an edge of the graph"))
    for name in (*graph.trainable, *graph.staleness):
        used.append(("model", name, problem.models, "`graph`"))
    for c in graph.containers:
        if c.weights_of is not None:
            used.append(("model", c.weights_of, problem.models, f"container `{c.name}`"))
    used += [("container", a, containers, "`graph.inputs`") for a in graph.inputs]
    if problem.run is not None:
        used += [("model", name, problem.models, "`run.optimizers`") for name in problem.run.optimizers]
    for kind, name, known, who in used:
        if name not in known:  # type: ignore[operator]
            yield f"{who} names {kind} `{name}`, which the plan does not have"


def _inside(where: str, allocation: Allocation | None, problem: Problem) -> Iterator[str]:
    if allocation is not None and not allocation.fits(problem.device_space):
        yield (
            f"`{where}` lies at {list(allocation.origin)}+{list(allocation.extent)}, outside of the "
            f"machine of {list(problem.device_space)} GPUs"
        )


def _template_node(node: TemplateNode, executable: Executable) -> Iterator[str]:
    where, problem, plan = f"template node {node.id}", executable.problem, executable.plan
    yield from _within(where, node, _NODE)
    if node.phase is not None and node.phase > node.phases:
        yield f"{where} is phase {node.phase} of {node.phases}"
    for edge in node.edges:
        yield from _within(where, edge, _EDGE)
    for model, offset in (*node.reads.items(), *node.writes.items()):
        if model not in problem.models:
            yield f"{where} names model `{model}`, which the plan does not have"
        if not -_STEPS <= offset <= 1:
            yield f"{where} is of a version {offset} steps from its own"
    ends = [(vertex, node.allocation, node.layout) for vertex in node.members or (node.vertex,)]
    if node.kind != "Op":
        ends.append((node.source or "", node.source_allocation, node.source_layout))
    for vertex, allocation, layout in ends:
        placed = plan.get(vertex)
        if (allocation, layout) != (None if placed is None else (placed.allocation, placed.layout)) and (
            placed is not None or allocation is not None
        ):
            yield f"{where} is not where the plan places `{vertex}`, or not in its layout"
