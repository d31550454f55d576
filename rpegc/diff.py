"""What two stages say differently, matched by name instead of by position.

Vertices, models and containers are matched by name, edges by their ends and container, nodes by their label
(ids are insertion order and shift). Ids inside nodes are replaced by labels before anything is compared,
so one more node shows as one added node.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ir_schema.base import Record
from ir_schema.envelope import identify, stage_name
from ir_schema.problem import Graph, Placement
from ir_schema.stages import (
    Configuration,
    Costed,
    Executable,
    Lowered,
    Node,
    Scheduled,
    Score,
    TemplateNode,
    Unrolled,
)
from passes.uncertainty import COVERAGE, unknown
from passes.uncertainty import difference as step_time_difference
from rpegc.dump import placement_text
from rpegc.labels import node_labels, vertex_label
from rpegc.outcome import plan_of, report_of, schedule_of
from rpegc.table import change, duration

Kind = Literal["removed", "added", "changed"]


class Change(Record, frozen=True, kw_only=True):
    """One difference at `path`; `percent` is the relative change of a number."""

    path: str
    kind: Kind
    before: Any = None
    after: Any = None
    percent: float | None = None


class Difference(Record, frozen=True, kw_only=True):
    """All that differs between two stages of one kind; `headline` is what a reader wants first."""

    stage: str
    before: str
    after: str
    same: bool
    headline: tuple[str, ...]
    changes: tuple[Change, ...]


def difference(before: Record, after: Record) -> Difference:
    """Compare two stages. Raises ValueError when they are of different kinds."""
    stage = stage_name(before)
    if stage_name(after) != stage:
        raise ValueError(f"a `{stage}` cannot be compared with a `{stage_name(after)}`")
    changes = tuple(_compare("", comparable(before), comparable(after)))
    return Difference(
        stage=stage,
        before=identify(before),
        after=identify(after),
        same=not changes,
        headline=tuple(_headline(before, after)) if changes else (),
        changes=changes,
    )


def comparable(stage: Record) -> Any:
    """The stage as nested maps in which everything is found by name."""
    return _Translate().value(stage)


class _Translate:
    """Turns records into maps; `label` translates node ids while inside one graph."""

    def value(self, x: Any) -> Any:
        match x:
            case Graph():
                return self.graph(x)
            case Unrolled():
                label = {v.id: vertex_label(v) for v in x.vertices}
                return {
                    "configuration": self.value(x.configuration),
                    "vertices": {label[v.id]: {"reads": v.reads, "writes": v.writes} for v in x.vertices},
                    "edges": _counted(
                        f"{e.kind} {label[e.source]} -> {label[e.target]} {e.container or ''}".strip()
                        for e in x.edges
                    ),
                }
            case Lowered() | Costed() | Scheduled():
                fields = self.fields(x) | {"nodes": self.nodes(x.nodes)}
                label = node_labels(x.nodes)
                for order in ("placement_order", "critical_path"):
                    if order in fields:
                        fields[order] = [label[i] for i in getattr(x, order)]
                return fields
            case Executable():
                return self.fields(x) | {"template": self.nodes(x.template)}
            case msgspec.Struct():
                return self.fields(x)
            case Mapping():
                return {str(k): self.value(v) for k, v in x.items()}
            case list() | tuple():
                return [self.value(v) for v in x]
            case _:
                return x

    def fields(self, x: msgspec.Struct) -> dict[str, Any]:
        return {
            name: self.value(getattr(x, name))
            for name in x.__struct_fields__
            if name not in ("nodes", "template")
        }

    def graph(self, g: Graph) -> dict[str, Any]:
        named = {v.name: self.fields(v) for v in g.vertices}
        return self.fields(g) | {
            "vertices": named,
            "vertex_order": list(named),
            "containers": {c.name: self.fields(c) for c in g.containers},
            "data_edges": _counted(f"{e.source} -> {e.target} : {e.container}" for e in g.data_edges),
            "publication_edges": _counted(
                f"{e.source} -> {e.target} : {e.container}" for e in g.publication_edges
            ),
        }

    def nodes(self, nodes: Sequence[Node]) -> dict[str, Any]:
        label = node_labels(nodes)
        out = {}
        for n in nodes:
            fields = self.fields(n)
            del fields["id"]
            fields["predecessors"] = sorted([label[p] for p in n.predecessors])
            if isinstance(n, TemplateNode):
                fields["edges"] = {
                    f"{label[e.source]} (-{e.distance})": {"first_step": e.first_step} for e in n.edges
                }
            out[label[n.id]] = fields
        return out


def _counted(items: Iterable[str]) -> dict[str, int]:
    return dict(Counter(items))


def _compare(path: str, a: Any, b: Any) -> Iterator[Change]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            inner = f"{path}.{key}" if path and key.isidentifier() else f"{path}[{key}]" if path else key
            if key not in b:
                yield Change(path=inner, kind="removed", before=a[key])
            elif key not in a:
                yield Change(path=inner, kind="added", after=b[key])
            else:
                yield from _compare(inner, a[key], b[key])
    elif a != b or type(a) is not type(b):
        yield Change(path=path, kind="changed", before=a, after=b, percent=_percent(a, b))


def _percent(a: Any, b: Any) -> float | None:
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    return 100 * (b - a) / abs(a) if numbers and a else None


def _headline(before: Record, after: Record) -> Iterator[str]:
    """Placement, predicted step time, critical path: what changed for whoever runs the plan."""
    a, b = _plan(before), _plan(after)
    for name in [*a, *(n for n in b if n not in a)]:
        if a.get(name) != b.get(name):
            old, new = (placement_text(p[name]) if name in p else "nowhere" for p in (a, b))
            yield f"{name}: {old} => {new}"
    if (p := _score(before)) and (q := _score(after)) and p.step_time_s != q.step_time_s:
        times = (p.step_time_s, q.step_time_s)
        told = f"step time: {duration(times[0])} => {duration(times[1])} {change(*times)}".rstrip()
        yield told + _significance(before, after)
    gaps = [r.optimality_gap if (r := report_of(s)) else None for s in (before, after)]
    if gaps[0] != gaps[1]:
        old, new = ("unknown" if g is None else f"{100 * g:.3g} %" for g in gaps)
        yield f"optimality gap: {old} => {new}"
    if isinstance(before, Scheduled) and isinstance(after, Scheduled):
        paths = [[node_labels(s.nodes)[i] for i in s.critical_path] for s in (before, after)]
        if paths[0] != paths[1]:
            gone = [x for x in paths[0] if x not in paths[1]]
            come = [x for x in paths[1] if x not in paths[0]]
            yield f"critical path: {len(paths[0])} => {len(paths[1])} nodes"
            yield from (f"  - {x}" for x in gone)
            yield from (f"  + {x}" for x in come)


def _significance(before: Record, after: Record) -> str:
    """Whether the difference in step time is more than predictions are off, in words; nothing where that is
    not known."""
    given = [plan_of(stage) for stage in (before, after)]
    if not all(found and not unknown(found[0]) for found in given):
        return ""
    plan, other = schedule_of(before), schedule_of(after)
    interval = step_time_difference(plan, other) if plan and other else None
    if interval is None:
        return ""
    low, high = interval
    told = "indistinguishable" if low <= 0 <= high else "distinguishable"
    return f", {told}: {100 * COVERAGE:.0f} % interval of the difference {duration(low)} to {duration(high)}"


def _plan(stage: Record) -> Mapping[str, Placement]:
    if isinstance(stage, (Configuration, Executable)):
        return stage.plan
    configuration = getattr(stage, "configuration", None)
    return configuration.plan if isinstance(configuration, Configuration) else {}


def _score(stage: Record) -> Score | None:
    if isinstance(stage, Executable):
        return stage.prediction.score
    return stage if isinstance(stage, Score) else None


def render(found: Difference, *, stat: bool = False) -> str:
    """The difference as text: the headline, then every change, or with `stat` only how many and where."""
    if found.same:
        return f"the same {found.stage}"
    lines = [f"{found.stage} {found.before[:12]} => {found.after[:12]}", *found.headline]
    count = Counter(c.kind for c in found.changes)
    lines.append(", ".join(f"{count[k]} {k}" for k in ("removed", "added", "changed") if count[k]))
    if stat:
        where = Counter(c.path.split(".")[0].split("[")[0] for c in found.changes)
        lines += [f"  {n:6}  {name}" for name, n in where.items()]
    else:
        lines += [f"  {_line(c)}" for c in found.changes]
    return "\n".join(lines)


def _line(c: Change) -> str:
    if c.kind == "removed":
        return f"- {c.path}: {_short(c.before)}"
    if c.kind == "added":
        return f"+ {c.path}: {_short(c.after)}"
    percent = f" ({c.percent:+.3g} %)" if c.percent is not None else ""
    return f"~ {c.path}: {_short(c.before)} => {_short(c.after)}{percent}"


def _short(value: Any, limit: int = 100) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= limit else f"{text[:limit]}…"
