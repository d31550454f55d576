"""Recalibration from a run of `rpeg-rt`: what its trace says of how long operators and messages took.

A trace tells when every worker began and ended its part of a node, and how many bytes it exchanged with
which other. An operator of the plan is measured once in every step, a transfer between allocations as a
message of the bytes of its busiest worker. Responses count as being as long as the workload says: a trace
does not tell.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calib.fits import RISE
from ir_schema.base import TIERS, Role, Tier
from ir_schema.device import joint_tier
from ir_schema.diagnostics import Diagnostic, DiagnosticError, error
from ir_schema.envelope import decode_stage
from ir_schema.hardware import Hardware, Measured
from ir_schema.samples import OperatorCase, TransferSample
from ir_schema.stages import Executable, TemplateNode
from ir_schema.trace import (
    BrokenTraceError,
    Complete,
    Dispatch,
    Footer,
    Header,
    Line,
    NotATraceError,
    Part,
    read_events,
)
from rpegc.calibration.draft import Change, Draft, warning
from rpegc.calibration.parts import Curve, fit_operators, fit_transfers, spread_of
from rpegc.calibration.samples import model_id, typical
from rpegc.calibration.sanity import contradictions
from rpegc.failure import usage_error
from rpegc.stagefiles import read_bytes, reason

WARM = 2
"""Steps at the beginning of a run that are not counted: memory is allocated, connections are made."""

_DISPATCH: dict[Role, str] = {
    "generation": "dispatch.decoding",
    "inference": "dispatch.forward",
    "training": "dispatch.training",
}
_START = 1e-5
ENOUGH = 3
"""Operators of a role, or messages, from which on they say how far predictions are off."""


class Timed(NamedTuple):
    """An operator and how long it took, by step [s]."""

    case: OperatorCase
    seconds: tuple[float, ...]


class Traced(NamedTuple):
    """What a trace measured, and how many nodes of it measured nothing, by reason."""

    operators: list[Timed]
    transfers: list[TransferSample]
    left_out: Counter[str]


class Recalibrated(NamedTuple):
    """A hardware file with what a run showed, what changed, and what is wrong with it."""

    hardware: Hardware
    changes: list[Change]
    findings: list[Diagnostic]


class _Node(NamedTuple):
    """A node as it ran: between which times [ns] its workers did, on which machines, and how long the longest
    of them worked [s]."""

    begin: int
    end: int
    machines: frozenset[str]
    seconds: float
    parts: dict[int, Part]


def read_plan(name: str) -> tuple[str, Executable]:
    """The executable file `name` with its id.

    Raises UsageFailure E911 (unreadable) or DiagnosticError: E901 to E904 (no intact stage file), E953
    (another stage).
    """
    envelope, body = decode_stage(read_bytes(name))
    if not isinstance(body, Executable):
        stage = envelope.schema.removeprefix("rpeg.")
        help = "`rpegc problem.rpeg -o plan.exe.json` writes one"
        raise DiagnosticError(
            [error("E953", f"`{name}` is a `{stage}` stage, not a plan that was run", help=help)]
        )
    return envelope.id, body


def read_run(name: str, plan: str) -> list[Line]:
    """The lines of the trace `name`, of a run of the plan with id `plan`, the header first.

    Raises UsageFailure E911 (unreadable) or DiagnosticError E953 (no trace, a changed one, another plan's).
    """
    try:
        with Path(name).open("rb") as file:
            lines = list(read_events(file))
    except OSError as exc:
        raise usage_error("E911", f"cannot read `{name}`: {reason(exc)}") from exc
    except NotATraceError as exc:
        text = f"`{name}` is not a trace" + (f": {exc}" if str(exc) else "")
        raise DiagnosticError([error("E953", text, help="`rpeg-rt PLAN --trace FILE` writes one")]) from exc
    except BrokenTraceError as exc:
        raise DiagnosticError([error("E953", f"`{name}`: {exc}")]) from exc
    header = lines[0]
    if not isinstance(header, Header):
        raise DiagnosticError([error("E953", f"`{name}` does not begin with a header")])
    if header.plan != plan:
        text = f"`{name}` is of another plan: of {header.plan[:12]}, given is {plan[:12]}"
        raise DiagnosticError([error("E953", text, help="give the plan that was run")])
    return lines


def findings(lines: Iterable[Line]) -> list[Diagnostic]:
    """W950 for a run that did not come to its end."""
    footer = next((x for x in lines if isinstance(x, Footer)), None)
    if footer is not None and footer.exit_code == 0:
        return []
    how = "the trace was cut off" if footer is None else f"it ended with exit code {footer.exit_code}"
    return [warning("W950", f"the run did not come to its end: {how}; what was complete is used")]


def traced(lines: list[Line], executable: Executable) -> Traced:
    """What the run of a plan measured, its first `WARM` steps left out.

    On processors, which workers share, only what ran alone on its machines counts.
    Raises DiagnosticError E954 where nothing is left.
    """
    header = lines[0]
    assert isinstance(header, Header), "`read_run` has seen to it"
    template = {node.id: node for node in executable.template}
    nodes = _nodes(lines, header)
    unknown = next((n for n, _ in nodes if n not in template), None)
    if unknown is not None:
        raise DiagnosticError([error("E953", f"the trace has node {unknown}, which is not in its plan")])
    left_out: Counter[str] = Counter()
    crowded = _crowded(nodes) if header.backend == "gloo" else set()
    operators: dict[tuple[str, int], list[float]] = defaultdict(list)
    messages: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (number, step), node in nodes.items():
        if step < header.first + WARM:
            left_out[f"in the first {WARM} steps"] += 1
            continue
        planned = template[number]
        if why := _unusable(planned, node, (number, step) in crowded, executable):
            left_out[why] += 1
        elif planned.kind == "Op":
            operators[planned.vertex, step].append(node.seconds)
        else:
            messages[number, _most(node)].append(node.seconds)
    found = _operators(operators, executable, left_out)
    if not found:
        told = ", ".join(f"{n} {why}" for why, n in left_out.most_common())
        help = "a longer run, or a plan with operators that run alone"
        raise DiagnosticError(
            [error("E954", f"the trace measured no operator ({told or 'it is empty'})", help=help)]
        )
    transfers = [
        TransferSample(
            primitive="point_to_point", tier=tier, participants=2, per_node=2 if tier == "intra" else 1,
            nbytes=nbytes, seconds=tuple(seconds),
        )
        for (number, nbytes), seconds in messages.items()
        for tier in (_tier(template[number]),)
    ]  # fmt: skip
    return Traced(found, transfers, left_out)


def recalibrate(
    found: Traced, base: Hardware, name: str, told: str, keep: Iterable[str] = ()
) -> Recalibrated:
    """`base`, called `name`, with what a run (`told` in words) showed: what an operation takes in the roles
    that ran, and messages. All else, and what is in `keep`, stays.

    Raises DiagnosticError E955 unless `base` was measured with the runtime.
    """
    if base.dispatch is None:
        help = "`rpeg-calib run` measures a machine with the runtime; a run then corrects that file"
        message = "the hardware file does not say what an operation of the runtime takes (`dispatch`)"
        raise DiagnosticError([error("E955", message, help=help)])
    draft, findings, curves = Draft(base, keep), list[Diagnostic](), list[Curve]()
    for tier in TIERS:
        messages = [t for t in found.transfers if t.tier == tier]
        times = [typical(t.seconds) for t in messages]
        if times and max(times) < RISE * min(times):
            found.left_out[f"messages that tell no bandwidth at tier {tier}"] += len(times)
        elif times:
            # Without processors that workers share, messages are not their work.
            alone = base.node_processors == 0
            fitted = fit_transfers(draft, "point_to_point", tier, messages, gpu=alone)
            curves, findings = curves + fitted.curves, findings + fitted.findings
    start = {}
    for role in dict.fromkeys(o.case.role for o in found.operators):
        parameter = _DISPATCH[role]
        start[parameter] = getattr(base.dispatch, parameter.partition(".")[2]) or _START
    seconds = np.array([typical(o.seconds) for o in found.operators])
    fitted = fit_operators(draft, [o.case for o in found.operators], seconds, start)
    findings += [*fitted.findings, *draft.findings(), *contradictions(draft.hardware, draft.changes)]
    spread: dict[Measured, float] = spread_of([c for c in fitted.curves if len(c.size) >= ENOUGH])
    if told_by := [c.spread for c in curves if len(c.size) >= ENOUGH]:
        spread["transfers"] = max(told_by)
    p = draft.provenance
    draft.describe(
        name=name, spread=p.spread | spread, notes=f"{p.notes}; {told}" if p.notes else told,
        models=tuple(sorted({*p.models, *(model_id(o.case.model) for o in found.operators)})),
    )  # fmt: skip
    return Recalibrated(draft.hardware, draft.changes, findings)


def _nodes(lines: Iterable[Line], header: Header) -> dict[tuple[int, int], _Node]:
    """All completed nodes by template node and step."""
    dispatched: set[tuple[int, int]] = set()
    found = {}
    for event in lines:
        if isinstance(event, Dispatch):
            dispatched.add((event.node, event.step))
        elif isinstance(event, Complete):
            x = event.node, event.step
            parts = event.parts or ({} if event.host is None else {-1: event.host})
            if x not in dispatched or not parts:
                raise DiagnosticError(
                    [error("E953", f"node {x[0]} of step {x[1]} was completed, never begun")]
                )
            work = max(p.finish_ns - p.start_ns for p in parts.values())
            found[x] = _Node(
                begin=min(p.start_ns for p in parts.values()),
                end=max(p.finish_ns for p in parts.values()),
                machines=frozenset(header.machines[rank] for rank in event.parts),
                seconds=work / 1e9,
                parts=event.parts,
            )
    return found


def _crowded(nodes: dict[tuple[int, int], _Node]) -> set[tuple[int, int]]:
    """The nodes that did not run alone on their machines."""
    found: set[tuple[int, int]] = set()
    running: list[tuple[int, int]] = []
    for x in sorted(nodes, key=lambda x: nodes[x].begin):
        running = [y for y in running if nodes[y].end > nodes[x].begin]
        for y in running:
            if nodes[x].machines & nodes[y].machines:
                found |= {x, y}
        running.append(x)
    return found


def _unusable(planned: TemplateNode, node: _Node, crowded: bool, executable: Executable) -> str:
    """Why a node measured nothing; empty if it did."""
    if not node.parts:
        return "on the host"
    if planned.kind == "Reshard":
        return "weights between layouts"
    if crowded:
        return "beside others on the same processors"
    if planned.kind == "Comm":
        return "" if _most(node) else "without bytes"
    if planned.members:
        return "two trainings at once"
    roles = {v.name: v.role for v in executable.problem.graph.vertices}
    if planned.phases > 1 and roles[planned.vertex] != "generation":
        return "parts of an inference"
    return ""


def _most(node: _Node) -> int:
    """Bytes that the busiest worker of a transfer sent, or received, from others."""

    def others(rank: int, by_peer: dict[int, int]) -> int:
        return sum(nbytes for peer, nbytes in by_peer.items() if peer != rank)

    return max(max(others(r, p.sent), others(r, p.received)) for r, p in node.parts.items())


def _tier(planned: TemplateNode) -> Tier:
    assert planned.source_allocation is not None
    assert planned.allocation is not None
    return joint_tier(planned.source_allocation, planned.allocation)


def _operators(
    seconds: dict[tuple[str, int], list[float]], executable: Executable, left_out: Counter[str]
) -> list[Timed]:
    """Every vertex with its phases' times, summed by step, where all of them count."""
    problem = executable.problem
    phases = {n.vertex: n.phases for n in executable.template if n.kind == "Op"}
    by_vertex: dict[str, list[float]] = defaultdict(list)
    for (name, _), parts in seconds.items():
        if len(parts) == phases[name]:
            by_vertex[name].append(sum(parts))
        else:
            left_out["parts of a generation"] += len(parts)
    return [
        Timed(
            OperatorCase(
                role=vertex.role, model=problem.models[vertex.model], workload=problem.workload,
                placement=executable.plan[vertex.name],
            ),
            tuple(by_vertex[vertex.name]),
        )
        for vertex in problem.graph.vertices
        if vertex.name in by_vertex and vertex.model is not None
    ]  # fmt: skip
