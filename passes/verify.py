"""Verify: reject a problem that has no meaning, before anything is computed from it (semantics: Graph).

Names come first (everything else follows references), then sizes and options, then the graph rules of
`passes.wellformed`. All findings of a group are reported together.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar

from ir_schema.base import TIERS, Record
from ir_schema.device import DeviceSpace
from ir_schema.diagnostics import Diagnostic, DiagnosticError, Label, error
from ir_schema.hardware import Hardware, Tiers
from ir_schema.model import Experts
from ir_schema.problem import Problem
from passes.analysis import Analysis
from passes.base import Pass
from passes.cost import cost_model, model_for
from passes.hyperparameters import check_run
from passes.magnitudes import check_magnitudes
from passes.wellformed import EDGE_LISTS, check, vocabularies


def _known(code: str, kind: str, name: str, names: Iterable[str], path: str) -> Iterator[Diagnostic]:
    names = list(names)
    if name in names:
        return
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(names) or 'none'}"
    yield error(code, f"unknown {kind} `{name}`", path, help=hint)


def _duplicates(kind: str, names: Iterable[str], where: str) -> Iterator[Diagnostic]:
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            yield error(
                "E101",
                f"{kind} `{name}` is declared twice",
                f"{where}[{i}]",
                f"{where}[{first[name]}]",
                help="rename one of the two",
            )


def check_names(problem: Problem) -> Iterator[Diagnostic]:
    """E101 duplicate, E102 unknown container, E103 unknown model, E104 unknown vertex, E105 unknown GPU."""
    graph = problem.graph
    vertices, containers = [v.name for v in graph.vertices], [c.name for c in graph.containers]
    yield from _duplicates("vertex", vertices, "graph.vertices")
    yield from _duplicates("container", containers, "graph.containers")
    yield from _duplicates("trainable model", graph.trainable, "graph.trainable")
    yield from _duplicates("input", graph.inputs, "graph.inputs")
    yield from _duplicates("output", graph.outputs, "graph.outputs")

    for i, v in enumerate(graph.vertices):
        path = f"graph.vertices[{i}]"
        if v.model is not None:
            yield from _known("E103", "model", v.model, problem.models, f"{path}.model")
        for side in ("reads", "writes"):
            names: tuple[str, ...] = getattr(v, side)
            yield from _duplicates(f"container of `{v.name}`", names, f"{path}.{side}")
            for j, c in enumerate(names):
                yield from _known("E102", "container", c, containers, f"{path}.{side}[{j}]")
    for kind in EDGE_LISTS:
        for i, e in enumerate(getattr(graph, kind)):
            path = f"graph.{kind}[{i}]"
            yield from _known("E104", "vertex", e.source, vertices, f"{path}[0]")
            yield from _known("E104", "vertex", e.target, vertices, f"{path}[1]")
            yield from _known("E102", "container", e.container, containers, f"{path}[2]")
    for side in ("inputs", "outputs"):
        for i, c in enumerate(getattr(graph, side)):
            yield from _known("E102", "container", c, containers, f"graph.{side}[{i}]")
    for i, container in enumerate(graph.containers):
        if container.weights_of is not None:
            path = f"graph.containers[{i}].weights_of"
            yield from _known("E103", "model", container.weights_of, problem.models, path)
    for i, m in enumerate(graph.trainable):
        yield from _known("E103", "model", m, problem.models, f"graph.trainable[{i}]")
    for m in graph.staleness:
        yield from _known("E103", "model", m, problem.models, f"graph.staleness.{m}")
    for section in ("plan", "host"):
        for name in getattr(problem, section):
            yield from _known("E104", "vertex", name, vertices, f"{section}.{name}")
    yield from _search_names(problem, vertices)


def _search_names(problem: Problem, vertices: list[str]) -> Iterator[Diagnostic]:
    for i, name in enumerate(problem.options.fuse or ()):
        yield from _known("E104", "vertex", name, vertices, f"options.fuse[{i}]")
    if problem.run is not None:
        for m in problem.run.optimizers:
            yield from _known("E103", "model", m, problem.models, f"run.optimizers.{m}")
    search = problem.search
    if search is None:
        return
    for m in search.staleness:
        yield from _known("E103", "model", m, problem.models, f"search.staleness.{m}")
    for i, pair in enumerate(search.share):
        for j, m in enumerate(pair or ()):
            yield from _known("E103", "model", m, problem.models, f"search.share[{i}][{j}]")
    for i, pair in enumerate(search.fuse):
        for j, name in enumerate(pair or ()):
            yield from _known("E104", "vertex", name, vertices, f"search.fuse[{i}][{j}]")
    if all(n >= 1 for n in problem.device_space):
        for i, gpu in enumerate(search.exclude):
            if not _is_gpu(gpu, problem.device_space):
                yield error(
                    "E105",
                    f"unknown GPU `{gpu}`",
                    f"search.exclude[{i}]",
                    help="GPUs are written `rack.node.gpu`, counted from 0",
                )


def _is_gpu(name: str, space: DeviceSpace) -> bool:
    digits = re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", name, re.ASCII)
    return digits is not None and all(int(x) < n for x, n in zip(digits.groups(), space, strict=True))


POSITIVE = {
    "workload": ("prompts", "rollouts", "prompt_length", "response_length", "epochs", "minibatches"),
    "hardware": ("peak_flops", "memory_bandwidth", "memory_bytes"),
    "options": ("steps",),
}
POSITIVE_MODEL = ("layers", "hidden", "ffn", "vocabulary", "bytes_per_parameter", "attention_heads")
OPTIONAL_MODEL = (
    "kv_heads", "head_dim", "sliding_window", "full_attention_every", "attention_scalar", "attention_softcap",
    "logit_softcap", "local_rope_theta",
)  # fmt: skip
POSITIVE_EXPERTS = ("routed", "top_k", "ffn", "every", "skew")
NOT_NEGATIVE_EXPERTS = ("shared_ffn", "dense_layers")
NOT_NEGATIVE_HARDWARE = (
    "gamma_M", "gamma_K", "nongemm_seconds", "kernel_seconds", "product_flops", "startup_seconds",
    "launch_seconds", "score_bytes", "node_processors", "contention", "message_work",
    "wakeup_seconds",
)  # fmt: skip
PRIMITIVES = ("collective", "point_to_point", "all_gather", "reduce_scatter")


def _positive(value: float, path: str) -> Iterator[Diagnostic]:
    if not value > 0:
        yield error("E303", f"`{path}` is {value}", path, help="it must be greater than zero")


def _not_negative(value: float, path: str) -> Iterator[Diagnostic]:
    if not value >= 0:
        yield error("E303", f"`{path}` is {value}", path, help="it must not be negative")


def check_sizes(problem: Problem) -> Iterator[Diagnostic]:
    """E303 non-positive sizes, E304 length quantiles, E305 values out of range."""
    for section, fields in POSITIVE.items():
        for field in fields:
            yield from _positive(getattr(getattr(problem, section), field), f"{section}.{field}")
    for name, model in problem.models.items():
        for field in POSITIVE_MODEL:
            yield from _positive(getattr(model, field), f"models.{name}.{field}")
        for field in OPTIONAL_MODEL:
            if getattr(model, field) is not None:
                yield from _positive(getattr(model, field), f"models.{name}.{field}")
        if model.experts is not None:
            yield from _check_experts(model.experts, f"models.{name}.experts")
    for axis in range(3):
        yield from _positive(problem.device_space[axis], f"device_space[{axis}]")
    for i, c in enumerate(problem.graph.containers):
        yield from _positive(c.elements, f"graph.containers[{i}].elements")
        yield from _positive(c.bytes_each, f"graph.containers[{i}].bytes_each")
    for name, v in problem.host.items():
        yield from _positive(v.workers, f"host.{name}.workers")
        yield from _not_negative(v.seconds_per_response, f"host.{name}.seconds_per_response")
        yield from _positive(v.timeout_seconds, f"host.{name}.timeout_seconds")
    yield from _check_hardware(problem.hardware)
    yield from _check_quantiles(problem)


def _check_experts(experts: Experts, path: str) -> Iterator[Diagnostic]:
    for field in POSITIVE_EXPERTS:
        yield from _positive(getattr(experts, field), f"{path}.{field}")
    for field in NOT_NEGATIVE_EXPERTS:
        yield from _not_negative(getattr(experts, field), f"{path}.{field}")
    if experts.top_k > experts.routed:
        text = f"`{path}.top_k` is {experts.top_k}"
        yield error("E305", text, f"{path}.top_k", help=f"there are {experts.routed} experts to choose from")


def _check_hardware(hardware: Hardware) -> Iterator[Diagnostic]:
    for field in NOT_NEGATIVE_HARDWARE:
        yield from _not_negative(getattr(hardware, field), f"hardware.{field}")
    if hardware.dispatch is not None:
        for kind in hardware.dispatch.__struct_fields__:
            yield from _not_negative(getattr(hardware.dispatch, kind), f"hardware.dispatch.{kind}")
    for field in ("sequences", "tokens"):
        value: float = getattr(hardware.nongemm_reference, field)
        yield from _positive(value, f"hardware.nongemm_reference.{field}")
    for primitive in PRIMITIVES:
        tiers: Tiers | None = getattr(hardware, primitive)
        if tiers is None:
            continue
        for tier in TIERS:
            yield from _not_negative(tiers.at(tier).alpha, f"hardware.{primitive}.{tier}.alpha")
            yield from _not_negative(tiers.at(tier).beta, f"hardware.{primitive}.{tier}.beta")
    if not 0 <= hardware.runtime_reserve < 1:
        yield error(
            "E305",
            f"`hardware.runtime_reserve` is {hardware.runtime_reserve}",
            "hardware.runtime_reserve",
            help="it is the share of memory kept free: at least 0 and below 1",
        )


def check_heads(problem: Problem) -> Iterator[Diagnostic]:
    """E307: key/value heads divide the attention heads, and these the hidden width where it tells theirs."""
    for name, model in problem.models.items():
        path, heads = f"models.{name}", model.attention_heads
        groups = {f"{path}.kv_heads": model.query_groups}
        if model.full_attention is not None:
            groups[f"{path}.full_attention.kv_heads"] = model.full_attention.kv_heads
        for where, kv_heads in groups.items():
            if kv_heads < 1 or heads % kv_heads:
                yield error(
                    "E307",
                    f"{heads} attention heads of `{name}` cannot share {kv_heads} key/value heads evenly",
                    where,
                    f"{path}.attention_heads",
                    help="the number of key/value heads divides that of attention heads",
                )
        if model.head_dim is None and model.latent_attention is None and model.hidden % heads:
            yield error(
                "E307",
                f"the hidden width {model.hidden} of `{name}` is not divided by its {heads} attention heads",
                f"{path}.hidden",
                f"{path}.attention_heads",
                help="change one of the two, or say `head_dim`",
            )


def _check_quantiles(problem: Problem) -> Iterator[Diagnostic]:
    quantiles, longest = problem.workload.length_quantiles, problem.workload.response_length
    if not quantiles:
        return
    path = "workload.length_quantiles"
    last_f, last_t = 0.0, 0
    for i, (f, t) in enumerate(quantiles):
        if not 0 < f <= 1:
            yield error("E304", f"fraction {f} lies outside (0, 1]", f"{path}[{i}]", help="use 0.5 for half")
        if f <= last_f or t <= last_t:
            yield error(
                "E304",
                f"length quantile [{f}, {t}] does not lie beyond [{last_f}, {last_t}]",
                f"{path}[{i}]",
                help="fractions and lengths increase strictly",
            )
        last_f, last_t = f, t
    if (last_f, last_t) != (1.0, longest):
        yield error(
            "E304",
            f"the last length quantile is [{last_f}, {last_t}]",
            f"{path}[{len(quantiles) - 1}]",
            "workload.response_length",
            help=f"end at [1.0, {longest}]: all responses have ended at the generation limit",
        )


def verify(problem: Problem) -> list[Diagnostic]:
    """All errors of `problem`; empty if it is well formed."""
    names = list(check_names(problem))
    sizes = list(check_sizes(problem)) or [*check_magnitudes(problem), *check_heads(problem)]
    sizes.extend(check_run(problem))
    try:
        cost_model(problem.options.cost_model)
    except DiagnosticError as exc:
        sizes.extend(exc.diagnostics)
    return names + sizes if names else sizes + check(problem)


def warnings(problem: Problem) -> list[Diagnostic]:
    """What is odd in a verified problem but can be planned.

    W301: weight containers far from the size of their model (sizes are the file's own and may stem from
    another way to count, so a factor of 2 passes); W302: tokens scored with another vocabulary.
    """
    model = model_for(problem)
    found = list(vocabularies(Analysis(problem)))
    for i, c in enumerate(problem.graph.containers):
        if c.weights_of is None:
            continue
        count = model.parameters(c.weights_of)
        if not count <= 2 * c.elements <= 4 * count:
            found.append(
                Diagnostic(
                    code="W301",
                    severity="warning",
                    message=f"`{c.name}` has {c.elements} elements, `{c.weights_of}` {count} parameters",
                    labels=(Label(path=f"graph.containers[{i}].elements"),),
                    help=f"write `parameters({c.weights_of})`",
                )
            )
    return found


@dataclass(frozen=True)
class Verify(Pass[Problem, Problem]):
    """Problem to the same problem, checked."""

    name: ClassVar[str] = "verify"
    summary: ClassVar[str] = "check names, sizes and the well-formedness of the graph"
    source: ClassVar[type[Record]] = Problem
    target: ClassVar[type[Record]] = Problem

    def run(self, stage: Problem) -> Problem:
        """The problem itself. Raises DiagnosticError with every finding."""
        findings = verify(stage)
        if findings:
            raise DiagnosticError(findings)
        return stage
