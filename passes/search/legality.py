"""Checking plans and explaining empty candidate sets, with the constraints of `passes.search.constraints`.

| code | constraint |
| --- | --- |
| E402 | a host vertex has no plan |
| E403 | a plan that is not searched is complete |
| E405 | the allocation has P_d P_p P_t (P_c) GPUs |
| E411, E412, E413 | P1 tensor, P2 pipeline, P3 data parallelism |
| E414 | P4 and P5, microbatches |
| E416 | P6 and P8, packing into nodes and racks |
| E417 | P7, origin and extent |
| E418 | excluded GPUs |
| E419 | waves, context and expert parallelism |
| E421 | no candidate fits in memory even alone |
"""

from collections.abc import Iterable, Sequence

import msgspec

from ir_schema.device import size
from ir_schema.diagnostics import Diagnostic, error
from ir_schema.problem import PartialPlacement, Placement, Problem, Vertex
from passes.feasibility import amount
from passes.search.candidates import Enumeration
from passes.search.constraints import Rules, divisors, excluded_mask

REQUIRED = (
    "origin",
    "extent",
    "data_parallel",
    "pipeline_parallel",
    "tensor_parallel",
    "microbatches",
)


def nearest(value: int, options: Iterable[int]) -> str:
    """The closest options below and above `value`, in words."""
    options = sorted(options)
    below = [x for x in options if x < value][-1:]
    above = [x for x in options if x > value][:1]
    close = [str(x) for x in below + above]
    return f"nearest legal: {', '.join(close)}" if close else "no other value is legal"


def _degree(code: str, path: str, value: int, reason: str, options: Iterable[int], *more: str) -> Diagnostic:
    field = path.rpartition(".")[2].replace("_", " ")
    return error(code, f"{field} {value}: {reason}", path, *more, help=nearest(value, options))


def degree_errors(rules: Rules, p: PartialPlacement) -> list[Diagnostic]:
    """Violations of P1 to P3 by the degrees that `p` gives."""
    path, problem = f"plan.{rules.vertex.name}", rules.problem
    found = []
    tp, pp, dp = p.tensor_parallel, p.pipeline_parallel, p.data_parallel
    if tp is not None and (reason := rules.tensor(tp)):
        legal_tp = [t for t in range(1, problem.device_space[2] + 1) if rules.tensor(t) is None]
        found.append(_degree("E411", f"{path}.tensor_parallel", tp, reason, legal_tp))
    if pp is not None and (reason := rules.pipeline(pp)):
        legal_pp = [x for x in divisors(rules.model.layers) if rules.pipeline(x) is None]
        found.append(_degree("E412", f"{path}.pipeline_parallel", pp, reason, legal_pp))
    if dp is not None and (reason := rules.data(dp)):
        if dp < 1:
            found.append(error("E413", f"data parallel {dp}: {reason}", f"{path}.data_parallel"))
        else:
            found.append(_no_replicas(rules, dp, f"data parallel {dp}", f"{path}.data_parallel"))
    return found


def _host_plan(vertex: Vertex) -> Diagnostic:
    return error(
        "E402",
        f"host vertex `{vertex.name}` has a plan",
        f"plan.{vertex.name}",
        help="remove it: a verifier occupies no GPU",
    )


def host_plans(problem: Problem) -> list[Diagnostic]:
    """E402 for every host vertex that the plan places."""
    return [_host_plan(v) for v in problem.graph.vertices if v.model is None and v.name in problem.plan]


def legal(problem: Problem, vertex: Vertex, placement: Placement) -> list[Diagnostic]:
    """Every constraint that `placement` breaks as the plan of `vertex`."""
    if vertex.model is None:
        return [_host_plan(vertex)]
    path = f"plan.{vertex.name}"
    rules, p, layout = Rules(problem, vertex, excluded_mask(problem)), placement, placement.layout
    found = degree_errors(rules, msgspec.convert(msgspec.to_builtins(p), PartialPlacement))
    degrees = (p.data_parallel, p.pipeline_parallel, p.tensor_parallel, p.context_parallel, p.expert_parallel)
    if min(*degrees, *p.extent) < 1:
        return found or [error("E405", "degrees of parallelism and extents are at least 1", path)]
    gpus = p.allocation.gpus
    if layout.gpus != gpus:
        found.append(
            error(
                "E405",
                f"the layout needs {layout.gpus} GPUs, the allocation has {gpus}",
                f"{path}.extent",
                help=f"use the extent {list(rules.extent_of(layout.gpus))}, or change a degree",
            )
        )
    if found:
        return found
    if reason := rules.packing(p.pipeline_parallel, p.tensor_parallel):
        found.append(error("E416", reason, f"{path}.pipeline_parallel", f"{path}.tensor_parallel"))
    if reason := rules.gpus(gpus):
        options = [n for n in range(1, size(problem.device_space) + 1) if rules.gpus(n) is None]
        found.append(error("E416", reason, f"{path}.extent", help=nearest(gpus, options)))
    else:
        found += _placing(rules, p)
    if reason := rules.microbatches(p.data_parallel, p.pipeline_parallel, p.microbatches):
        allowed = rules.microbatch_options(p.data_parallel, p.pipeline_parallel)
        found.append(_degree("E414", f"{path}.microbatches", p.microbatches, reason, allowed))
    ranks = p.data_parallel * p.tensor_parallel * p.context_parallel
    for field, reason in (
        ("waves", rules.waves(p.data_parallel, p.waves)),
        ("context_parallel", rules.context(p.context_parallel)),
        ("expert_parallel", rules.experts(p.expert_parallel, ranks)),
    ):
        if reason:
            found.append(error("E419", f"{field.replace('_', ' ')}: {reason}", f"{path}.{field}"))
    return found


def _placing(rules: Rules, p: Placement) -> list[Diagnostic]:
    path = f"plan.{rules.vertex.name}"
    if reason := rules.extent(p.extent):
        return [error("E417", f"extent {list(p.extent)}: {reason}", f"{path}.extent")]
    if reason := rules.origin(p.origin, p.extent):
        return [error("E417", f"origin {list(p.origin)}: {reason}", f"{path}.origin")]
    if reason := rules.usable(p.allocation):
        return [error("E418", f"the allocation: {reason}", f"{path}.origin", "search.exclude")]
    return []


def plan_errors(problem: Problem, plan: dict[str, PartialPlacement]) -> list[Diagnostic]:
    """What is wrong with a plan that must be complete: missing vertices and fields, broken constraints."""
    found = []
    for i, v in enumerate(problem.graph.vertices):
        given = plan.get(v.name)
        missing = [] if given is None else [f for f in REQUIRED if getattr(given, f) is None]
        if v.model is None and given is None:
            continue
        if v.model is not None and (given is None or missing):
            what = "has no plan" if given is None else f"lacks {', '.join(missing)}"
            found.append(
                error(
                    "E403",
                    f"vertex `{v.name}` {what}",
                    f"graph.vertices[{i}]" if given is None else f"plan.{v.name}",
                    help="write the plan out, or search for what is missing",
                )
            )
        elif v.model is None:
            found.append(_host_plan(v))
        elif given is not None:
            found += legal(problem, v, complete(given))
    return found


def complete(p: PartialPlacement) -> Placement:
    """`p` as a placement, degrees beyond three and waves defaulting to 1."""
    return Placement(**{f: x for f in p.__struct_fields__ if (x := getattr(p, f)) is not None})


def explain(enumeration: Enumeration) -> list[Diagnostic]:
    """Why a finished enumeration is empty: the constraint that left nothing, and the nearest value that would
    pass."""
    rules, fixed = enumeration.rules, enumeration.fixed
    name, stage = rules.vertex.name, enumeration.emptied_by
    given = [f for f in fixed.__struct_fields__ if getattr(fixed, f) is not None]
    notes = [f"fixed in the file: {f} = {_text(getattr(fixed, f))}" for f in given]
    if stage in ("tensor", "pipeline", "data"):
        found = degree_errors(rules, fixed)
    elif stage == "packing":
        found = [_no_packing(rules, fixed)]
    elif stage == "microbatches":
        found = [_no_microbatches(enumeration)]
    elif stage == "extent":
        found = [_no_extent(enumeration)]
    elif stage == "origin":
        found = [_no_origin(enumeration)]
    elif enumeration.least is None:
        found = [_no_waves(enumeration)]
    else:
        found = [_no_memory(enumeration)]
    return [
        msgspec.structs.replace(
            d, message=f"no plan is left for `{name}`: {d.message}", notes=(*d.notes, *notes)
        )
        for d in found
    ]


def _text(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _paths(rules: Rules, p: PartialPlacement, fields: Sequence[str]) -> list[str]:
    """Paths of those `fields` that are fixed; the vertex's plan if none is."""
    path = f"plan.{rules.vertex.name}"
    return [f"{path}.{f}" for f in fields if getattr(p, f) is not None] or [rules.path]


def _no_packing(rules: Rules, fixed: PartialPlacement) -> Diagnostic:
    dp, pp, tp = fixed.data_parallel, fixed.pipeline_parallel, fixed.tensor_parallel
    cp = fixed.context_parallel or 1
    for field, reason in (
        ("context_parallel", rules.context(cp)),
        ("expert_parallel", rules.experts(fixed.expert_parallel or 1, fixed.expert_parallel or 1)),
    ):
        if reason:
            return error("E419", f"{field.replace('_', ' ')}: {reason}", f"plan.{rules.vertex.name}.{field}")
    paths = _paths(rules, fixed, ("pipeline_parallel", "tensor_parallel", "data_parallel"))
    if pp is not None and tp is not None:
        if reason := rules.packing(pp, tp):
            return error("E416", reason, *paths[:2])
        if dp is not None and (reason := rules.gpus(dp * pp * tp * cp)):
            prompts = rules.problem.workload.prompts
            options = [d for d in divisors(prompts) if rules.gpus(d * pp * tp * cp) is None]
            return error("E416", reason, *paths, help=f"data parallel, {nearest(dp, options)}")
    return error("E416", "the fixed degrees cannot be packed into nodes and racks", *paths)


def _no_microbatches(enumeration: Enumeration) -> Diagnostic:
    rules, mb = enumeration.rules, enumeration.fixed.microbatches
    free = Enumeration(
        enumeration.evaluator, rules, msgspec.structs.replace(enumeration.fixed, microbatches=None)
    )
    layouts = {(dp, pp) for dp, pp, *_ in free.degrees()}
    options = {m for dp, pp in layouts for m in rules.microbatch_options(dp, pp)}
    if mb is not None:
        reasons = [r for dp, pp in sorted(layouts) if (r := rules.microbatches(dp, pp, mb))]
        return _degree("E414", f"plan.{rules.vertex.name}.microbatches", mb, reasons[0], options)
    paths = _paths(rules, enumeration.fixed, ("pipeline_parallel", "data_parallel"))
    dp, pp = min(layouts)
    return error(
        "E414",
        rules.microbatches(dp, pp, pp) or "no number of microbatches is legal",
        *paths,
        "workload.prompts",
        help="use fewer pipeline stages or replicas, or more prompts",
    )


def _no_extent(enumeration: Enumeration) -> Diagnostic:
    rules, extent = enumeration.rules, enumeration.fixed.extent
    assert extent is not None, "without a fixed extent every packed layout has one"
    path = f"plan.{rules.vertex.name}.extent"
    gpus = extent[0] * extent[1] * extent[2]
    if gpus < 1 or (reason := rules.extent(extent)):
        reason = reason if gpus >= 1 else "extents are at least 1"
        return error("E417", f"extent {list(extent)}: {reason}", path)
    implied = _replicas(enumeration, gpus)
    if implied and not any(rules.data(dp) is None for dp in implied):
        dp = min(implied)
        return _no_replicas(rules, dp, f"the {gpus} GPUs of the extent need {dp} replicas", path)
    sizes = {dp * pp * tp * cp for dp, pp, tp, cp, _ in enumeration.degrees()}
    message = f"no legal layout has the {gpus} GPUs of the extent"
    return error("E405", message, path, help=f"GPUs, {nearest(gpus, sizes)}")


def _replicas(enumeration: Enumeration, gpus: int) -> set[int]:
    """The data parallelism that `gpus` GPUs imply, for all other degrees that are legal."""
    rules, fixed = enumeration.rules, enumeration.fixed
    cp = fixed.context_parallel or 1
    tps = range(1, rules.problem.device_space[2] + 1)
    pps = divisors(rules.model.layers)
    return {
        gpus // (tp * pp * cp)
        for tp in (tps if fixed.tensor_parallel is None else [fixed.tensor_parallel])
        for pp in (pps if fixed.pipeline_parallel is None else [fixed.pipeline_parallel])
        if gpus % (tp * pp * cp) == 0
        and not (rules.tensor(tp) or rules.pipeline(pp) or rules.packing(pp, tp))
        and fixed.data_parallel in (None, gpus // (tp * pp * cp))
    }


def _no_replicas(rules: Rules, dp: int, message: str, *paths: str) -> Diagnostic:
    """E413: P_d = `dp` does not divide the prompts; the nearest degrees and numbers of prompts that do."""
    prompts = rules.problem.workload.prompts
    options = [x for x in divisors(prompts) if rules.data(x) is None]
    multiples = [str(x) for x in (prompts // dp * dp, prompts // dp * dp + dp) if x > 0]
    return error(
        "E413",
        f"{message}: {rules.data(dp)}",
        *paths,
        "workload.prompts",
        help=f"data parallel, {nearest(dp, options)}; or prompts, nearest {', '.join(multiples)}",
    )


def _no_origin(enumeration: Enumeration) -> Diagnostic:
    rules, fixed = enumeration.rules, enumeration.fixed
    path = f"plan.{rules.vertex.name}.origin"
    if fixed.origin is None:
        return error("E418", "every allocation contains excluded GPUs", "search.exclude")
    if fixed.extent is None:
        return error("E417", f"origin {list(fixed.origin)}: no legal allocation starts there", path)
    if placing := rules.origin(fixed.origin, fixed.extent):
        others = rules.origins(fixed.extent)
        close = sorted(
            others, key=lambda o: sum(abs(a - b) for a, b in zip(o, fixed.origin or o, strict=True))
        )
        hint = f"nearest legal: {', '.join(str(list(o)) for o in close[:2])}" if close else ""
        return error("E417", f"origin {list(fixed.origin)}: {placing}", path, help=hint)
    return error("E418", "the fixed allocation contains excluded GPUs", path, "search.exclude")


def _no_waves(enumeration: Enumeration) -> Diagnostic:
    """E419: the fixed number of waves is legal for no candidate."""
    rules, waves = enumeration.rules, enumeration.fixed.waves
    assert waves is not None, "without fixed waves something reaches the memory filter"
    reason = rules.waves(enumeration.fixed.data_parallel or 1, waves)
    return error(
        "E419",
        f"waves = {waves}: {reason or 'no legal layout leaves a replica that many sequences'}",
        f"plan.{rules.vertex.name}.waves",
        help="remove `waves`, or set it to 1",
    )


def _no_memory(enumeration: Enumeration) -> Diagnostic:
    least, limit = enumeration.least, enumeration.evaluator.limit_bytes
    assert least is not None, "something reached the memory filter"
    p, nbytes = least
    degrees = f"dp {p.data_parallel}, pp {p.pipeline_parallel}, tp {p.tensor_parallel}, mb {p.microbatches}"
    waves = f", {p.waves} waves" if p.waves > 1 else ""
    return error(
        "E421",
        f"it alone needs {amount(nbytes)} on a GPU that has {amount(limit)}",
        enumeration.rules.path,
        help="use more GPUs or shorter responses; "
        f"the smallest layout ({degrees}{waves}) is short of {amount(nbytes - limit)}",
    )
