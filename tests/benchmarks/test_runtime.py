"""What the runtime's benchmarks measure, on runs whose overhead is known."""

import heapq
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import vs_trl
from benchmarks.runtime_overhead import critical, nodes_of, replay, table
from ir_schema.model import ModelSpec
from ir_schema.trace import Complete, Dispatch, Part
from rpeg_rt.checkpoints.config import written
from rpeg_rt.dispatch import Dispatcher
from rpeg_rt.load import load_plan
from rpeg_rt.realise import Realisation
from rpegc.cli.group import run
from tests.rpeg_rt.plans import colocated, executable, place, problem

STEPS = 5


def part(start, finish):
    return Part(
        start_ns=start, finish_ns=finish, layout="", reads={}, writes={}, sent={}, received={}, rows={}
    )


def simulated(realisation, decide, start, skew, report):
    """Events of a run whose nodes take 1000 + 100 * id on every worker, and overhead as given."""
    template = realisation.executable.template
    dispatcher = Dispatcher(template, STEPS, realisation.reservations(), realisation.generation)
    events, running, now = [], [], 0
    while not dispatcher.finished:
        at = now + (decide if events else 0)
        while (x := dispatcher.next()) is not None:
            bound = realisation.bound[x.node]
            events.append(
                Dispatch(
                    time_ns=at, node=x.node, step=x.step, kind=bound.node.kind, vertex=bound.node.vertex,
                    phase=bound.node.phase, workers=bound.ranks,
                )
            )  # fmt: skip
            work, begin = 1000 + 100 * x.node, at + start
            late = {r: skew if i else 0 for i, r in enumerate(bound.ranks)}
            parts = {r: part(begin + s, begin + s + work) for r, s in late.items()}
            host = None if parts else part(begin, begin + work)
            end = begin + work + max(late.values(), default=0) + report
            heapq.heappush(running, (end, x, parts, host))
        now, x, parts, host = heapq.heappop(running)
        events.append(Complete(time_ns=now, node=x.node, step=x.step, parts=parts, host=host))
        dispatcher.complete(x)
    return events


@pytest.fixture(scope="module")
def realisation():
    plan = colocated(2, actor_train=place("2-3", dp=2), critic_train=place("2-3", dp=2))
    return Realisation(executable(problem(staleness=1, quantiles=((0.5, 4), (1.0, 8))), plan))


def test_a_run_without_overhead_is_its_own_replay(realisation):
    events = simulated(realisation, 0, 0, 0, 0)
    nodes = nodes_of(events, realisation, STEPS)
    assert {n.overhead for n in nodes.values()} == {0}
    assert replay(nodes, realisation, STEPS) == max(n.complete for n in nodes.values())


def test_overhead_is_told_by_part_and_makes_up_the_rest_of_the_critical_path(realisation):
    events = simulated(realisation, 3, 20, 7, 11)
    nodes = nodes_of(events, realisation, STEPS)
    assert {n.start for n in nodes.values()} == {20}
    assert {n.report for n in nodes.values()} == {11}
    assert {n.skew for n in nodes.values()} == {0, 7}
    assert min(n.decide for n in nodes.values() if n.after is not None) == 3
    makespan, path = max(n.complete for n in nodes.values()), critical(nodes)
    assert sum(n.work + n.overhead for n in path) == makespan
    assert makespan - sum(n.overhead for n in path) <= replay(nodes, realisation, STEPS) < makespan


def test_the_table_counts_all_nodes(realisation):
    nodes = nodes_of(simulated(realisation, 1000, 2000, 0, 3000), realisation, STEPS)
    rows = {row["kind"]: row for row in table([*nodes.values()])}
    assert rows["all"]["nodes"] == sum(row["nodes"] for kind, row in rows.items() if kind != "all")
    assert (rows["Op"]["start_us"], rows["Op"]["report_p99_us"]) == (2, 3)


def test_without_trl_the_comparison_is_skipped(tmp_path):
    done = CliRunner().invoke(vs_trl.main, ["--trl-python", str(tmp_path / "python")])
    assert done.exit_code == 0
    assert "has no TRL" in done.output


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_cpu_time_includes_that_of_children():
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint()\ninput()"
    before = vs_trl.cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        used = vs_trl.cpu_seconds() - before
        child.communicate("\n")
    assert used >= 0.28


@pytest.mark.slow
def test_the_problem_of_the_comparison_compiles(tmp_path):
    spec = ModelSpec(**vs_trl.MODEL, vocabulary=257, head="lm", bytes_per_parameter=4)
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "config.json").write_text(json.dumps(written(spec, "llama", "float32", 256)))
    (tmp_path / "p.rpeg").write_text(vs_trl.problem(4))
    assert run([str(tmp_path / "p.rpeg"), "-O1", "-q", "-o", str(tmp_path / "plan.exe.json")]) == 0
    plan = load_plan(tmp_path / "plan.exe.json")
    assert {m.layers for m in plan.executable.problem.models.values()} == {4}
    assert Realisation(plan.executable).world == 1
