"""The report says what the schedule says, and the page holds the report and nothing from elsewhere."""

import json
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir_schema.base import Record
from ir_schema.device import Allocation, all_devices
from ir_schema.envelope import encode_stage
from ir_schema.problem import Container, Edge, Graph, Vertex
from ir_schema.stages import Scheduled, ScheduledNode, SearchReport, Ties
from passes.assemble import assemble
from passes.evaluate import evaluate
from passes.uncertainty import uncertainty
from rpegc.cli.group import run
from rpegc.report import Report, build, render
from rpegc.report.lanes import device_ranges, lanes_of
from rpegc.report.layout import BEND_HEIGHT, draw
from tests.rpegc.conftest import CASES, case_problem, configured, measured

FILES = sorted(CASES.glob("decided/*.json"))
SPLIT = CASES / "decided" / "03-ppo-async-disjoint-split.json"
FUSED = CASES / "decided" / "13-ppo-fused-training.json"


def schedule(path: Path) -> Scheduled:
    return evaluate(configured(case_problem(path)))


def embedded(page: bytes) -> Report:
    """The report as the page's own script reads it."""
    [text] = re.findall(r'<script type="application/json" id="report">(.*?)</script>', page.decode(), re.S)
    return msgspec.json.decode(text, type=Report)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_page_holds_the_schedule(path: Path) -> None:
    scheduled = schedule(path)
    report = embedded(render(build(scheduled)))
    assert report == build(scheduled)
    for field in type(report.score).__struct_fields__:
        assert getattr(report.score, field) == getattr(scheduled, field)
    for bar, node in zip(report.nodes, scheduled.nodes, strict=True):
        for field in (
            "id",
            "kind",
            "vertex",
            "step",
            "phase",
            "start_ns",
            "finish_ns",
            "parts_s",
            "predecessors",
        ):
            assert getattr(bar, field) == getattr(node, field)
    assert {b.id for b in report.nodes if b.critical} == set(scheduled.critical_path)
    assert sum(s.time_ns for s in report.critical_shares) == scheduled.makespan_ns
    assert {d: r.memory for r in report.memory for d in r.devices} == scheduled.devices


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_lanes_are_the_gpus(path: Path) -> None:
    scheduled = schedule(path)
    report = build(scheduled)
    names = all_devices(report.device_space)
    lanes = [lane for lane in report.lanes if lane.devices]
    assert sorted(d for lane in lanes for d in lane.devices) == sorted(names)
    for lane in lanes:
        for device in lane.devices:
            assert set(lane.nodes) == {n.id for n in scheduled.nodes if device in n.reserved}
        starts = [(report.nodes[i].start_ns, report.nodes[i].finish_ns) for i in lane.nodes]
        assert starts == sorted(starts)
    busy = sum(lane.busy * len(lane.devices) for lane in lanes)
    assert busy / len(names) == pytest.approx(scheduled.utilisation)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_an_executable_gives_the_same_report(path: Path) -> None:
    scheduled = schedule(path)
    assert scheduled.memory_feasible
    want, have = build(scheduled), build(assemble(scheduled))
    assert (have.stage, have.notices) == ("executable", want.notices)
    assert msgspec.structs.replace(have, stage=want.stage, stage_id=want.stage_id) == want


def test_times_of_one_step_add_up() -> None:
    scheduled = schedule(SPLIT)
    report = build(scheduled)
    nodes = [n for n in scheduled.nodes if n.step == report.shown_step]
    assert sum(t.time_ns for t in report.operator_times) == sum(n.time_ns for n in nodes if n.kind == "Op")
    assert sum(t.time_ns for t in report.transfers) == sum(n.time_ns for n in nodes if n.kind != "Op")
    assert sum(t.count for t in report.transfers) == sum(n.kind != "Op" for n in nodes)
    for t in report.operator_times:
        assert sum(t.parts_s.values()) == pytest.approx(t.time_ns / 1e9, abs=1e-8)
    assert {t.name: t.phases for t in report.operator_times}["actor_gen"] == 3


def test_a_fused_pair_shares_its_time_and_shows_its_pipeline() -> None:
    scheduled = schedule(FUSED)
    report = build(scheduled)
    name = "actor_train+critic_train"
    assert {o.timed_as for o in report.operators if o.role == "training"} == {name}
    [pipeline] = report.fused_pipelines
    assert pipeline.makespan_ns == max(t.finish_ns for row in pipeline.positions for t in row)
    order = tuple(tuple(t.task for t in row) for row in pipeline.positions)
    assert order == scheduled.microtasks[name].order
    for row in pipeline.positions:
        assert all(a.finish_ns <= b.start_ns for a, b in pairwise(row))


def test_other_plans_in_the_figures_of_this_one() -> None:
    scheduled = schedule(SPLIT)
    tokens = scheduled.score_tokens_per_s
    search = SearchReport(method="sa", baselines={"greedy": tokens, "runner-up": tokens / 2})
    configuration = msgspec.structs.replace(scheduled.configuration, search=search)
    greedy, second = build(msgspec.structs.replace(scheduled, configuration=configuration)).alternatives
    for field in ("step_time_s", "tokens_per_s", "gpu_hours_per_step"):
        assert getattr(greedy, field) == pytest.approx(getattr(scheduled, field))
    assert (second.name, second.step_time_s) == ("runner-up", pytest.approx(2 * scheduled.step_time_s))


def test_the_report_says_how_far_the_step_time_may_be_off() -> None:
    scheduled = evaluate(configured(measured(case_problem(SPLIT), 0.1)))
    ties = Ties(coverage=0.9, kept=2, indistinguishable=1, baselines=("greedy",))
    tokens = scheduled.score_tokens_per_s
    search = SearchReport(method="sa", baselines={"greedy": tokens, "runner-up": tokens / 2}, ties=ties)
    configuration = msgspec.structs.replace(scheduled.configuration, search=search)
    report = build(msgspec.structs.replace(scheduled, configuration=configuration))
    assert report.uncertainty == uncertainty(scheduled)
    assert [a.indistinguishable for a in report.alternatives] == [True, False]
    assert build(schedule(SPLIT)).uncertainty.step_time_low_s is None


def test_a_file_of_another_release_is_noticed() -> None:
    made = assemble(schedule(SPLIT))
    score = msgspec.structs.replace(made.prediction.score, step_time_s=1.0)
    prediction = msgspec.structs.replace(made.prediction, score=score)
    [notice] = build(msgspec.structs.replace(made, prediction=prediction)).notices
    assert notice.startswith("the file predicts 1 s per step, this release 3.03")


@pytest.mark.parametrize("path", [SPLIT, FUSED], ids=lambda p: p.stem)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    page = render(build(schedule(path))).decode()
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert set(re.findall(r'(?:href|src)="([^"]*)"', markup)) == {"#schedule"}
    assert set(re.findall(r"\w+://[^\s\"'`]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in page
    for word in ("url(", "@import", "fetch(", "XMLHttpRequest", "import(", "{{"):
        assert word not in page.replace("url(#arrow", "")


def test_names_cannot_leave_their_place() -> None:
    scheduled = schedule(SPLIT)
    evil = "</script><script>alert(1)</script>{{data}}<!--"
    problem = msgspec.structs.replace(scheduled.configuration.problem, name=evil, about=evil)
    configuration = msgspec.structs.replace(scheduled.configuration, problem=problem)
    page = render(build(msgspec.structs.replace(scheduled, configuration=configuration)))
    assert b"<script>alert" not in page
    assert embedded(page).name == evil


def node(i: int, start: int, finish: int, allocation: Allocation | None = None) -> ScheduledNode:
    reserved = tuple(allocation.device_names()) if allocation else ()
    return ScheduledNode(
        id=i, kind="Op", vertex="v", vertex_index=0, step=0, time_ns=finish - start, start_ns=start,
        finish_ns=finish, allocation=allocation, reserved=reserved,
    )  # fmt: skip


def test_host_operators_that_overlap_get_rows_of_their_own_and_idle_gpus_are_shown() -> None:
    one = Allocation(origin=(0, 0, 1), extent=(1, 1, 2))
    nodes = [node(0, 0, 4), node(1, 2, 6), node(2, 4, 8), node(3, 0, 5, one)]
    lanes = list(lanes_of(nodes, all_devices((1, 1, 4)), 10))
    assert [(x.label, x.nodes, x.busy) for x in lanes] == [
        ("0.0.0, 0.0.3", (), 0.0),
        ("0.0.1–0.0.2", (3,), 0.5),
        ("host", (0, 2), 0.8),
        ("host", (1,), 0.4),
    ]


def test_ranges_follow_the_flattened_order() -> None:
    names = all_devices((2, 2, 2))
    assert device_ranges([*names[1:5], names[7]], names) == "0.0.1–1.0.0, 1.1.1"


@st.composite
def graphs(draw_from: st.DrawFn) -> Graph:
    count = draw_from(st.integers(1, 9))
    names = [f"v{i}" for i in draw_from(st.permutations(range(count)))]
    vertices = tuple(Vertex(name=v, role="inference", reads=(), writes=()) for v in sorted(names))
    possible = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    chosen = draw_from(st.lists(st.sampled_from(possible), max_size=14)) if possible else []
    edges = tuple(Edge(a, b, f"c{i}") for i, (a, b) in enumerate(chosen))
    back = tuple(Edge(b, a, "w") for a, b in chosen[:2])
    containers = (Container(name="w", elements=1, bytes_each=1),)
    return Graph(vertices=vertices, data_edges=edges, publication_edges=back, containers=containers)


@given(graphs())
def test_a_drawing_keeps_order_and_distance(graph: Graph) -> None:
    drawing = draw(graph)
    layer = {v.name: v.layer for v in drawing.vertices}
    assert set(layer) == {v.name for v in graph.vertices}
    before = {v: [e.source for e in graph.data_edges if e.target == v] for v in layer}
    assert all(layer[v] == 1 + max((layer[u] for u in before[v]), default=-1) for v in layer)
    rows: dict[int, list[tuple[float, float]]] = {}
    for v in drawing.vertices:
        rows.setdefault(v.layer, []).append((v.y - 0.5, v.y + 0.5))
    for e in drawing.edges:
        bent = range(layer[e.source] + 1, layer[e.target]) if not e.publication else ()
        assert [i for i, _ in e.bends] == list(bent)
        for i, y in e.bends:
            rows.setdefault(i, []).append((y - BEND_HEIGHT / 2, y + BEND_HEIGHT / 2))
    for row in map(sorted, rows.values()):
        assert row[0][0] >= -1e-9
        assert row[-1][1] <= drawing.height + 1e-9
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(row))
    for kind, edges in ((False, graph.data_edges), (True, graph.publication_edges)):
        carried = sorted(
            (e.source, e.target, c) for e in drawing.edges if e.publication is kind for c in e.containers
        )
        assert carried == sorted((e.source, e.target, e.container) for e in edges)


def write(path: Path, stage: Record) -> Path:
    path.write_bytes(encode_stage(stage))
    return path


def test_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    scheduled = schedule(SPLIT)
    file = write(tmp_path / "a.json", assemble(scheduled))
    out = tmp_path / "new" / "report.html"
    out.parent.mkdir()
    assert run(["report", str(file), "-o", str(out), "--json"]) == 0
    said = capfd.readouterr()
    assert (json.loads(said.out)["score"]["makespan_ns"], said.err) == (scheduled.makespan_ns, "")
    assert msgspec.json.decode(said.out, type=Report) == embedded(out.read_bytes())
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]
    assert run(["report", str(file), "-o", "-"]) == 0
    assert capfd.readouterr().out.encode() == out.read_bytes()


def test_a_plan_that_does_not_fit_can_be_looked_at(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    problem = case_problem(SPLIT)
    small = msgspec.structs.replace(
        problem, hardware=msgspec.structs.replace(problem.hardware, memory_bytes=1e9)
    )
    file = write(tmp_path / "a.json", configured(small))
    assert run(["report", str(file), "-o", str(tmp_path / "r.html")]) == 0
    assert "the plan does not fit" in capfd.readouterr().err


def test_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    problem = case_problem(SPLIT)
    good, bare = write(tmp_path / "a.json", schedule(SPLIT)), write(tmp_path / "p.json", problem)
    (tmp_path / "bad.json").write_text(good.read_text().replace('"prompts": 128', '"prompts": 256', 1))
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for arguments, code, message in (
        ([bare, "-o", tmp_path / "r.html"], 2, "error[E935]"),
        ([good], 2, "no output"),
        ([good, "--json", "-o", "-"], 2, "both need stdout"),
        ([tmp_path / "none.json", "-o", "-"], 2, "error[E911]"),
        ([tmp_path / "bad.json", "-o", tmp_path / "r.html"], 1, "error[E904]"),
        ([good, "-o", tmp_path / "folder"], 2, "error[E912]"),
    ):
        assert run(["report", *map(str, arguments)]) == code, arguments
        said = capfd.readouterr()
        assert (said.out, message in said.err) == ("", True), (arguments, said.err)
    assert sorted(tmp_path.rglob("*")) == before
