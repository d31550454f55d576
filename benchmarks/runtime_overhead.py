"""What control costs: the runtime's own time per node, and the makespan beside one without any.

A plan runs on its CPU workers. Of every node the trace tells when it could start (its predecessors and the
nodes before it on its devices were complete), when it was dispatched, when its workers worked, and when its
completion was known. All but work is overhead:

    decide   from when it could start to its dispatch
    start    from there to when the first worker begins
    skew     between the first worker's begin and the last one's end, what exceeds the longest worker's work
    report   from the last worker's end to when the controller knows

The *replay* is the schedule of the same nodes in the same order with the same work and no overhead: a node
starts when its predecessors and the earlier nodes on its devices have ended, and takes as long as the
longest of its workers. The run's overhead is how much its makespan exceeds the replay's, and the critical
path of the run (each node, the one whose completion it waited for, and so on) tells where it is spent.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.study import HERE, Row, provenance
from ir_schema.trace import Complete, Dispatch, Line
from rpeg_rt.dispatch import Dispatcher, Instance
from rpeg_rt.load import load_plan
from rpeg_rt.realise import Realisation
from rpeg_rt.run import Settings, execute
from rpeg_rt.trace import read_trace, software_versions
from rpegc.cli.group import run as rpegc
from rpegc.table import csv_bytes

EXAMPLES = HERE.parent / "examples"
NAME = "runtime_overhead"
PARTS = ("decide", "start", "skew", "report")


@dataclass(frozen=True)
class Node:
    """A node as it ran, in ns: the parts of its overhead, the longest worker's work, when the controller knew
    of its end; and whose completion it waited for last (None: it was there from the start)."""

    kind: str
    decide: int
    start: int
    skew: int
    report: int
    work: int
    complete: int
    after: Instance | None

    @property
    def overhead(self) -> int:
        """All of it [ns]."""
        return self.decide + self.start + self.skew + self.report


def nodes_of(events: Iterable[Line], realisation: Realisation, steps: int) -> dict[Instance, Node]:
    """The nodes of a trace in the order of their dispatch."""
    dispatcher, reserved = _dispatcher(realisation, steps), realisation.reservations()
    completed: dict[Instance, Complete] = {}
    dispatched: dict[Instance, tuple[Dispatch, Instance | None]] = {}
    last: dict[str, Instance] = {}
    for event in events:
        if isinstance(event, Complete):
            completed[Instance(event.node, event.step)] = event
        elif isinstance(event, Dispatch):
            x = Instance(event.node, event.step)
            before = [*dispatcher.predecessors(x), *(last[d] for d in reserved[x.node] if d in last)]
            dispatched[x] = event, max(before, key=lambda y: completed[y].time_ns, default=None)
            last |= dict.fromkeys(reserved[x.node], x)
    found = {}
    for x, (d, after) in dispatched.items():
        c = completed[x]
        parts = [*c.parts.values()] if c.host is None else [c.host]
        begin, end = min(p.start_ns for p in parts), max(p.finish_ns for p in parts)
        work = max(p.finish_ns - p.start_ns for p in parts)
        found[x] = Node(
            kind="host" if c.host is not None else d.kind,
            decide=0 if after is None else d.time_ns - completed[after].time_ns,
            start=begin - d.time_ns,
            skew=end - begin - work,
            report=c.time_ns - end,
            work=work,
            complete=c.time_ns,
            after=after,
        )
    return found


def replay(nodes: dict[Instance, Node], realisation: Realisation, steps: int) -> int:
    """The makespan [ns] of the same nodes, in the order of their dispatch, without overhead."""
    dispatcher, reserved = _dispatcher(realisation, steps), realisation.reservations()
    end: dict[Instance, int] = {}
    free: dict[str, int] = defaultdict(int)
    for x, node in nodes.items():
        devices = reserved[x.node]
        begin = max((0, *(end[y] for y in dispatcher.predecessors(x)), *(free[d] for d in devices)))
        end[x] = begin + node.work
        free |= dict.fromkeys(devices, end[x])
    return max(end.values())


def _dispatcher(realisation: Realisation, steps: int) -> Dispatcher:
    template = realisation.executable.template
    return Dispatcher(template, steps, realisation.reservations(), realisation.generation)


def critical(nodes: dict[Instance, Node]) -> list[Node]:
    """The nodes of the run's critical path, the last first."""
    at: Instance | None = max(nodes, key=lambda x: nodes[x].complete)
    path = []
    while at is not None:
        path.append(nodes[at])
        at = nodes[at].after
    return path


def table(nodes: Sequence[Node]) -> list[Row]:
    """By kind of node: how many, their work, and their overhead, median and 99th percentile [us]."""
    kinds: dict[str, list[Node]] = {"all": [*nodes]}
    for node in nodes:
        kinds.setdefault(node.kind, []).append(node)
    rows: list[Row] = []
    for kind, some in kinds.items():
        row: Row = {"kind": kind, "nodes": len(some), "work_us": _us([n.work for n in some])[0]}
        for part in ("overhead", *PARTS):
            row[f"{part}_us"], row[f"{part}_p99_us"] = _us([getattr(n, part) for n in some])
        rows.append(row)
    return rows


def _us(values: Sequence[int]) -> tuple[float, float]:
    ranked = sorted(values)
    return round(statistics.median(ranked) / 1e3), round(ranked[(len(ranked) - 1) * 99 // 100] / 1e3)


@dataclass(frozen=True)
class Makespan:
    """A run beside its replay [s], and what its critical path spent on work and on the parts of overhead."""

    workers: int
    steps: int
    makespan_s: float
    replay_s: float
    overhead_percent: float
    path_nodes: int
    path_s: dict[str, float]


def measure(plan: Path, steps: int, trace: Path) -> tuple[Makespan, list[Row]]:
    """Run `steps` steps of `plan`, whose data are the examples'."""
    execute(plan, Settings(steps=steps, trace=trace, data=EXAMPLES), lambda *_: None)
    realisation = Realisation(load_plan(plan).executable)
    events = list(read_trace(trace))
    nodes = nodes_of(events, realisation, steps)
    begun = next(e.time_ns for e in events if isinstance(e, Dispatch))
    makespan = max(n.complete for n in nodes.values()) - begun
    without = replay(nodes, realisation, steps)
    path = critical(nodes)
    spent = {part: round(sum(getattr(n, part) for n in path) / 1e9, 4) for part in ("work", *PARTS)}
    found = Makespan(
        workers=realisation.world,
        steps=steps,
        makespan_s=round(makespan / 1e9, 4),
        replay_s=round(without / 1e9, 4),
        overhead_percent=round(100 * (makespan / without - 1), 2),
        path_nodes=len(path),
        path_s=spent,
    )
    return found, table([*nodes.values()])


@click.command()
@click.option("--steps", type=click.IntRange(1), default=40, show_default=True, help="RL steps to run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write results.csv and provenance.json into this directory.",
)
def main(steps: int, as_json: bool, output: Path | None) -> None:
    """Measure the runtime's overhead on the tiny PPO example with four CPU workers."""
    load, started = os.getloadavg(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="rpeg-") as directory:
        plan = Path(directory) / "plan.exe.json"
        source = Path(directory) / "problem.rpeg"
        text = (EXAMPLES / "ppo_tiny.rpeg").read_text(encoding="utf-8")
        # Nothing but the plan's nodes shall run.
        source.write_text("".join(x for x in text.splitlines(True) if "eval_prompts" not in x), "utf-8")
        if code := rpegc([str(source), "-q", "-o", str(plan)]):
            sys.exit(code)
        found, rows = measure(plan, steps, Path(directory) / "trace.jsonl")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        names = tuple(rows[0])
        (output / "results.csv").write_bytes(csv_bytes(names, [[r[n] for n in names] for r in rows]))
        told = provenance(f"python -m benchmarks.{NAME} --steps {steps}", time.perf_counter() - started, 1)
        told |= {"load": [round(x, 1) for x in load], "software": software_versions()} | asdict(found)
        (output / "provenance.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(asdict(found) | {"nodes": rows}, indent=2))
        return
    for row in rows:
        click.echo(", ".join(f"{name} {value}" for name, value in row.items()))
    click.echo(
        f"makespan {found.makespan_s:.3f} s on {found.workers} workers, {found.overhead_percent} % over the "
        f"replay; of the critical path ({found.path_nodes} nodes): "
        + ", ".join(f"{part} {100 * s / found.makespan_s:.1f} %" for part, s in found.path_s.items())
    )


if __name__ == "__main__":
    main()
