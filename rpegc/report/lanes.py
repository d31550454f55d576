"""Rows of the Gantt chart: GPUs that do the same at all times share one, host operators get their own."""

from collections.abc import Iterable, Sequence

from ir_schema.stages import ScheduledNode
from rpegc.report.data import Lane


def lanes_of(nodes: Sequence[ScheduledNode], names: Sequence[str], makespan_ns: int) -> Iterable[Lane]:
    """Lanes in the order of their first GPU, idle GPUs included, then those of the host.

    `names` are all GPUs in flattened order. Node ids in a lane are in the order of their starts.
    """
    reserved: dict[str, list[int]] = {name: [] for name in names}
    sends: dict[str, list[int]] = {name: [] for name in names}
    ordered = sorted(nodes, key=lambda n: (n.start_ns, n.finish_ns, n.id))
    for n in ordered:
        for name in n.reserved:
            reserved[name].append(n.id)
        if n.kind == "Comm" and n.source_allocation is not None:
            for name in n.source_allocation.device_names():
                sends[name].append(n.id)
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for name in names:
        groups.setdefault((tuple(reserved[name]), tuple(sends[name])), []).append(name)
    for (ids, leaving), members in groups.items():
        busy = sum(nodes[i].time_ns for i in ids)
        yield Lane(
            label=device_ranges(members, names),
            devices=tuple(members),
            nodes=ids,
            sends=leaving,
            busy=busy / makespan_ns if makespan_ns else 0.0,
        )
    for row in _host_rows([n for n in ordered if n.kind == "Op" and n.allocation is None]):
        busy = sum(n.time_ns for n in row)
        yield Lane(
            label="host",
            devices=(),
            nodes=tuple(n.id for n in row),
            sends=(),
            busy=busy / makespan_ns if makespan_ns else 0.0,
        )


def _host_rows(ordered: Sequence[ScheduledNode]) -> list[list[ScheduledNode]]:
    """Nobody reserves the host: each node goes to the first row that is free when it starts."""
    rows: list[list[ScheduledNode]] = []
    for n in ordered:
        row = next((r for r in rows if r[-1].finish_ns <= n.start_ns), None)
        if row is None:
            rows.append([n])
        else:
            row.append(n)
    return rows


def device_ranges(members: Sequence[str], names: Sequence[str]) -> str:
    """`0.0.0–0.1.3, 1.0.0`: runs of GPUs that follow each other in flattened order."""
    place = {name: i for i, name in enumerate(names)}
    runs: list[list[str]] = []
    for name in members:
        if runs and place[name] == place[runs[-1][-1]] + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
