"""From a stage to its report: the schedule is taken as it is, or made again from the plan.

The executable file holds one step's template and no schedule; evaluating its plan again gives the schedule
that its prediction was read from. If it does not, another release made the file, and the report says so.
"""

from collections.abc import Iterable, Mapping, Sequence

from ir_schema.base import Record
from ir_schema.device import all_devices, size
from ir_schema.envelope import canonical, identify, stage_name
from ir_schema.problem import Placement, Problem, Vertex
from ir_schema.stages import Executable, Node, Scheduled, ScheduledNode, Score, SearchReport
from passes.uncertainty import uncertainty
from rpegc.driver import input_run
from rpegc.dump import allocation_text, layout_text
from rpegc.failure import usage_error
from rpegc.labels import node_labels
from rpegc.outcome import notices, report_of, schedule_of, score_of
from rpegc.report.data import (
    Alternative,
    Bar,
    CriticalShare,
    Flow,
    HardwareSummary,
    MemoryRegion,
    Operator,
    OperatorTime,
    Report,
    Transfer,
)
from rpegc.report.lanes import device_ranges, lanes_of
from rpegc.report.layout import draw
from rpegc.report.microtasks import fused_pipelines


def build(stage: Record) -> Report:
    """The report of a stage that carries a complete plan.

    Raises UsageFailure E935 for a problem: it has no plan yet.
    """
    scheduled = schedule_of(stage)
    if scheduled is None:
        raise usage_error(
            "E935",
            f"a `{stage_name(stage)}` file has no plan to report on",
            help="compile it first: `rpegc FILE -o plan.exe.json`",
        )
    problem, plan = scheduled.configuration.problem, scheduled.configuration.plan
    nodes = scheduled.nodes
    shown = problem.options.steps // 2
    step = [n for n in nodes if n.step == shown]
    times = _operator_times(step)
    report = report_of(stage)
    provenance = problem.hardware.provenance
    names = all_devices(problem.device_space)
    return Report(
        name=problem.name,
        about=problem.about,
        stage=stage_name(stage),
        stage_id=identify(stage),
        cost_model=problem.options.cost_model,
        as_printed=problem.options.as_printed,
        split=problem.options.split,
        fused=problem.options.fuse,
        steps=problem.options.steps,
        shown_step=shown,
        staleness={m: problem.graph.staleness.get(m, 0) for m in problem.graph.trainable},
        hardware=HardwareSummary(
            name="unnamed" if provenance is None else provenance.name,
            nominal=provenance is None or provenance.nominal,
            memory_bytes=problem.hardware.memory_bytes,
            notes="" if provenance is None else provenance.notes,
        ),
        device_space=problem.device_space,
        gpus=size(problem.device_space),
        workload=problem.workload,
        score=_score(scheduled),
        uncertainty=uncertainty(scheduled),
        notices=tuple(_notices(stage, scheduled)),
        operators=tuple(_operator(v, plan.get(v.name), times) for v in problem.graph.vertices),
        operator_times=tuple(times),
        transfers=tuple(_transfers(step)),
        fused_pipelines=tuple(fused_pipelines(scheduled)),
        nodes=tuple(_bars(scheduled)),
        lanes=tuple(lanes_of(nodes, names, scheduled.makespan_ns)),
        critical_path=tuple(reversed(scheduled.critical_path)),
        critical_shares=tuple(_critical_shares(scheduled)),
        memory=tuple(_memory(scheduled, names)),
        graph=draw(problem.graph),
        alternatives=tuple(_alternatives(problem, scheduled, report)),
        search=report,
    )


def _score(scheduled: Scheduled) -> Score:
    return Score(**{f: getattr(scheduled, f) for f in Score.__struct_fields__})


def _notices(stage: Record, scheduled: Scheduled) -> Iterable[str]:
    """What a reader must know before believing the figures."""
    for found in notices([input_run(scheduled)]):
        yield found.message + (f"; {found.help}" if found.help else "")
    said = score_of(stage)
    if isinstance(stage, Executable) and said != _score(scheduled):
        assert said is not None
        yield (
            f"the file predicts {said.step_time_s:.6g} s per step, this release "
            f"{scheduled.step_time_s:.6g} s: another release or cost model made it; "
            "compile the problem again"
        )


def _operator(vertex: Vertex, placement: Placement | None, times: Sequence[OperatorTime]) -> Operator:
    timed_as = next((t.name for t in times if vertex.name in t.members), vertex.name)
    if placement is None:
        return Operator(
            name=vertex.name, role=vertex.role, model=None, timed_as=timed_as, allocation="host", gpus=0
        )
    return Operator(
        name=vertex.name,
        role=vertex.role,
        model=vertex.model,
        timed_as=timed_as,
        allocation=allocation_text(placement.allocation),
        gpus=placement.allocation.gpus,
        data_parallel=placement.data_parallel,
        pipeline_parallel=placement.pipeline_parallel,
        tensor_parallel=placement.tensor_parallel,
        context_parallel=placement.context_parallel,
        expert_parallel=placement.expert_parallel,
        microbatches=placement.microbatches,
        waves=placement.waves,
    )


def _operator_times(step: Sequence[ScheduledNode]) -> list[OperatorTime]:
    """Times of the operators of one step's nodes, in the order of their vertices."""
    found: dict[str, list[ScheduledNode]] = {}
    for n in step:
        if n.kind == "Op":
            found.setdefault(n.vertex, []).append(n)
    return [
        OperatorTime(
            name=name,
            members=phases[0].members or (name,),
            phases=len(phases),
            time_ns=sum(n.time_ns for n in phases),
            parts_s=_added(n.parts_s for n in phases),
        )
        for name, phases in sorted(found.items(), key=lambda item: item[1][0].vertex_index)
    ]


def _transfers(step: Sequence[ScheduledNode]) -> list[Transfer]:
    """One step's transfers by what they carry and between which vertices, the longest first."""
    found: dict[tuple[Flow, str, str, str], list[ScheduledNode]] = {}
    for n in step:
        if n.kind != "Op":
            key = (flow_of(n), n.container or n.model or "", n.source or "", n.vertex)
            found.setdefault(key, []).append(n)
    transfers = [
        Transfer(
            flow=flow,
            what=what,
            source=source,
            target=target,
            count=len(nodes),
            payload_bytes=sum(n.payload_bytes for n in nodes),
            time_ns=sum(n.time_ns for n in nodes),
            parts_s=_added(n.parts_s for n in nodes),
        )
        for (flow, what, source, target), nodes in found.items()
    ]
    return sorted(transfers, key=lambda t: -t.time_ns)


def flow_of(node: Node) -> Flow:
    """What a node does: compute, or move data, published weights, or weights to another layout."""
    if node.kind == "Op":
        return "operator"
    if node.kind == "Reshard":
        return "reshard"
    return "weights" if node.publication else "data"


def _bars(scheduled: Scheduled) -> Iterable[Bar]:
    label = node_labels(scheduled.nodes)
    critical = set(scheduled.critical_path)
    for n in scheduled.nodes:
        yield Bar(
            id=n.id,
            kind=n.kind,
            flow=flow_of(n),
            label=label[n.id],
            vertex=n.vertex,
            members=n.members or (n.vertex,),
            step=n.step,
            phase=n.phase,
            phases=n.phases,
            what=n.container or n.model,
            source=n.source,
            start_ns=n.start_ns,
            finish_ns=n.finish_ns,
            parts_s=n.parts_s,
            payload_bytes=n.payload_bytes,
            allocation=allocation_text(n.allocation),
            source_allocation=allocation_text(n.source_allocation) if n.source_allocation else "",
            gpus=0 if n.allocation is None else n.allocation.gpus,
            layout=layout_text(n.layout) if n.layout else "",
            reads=n.reads,
            writes=n.writes,
            predecessors=n.predecessors,
            critical=n.id in critical,
        )


def _critical_shares(scheduled: Scheduled) -> list[CriticalShare]:
    """The makespan divided among what the critical path runs through, the largest share first."""
    times: dict[tuple[Flow, str], int] = {}
    for i in scheduled.critical_path:
        n = scheduled.nodes[i]
        key = (flow_of(n), n.vertex)
        times[key] = times.get(key, 0) + n.time_ns
    shares = [CriticalShare(flow=flow, vertex=v, time_ns=t) for (flow, v), t in times.items() if t]
    return sorted(shares, key=lambda s: -s.time_ns)


def _memory(scheduled: Scheduled, names: Sequence[str]) -> Iterable[MemoryRegion]:
    """GPUs grouped by equal contents, in the order of their first GPU."""
    groups: dict[bytes, list[str]] = {}
    for name in names:
        groups.setdefault(canonical(scheduled.devices[name]), []).append(name)
    for members in groups.values():
        yield MemoryRegion(
            label=device_ranges(members, names),
            devices=tuple(members),
            memory=scheduled.devices[members[0]],
        )


def _alternatives(
    problem: Problem, scheduled: Scheduled, report: SearchReport | None
) -> Iterable[Alternative]:
    """The other plans that the search scored: their tokens per second say all the rest."""
    if report is None:
        return
    counted = scheduled.tokens_per_s / scheduled.score_tokens_per_s if scheduled.score_tokens_per_s else 0.0
    for name, tokens in report.baselines.items():
        seconds = problem.workload.sequences * problem.workload.total_length / tokens if tokens else 0.0
        yield Alternative(
            name=name,
            score_tokens_per_s=tokens,
            tokens_per_s=tokens * counted,
            step_time_s=seconds,
            gpu_hours_per_step=size(problem.device_space) * seconds / 3600,
            indistinguishable=None if report.ties is None else name in report.ties.baselines,
        )


def _added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in parts:
        for name, seconds in one.items():
            total[name] = total.get(name, 0.0) + seconds
    return total
