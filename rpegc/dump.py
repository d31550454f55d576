"""Every stage as text to read, and its graph in Graphviz's language. Nothing reads these texts back."""

import json
from collections.abc import Iterable, Mapping, Sequence

from ir_schema.base import Record
from ir_schema.device import Allocation
from ir_schema.envelope import identify, stage_name
from ir_schema.problem import Layout, Placement, Problem
from ir_schema.stages import (
    Configuration,
    Costed,
    CostedNode,
    DeviceMemory,
    Executable,
    Lowered,
    Node,
    Scheduled,
    ScheduledNode,
    Score,
    TemplateNode,
    Unrolled,
)
from passes.uncertainty import Uncertainty
from rpegc.labels import node_labels, vertex_label
from rpegc.table import duration, indent, size, table
from rpegc.text.compose import compose
from rpegc.text.printer import print_file


def dump(stage: Record) -> str:
    """The text of a stage: its name and id, then what it says beyond the problem it came from."""
    return "\n".join([f"# {stage_name(stage)} {identify(stage)}", *_sections(stage)])


def _sections(stage: Record) -> Iterable[str]:
    match stage:
        case Problem():
            yield print_file(compose(stage))
        case Configuration():
            yield print_file(compose(stage.problem))
            yield section("plan", plan_table(stage.problem, stage.plan))
        case Unrolled():
            yield section("plan", plan_table(stage.configuration.problem, stage.configuration.plan))
            yield section("edges", _unrolled(stage))
        case Lowered() | Costed() | Scheduled():
            yield section("plan", plan_table(stage.configuration.problem, stage.configuration.plan))
            yield section("nodes", _nodes(stage.nodes))
            if isinstance(stage, Scheduled):
                label = node_labels(stage.nodes)
                yield section("critical path", "\n".join(label[i] for i in stage.critical_path))
            if not isinstance(stage, Lowered):
                yield section("peak memory", memory_table(stage.devices))
            if isinstance(stage, Scheduled):
                yield section("score", score_lines(stage))
        case Executable():
            yield section("plan", plan_table(stage.problem, stage.plan))
            yield section("template", _nodes(stage.template))
            yield section("peak memory", memory_table(stage.prediction.devices))
            yield section("score", score_lines(stage.prediction.score))


def section(title: str, body: str) -> str:
    """A title and an indented body."""
    return f"{title}\n{indent(body)}"


def allocation_text(allocation: Allocation | None) -> str:
    """`[0,0,0]+[1,2,4]`: origin and extent."""
    if allocation is None:
        return "host"
    return f"[{','.join(map(str, allocation.origin))}]+[{','.join(map(str, allocation.extent))}]"


def layout_text(layout: Layout | None) -> str:
    """`dp2 pp1 tp4`, with `cp` and `ep` where they are not 1."""
    if layout is None:
        return "-"
    text = f"dp{layout.data_parallel} pp{layout.pipeline_parallel} tp{layout.tensor_parallel}"
    text += f" cp{layout.context_parallel}" if layout.context_parallel > 1 else ""
    return text + (f" ep{layout.expert_parallel}" if layout.expert_parallel > 1 else "")


def placement_text(placement: Placement) -> str:
    """One vertex's plan on one line."""
    waves = f" waves{placement.waves}" if placement.waves > 1 else ""
    where, how = allocation_text(placement.allocation), layout_text(placement.layout)
    return f"{where} {how} mb{placement.microbatches}{waves}"


def plan_table(
    problem: Problem, plan: Mapping[str, Placement], times_s: Mapping[str, float] | None = None
) -> str:
    """One row per vertex: role, model, allocation, layout, microbatches, and time if it is known."""
    header = ["operator", "role", "model", "GPUs", "allocation", "layout", "mb"]
    rows: list[list[object]] = []
    for v in problem.graph.vertices:
        row: list[object] = [v.name, v.role, v.model or "(host)"]
        p = plan.get(v.name)
        row += ["-", "host", "-", "-"] if p is None else [
            p.allocation.gpus, allocation_text(p.allocation), layout_text(p.layout), p.microbatches
        ]  # fmt: skip
        rows.append(row)
        if times_s is not None:
            row.append(duration(times_s[v.name]) if v.name in times_s else "fused")
    right = [3, 6]
    if times_s is not None:
        header.append("time")
        right.append(7)
    return table(header, rows, right=right)


def _unrolled(stage: Unrolled) -> str:
    label = {v.id: vertex_label(v) for v in stage.vertices}
    rows = [(e.kind, label[e.source], "->", label[e.target], e.container or "") for e in stage.edges]
    return table(("kind", "from", "", "to", "container"), rows)


def _nodes(nodes: Sequence[Node]) -> str:
    label = node_labels(nodes)
    header = ["id", "node", "where", "layout", "bytes"]
    right = [0, 4]
    kind = type(nodes[0]) if nodes else Node
    if issubclass(kind, CostedNode):
        right.append(len(header))
        header.append("time")
    if issubclass(kind, ScheduledNode):
        right += [len(header), len(header) + 1]
        header += ["start ns", "finish ns"]
    header.append("after")
    rows = []
    for n in nodes:
        row: list[object] = [n.id, label[n.id], allocation_text(n.allocation), layout_text(n.layout)]
        row.append(n.payload_bytes or "-")
        if isinstance(n, CostedNode):
            row.append(duration(n.time_ns / 1e9))
        if isinstance(n, ScheduledNode):
            row += [n.start_ns, n.finish_ns]
        if isinstance(n, TemplateNode):
            row.append(" ".join(f"{e.source}" + (f"@-{e.distance}" if e.distance else "") for e in n.edges))
        else:
            row.append(" ".join(map(str, n.predecessors)))
        rows.append(row)
    return table(header, rows, right=right)


def memory_table(devices: Mapping[str, DeviceMemory]) -> str:
    """Peaks of all GPUs; neighbours with equal contents share a row."""
    groups: list[tuple[list[str], DeviceMemory]] = []
    for name, memory in devices.items():
        if groups and groups[-1][1] == memory:
            groups[-1][0].append(name)
        else:
            groups.append(([name], memory))
    rows = [
        (
            names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}",
            size(m.peak_bytes),
            size(m.persistent_bytes),
            size(m.transient_bytes),
            m.transient_worst or "-",
        )
        for names, m in groups
    ]
    return table(("GPU", "peak", "persistent", "transient", "largest transient"), rows, right=(1, 2, 3))


def score_lines(score: Score, uncertainty: Uncertainty | None = None) -> str:
    """The figures by which a plan is judged, one a line, with what is known of the step time's error."""
    feasible = "" if score.memory_feasible else "  (does not fit)"
    rows = [
        ("step time", f"{duration(score.step_time_s)}{interval_text(uncertainty)}"),
        ("throughput", f"{score.tokens_per_s:.5g} tokens/s ({score.tokens_per_s_per_gpu:.4g} per GPU)"),
        ("utilisation", f"{100 * score.utilisation:.1f} %"),
        ("operators at once", f"{score.P_eff:.2f}"),
        ("peak memory", f"{size(score.max_peak_bytes)} of {size(score.memory_limit_bytes)}{feasible}"),
        ("GPU-hours per step", f"{score.gpu_hours_per_step:.4g}"),
    ]
    if uncertainty is not None and uncertainty.note:
        rows.insert(1, ("uncertainty", uncertainty.note))
    return "\n".join(f"{name:<20}{value}" for name, value in rows)


def interval_text(uncertainty: Uncertainty | None) -> str:
    """` (90 %: 1.1 s to 1.38 s)`; nothing where there is no interval."""
    if uncertainty is None or uncertainty.step_time_low_s is None or uncertainty.step_time_high_s is None:
        return ""
    low, high = duration(uncertainty.step_time_low_s), duration(uncertainty.step_time_high_s)
    return f" ({100 * uncertainty.coverage:.0f} %: {low} to {high})"


def dot(stage: Record) -> str:
    """The graph of a stage in Graphviz's language."""
    names, edges = _graph(stage)
    lines = [f"  {_quote(key)} [label={_quote(text)}, shape={shape}];" for key, text, shape in names]
    lines += [f"  {_quote(a)} -> {_quote(b)} [label={_quote(t)}, style={s}];" for a, b, t, s in edges]
    return "\n".join([f"digraph {stage_name(stage)} {{", "  rankdir=LR;", *lines, "}"])


Names = list[tuple[str, str, str]]
Edges = list[tuple[str, str, str, str]]
_SHAPES = {"Op": "box", "Comm": "ellipse", "Reshard": "hexagon"}


def _graph(stage: Record) -> tuple[Names, Edges]:
    match stage:
        case Problem():
            g = stage.graph
            edges = [(e.source, e.target, e.container, "solid") for e in g.data_edges]
            edges += [(e.source, e.target, e.container, "dashed") for e in g.publication_edges]
            return [(v.name, f"{v.name}\n{v.role}", "box") for v in g.vertices], edges
        case Configuration():
            names, edges = _graph(stage.problem)
            placed = {name: placement_text(p) for name, p in stage.plan.items()}
            return [(n, f"{t}\n{placed.get(n, 'host')}", s) for n, t, s in names], edges
        case Unrolled():
            label = {v.id: vertex_label(v) for v in stage.vertices}
            style = {"data": "solid", "publication": "dashed"}
            return [(t, t, "box") for t in label.values()], [
                (label[e.source], label[e.target], e.container or e.kind, style.get(e.kind, "dotted"))
                for e in stage.edges
            ]
        case Lowered() | Costed() | Scheduled():
            label = node_labels(stage.nodes)
            return [(label[n.id], label[n.id], _SHAPES[n.kind]) for n in stage.nodes], [
                (label[p], label[n.id], "", "solid") for n in stage.nodes for p in n.predecessors
            ]
        case Executable():
            label = node_labels(stage.template)
            return [(label[n.id], label[n.id], _SHAPES[n.kind]) for n in stage.template], [
                (label[e.source], label[n.id], f"-{e.distance}", "dashed")
                if e.distance
                else (label[e.source], label[n.id], "", "solid")
                for n in stage.template
                for e in n.edges
            ]
    raise TypeError(f"{type(stage).__name__} has no graph")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
