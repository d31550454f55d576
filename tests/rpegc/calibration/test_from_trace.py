"""Samples from traces: one that is made up event by event, and one of a real run."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from calib.hardware import load_hardware
from ir_schema.device import joint_tier
from ir_schema.diagnostics import DiagnosticError
from ir_schema.envelope import encode_stage, identify
from ir_schema.hardware import Dispatch as Rates
from ir_schema.hardware import Hardware
from ir_schema.problem import Placement, Workload
from ir_schema.samples import OperatorCase, TransferSample
from ir_schema.stages import Executable, TemplateNode
from ir_schema.trace import VERSION, Chain, Complete, Dispatch, Event, Footer, Header, Part
from rpegc.calibration.cli import run
from rpegc.calibration.from_trace import (
    Timed,
    Traced,
    findings,
    read_plan,
    read_run,
    recalibrate,
    traced,
)
from rpegc.calibration.operators import gpt, predict
from rpegc.calibration.operators import place as on_first
from tests.rpeg_rt.plans import colocated, executable, place, problem, write_plan

ROOT = Path(__file__).parents[3]
STEPS = 5
MS = 1_000_000


def plan(staleness: int = 0, **changes: Placement) -> Executable:
    return executable(problem(staleness=staleness), colocated(**changes))


def ranks(allocation: object) -> list[int]:
    return [c[2] for c in allocation.coordinates()]  # type: ignore[attr-defined]


class Recorder:
    """Plays a plan node after node: node n of step k takes 10 n + k + 1 ms, and control takes 2 ms more."""

    def __init__(self, made: Executable, backend: str = "gloo") -> None:
        self.made, self.now = made, 0
        self.events: list[Event] = [
            Header(
                version=VERSION, plan=identify(made), steps=STEPS, seed=0, precision="float64",
                workers=dict.fromkeys(range(4), "cpu"), machines=dict.fromkeys(range(4), "here"),
                backend=backend, software={"torch": "1"},
            )
        ]  # fmt: skip
        self.hosts = set(made.problem.host)

    @staticmethod
    def duration(node: TemplateNode, step: int) -> int:
        return (10 * node.id + step + 1) * MS

    def play(self, node: TemplateNode, step: int, *, ahead: int = 0) -> None:
        """Run a node after the last one, or `ahead` ns before that was complete."""
        begin, work = self.now - ahead, self.duration(node, step)
        host = node.vertex in self.hosts and node.kind == "Op"
        sent: dict[int, int] = {}
        workers = [] if host else ranks(node.allocation)
        if node.kind == "Comm":
            sources = ranks(node.source_allocation)
            workers = sorted({*workers, *sources})
            sent = dict.fromkeys(ranks(node.allocation), 1000 + node.id)

        def part(rank: int) -> Part:
            # Workers begin one after another, and all work for as long.
            start = begin + MS + 1000 * max(rank, 0)
            gives = sent if node.kind == "Comm" and rank in sources else {}
            return Part(
                start_ns=start, finish_ns=start + work, layout="", reads={}, writes={}, sent=gives,
                received={}, rows={},
            )  # fmt: skip

        common = {"node": node.id, "step": step}
        self.events.append(
            Dispatch(
                time_ns=begin, kind=node.kind, vertex=node.vertex, phase=node.phase,
                workers=tuple(workers), **common,
            )
        )  # fmt: skip
        self.now = begin + work + 2 * MS
        parts = {r: part(r) for r in workers}
        self.events.append(Complete(time_ns=self.now, parts=parts, host=part(-1) if host else None, **common))

    def all(self, nodes: Iterable[TemplateNode]) -> "Recorder":
        chosen = list(nodes)
        for step in range(STEPS):
            for node in chosen:
                self.play(node, step)
        return self

    def end(self, code: int = 0) -> list[Event]:
        n = len(self.events) // 2
        return [
            *self.events,
            Footer(time_ns=self.now, exit_code=code, message="", dispatched=n, completed=n),
        ]


def test_operators_take_as_long_as_their_longest_worker() -> None:
    made = plan(actor_gen=place("0-1", tp=2))
    recorder = Recorder(made).all(n for n in made.template if n.kind == "Op")
    found = traced(recorder.end(), made)  # type: ignore[arg-type]
    by_case = {(s.case.role, s.case.model.head, s.case.placement): s for s in found.operators}
    assert len(by_case) == len(found.operators) == 5  # reward_inf is on the host
    for node in made.template:
        if node.kind == "Op" and node.vertex not in made.problem.host:
            vertex = next(v for v in made.problem.graph.vertices if v.name == node.vertex)
            assert vertex.model is not None
            sample = by_case[
                vertex.role, made.problem.models[vertex.model].head, made.plan[node.vertex]
            ] if vertex.role != "inference" else next(
                s for s in found.operators if s.case.model == made.problem.models[vertex.model]
                and s.case.role == "inference" and s.seconds[0] == Recorder.duration(node, 2) / 1e9
            )  # fmt: skip
            # The first two steps are not counted.
            assert sample.seconds == tuple(Recorder.duration(node, k) / 1e9 for k in (2, 3, 4))
            assert sample.case.workload == made.problem.workload
    assert found.left_out == {"in the first 2 steps": 12, "on the host": 3}


def test_messages_between_allocations_have_the_bytes_of_the_busiest_worker() -> None:
    made = plan(staleness=1, actor_gen=place("1"), actor_train=place("2-3", dp=2))
    comms = [n for n in made.template if n.kind == "Comm"]
    assert comms
    recorder = Recorder(made).all(made.template)
    found = traced(recorder.end(), made)  # type: ignore[arg-type]
    assert len(found.transfers) == len(comms)
    for node, sample in zip(comms, found.transfers, strict=True):
        targets = len(ranks(node.allocation))
        assert sample.nbytes == targets * (1000 + node.id)
        assert sample.seconds == tuple(Recorder.duration(node, k) / 1e9 for k in (2, 3, 4))
        assert sample.tier == joint_tier(node.source_allocation, node.allocation)  # type: ignore[arg-type]


def test_on_processors_only_what_ran_alone_counts() -> None:
    made = plan()
    nodes = [n for n in made.template if n.kind == "Op"]

    def overlapping(backend: str) -> tuple[int, int]:
        recorder = Recorder(made, backend)
        for step in range(STEPS):
            for node in nodes:
                # Training begins a millisecond before the node before it has ended.
                recorder.play(node, step, ahead=4 * MS if node.vertex == "critic_train" else 0)
        found = traced(recorder.end(), made)  # type: ignore[arg-type]
        return len(found.operators), found.left_out["beside others on the same processors"]

    assert overlapping("gloo") == (3, 6)
    assert overlapping("nccl") == (5, 0)


def test_a_generation_in_phases_is_one_operator_and_its_scoring_none() -> None:
    quantiles = ((0.5, 4), (1.0, 8))
    apart = colocated(actor_gen=place("1"))
    made = executable(problem(quantiles=quantiles), apart)
    phases = [n for n in made.template if n.vertex == "actor_gen" and n.kind == "Op"]
    assert [n.phases for n in phases] == [2, 2]
    found = traced(Recorder(made).all(made.template).end(), made)  # type: ignore[arg-type]
    (generation,) = (s for s in found.operators if s.case.role == "generation")
    expected = tuple(sum(Recorder.duration(n, k) for n in phases) / 1e9 for k in (2, 3, 4))
    assert generation.seconds == pytest.approx(expected)
    assert not [s for s in found.operators if s.case.role == "inference"]
    assert found.left_out["parts of an inference"] > 0


def test_a_resumed_run_is_warm_after_two_steps_of_its_own() -> None:
    made = plan()
    recorder = Recorder(made)
    recorder.events[0] = replace(recorder.events[0], first=2)
    for step in range(2, STEPS):
        for node in made.template:
            recorder.play(node, step)
    found = traced(recorder.end(), made)  # type: ignore[arg-type]
    assert {len(s.seconds) for s in found.operators} == {1}


def test_a_trace_without_any_operator_is_told() -> None:
    made = plan()
    recorder = Recorder(made)
    recorder.play(made.template[0], 0)
    with pytest.raises(DiagnosticError, match="measured no operator") as found:
        traced(recorder.end(), made)  # type: ignore[arg-type]
    assert found.value.diagnostics[0].code == "E954"


def test_runs_that_ended_early_are_told() -> None:
    recorder = Recorder(plan())
    assert findings(recorder.end()) == []  # type: ignore[arg-type]
    (early,) = findings(recorder.end(4))  # type: ignore[arg-type]
    assert "exit code 4" in early.message
    (cut,) = findings(recorder.events)  # type: ignore[arg-type]
    assert "cut off" in cut.message


def write(path: Path, events: Iterable[Event]) -> str:
    chain = Chain()
    path.write_bytes(b"".join(map(chain.line, events)))
    return str(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: b"", "not a trace: it is empty"),
        (lambda data: b'{"plan": 1}\n', "not a trace"),
        (lambda data: data.replace(b'"step":3', b'"step":4', 1), "line .* was changed"),
        (lambda data: data[:-20], "line .* is incomplete"),
        (lambda data: data.split(b"\n", 1)[1], "line 1 was changed"),
    ],
)
def test_files_that_are_no_intact_trace(change: Callable[[bytes], bytes], told: str, tmp_path: Path) -> None:
    made = plan()
    path = tmp_path / "trace.jsonl"
    name = write(path, Recorder(made).all(made.template).end())
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DiagnosticError, match=told) as found:
        read_run(name, identify(made))
    assert found.value.diagnostics[0].code == "E953"


def test_a_trace_and_a_plan_that_do_not_belong_together(tmp_path: Path) -> None:
    made, other = plan(), plan(staleness=1)
    name = write(tmp_path / "trace.jsonl", Recorder(made).all(made.template).end())
    (tmp_path / "other.exe.json").write_bytes(encode_stage(other))
    with pytest.raises(DiagnosticError, match="is of another plan"):
        read_run(name, read_plan(str(tmp_path / "other.exe.json"))[0])
    (tmp_path / "problem.json").write_bytes(encode_stage(made.problem))
    with pytest.raises(DiagnosticError, match="is a `problem` stage, not a plan"):
        read_plan(str(tmp_path / "problem.json"))


# Recalibration -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured() -> Hardware:
    return load_hardware(str(ROOT / "benchmarks" / "hardware" / "cpu-measured.json"))


def operators(hardware: Hardware) -> list[Timed]:
    """Operators of three roles that take as long as `hardware` says."""
    model = gpt(64, 2, 4, 512, 64)
    cases = [
        OperatorCase(
            role=role,  # type: ignore[arg-type]
            model=model,
            workload=Workload(prompts=8, rollouts=2, prompt_length=8, response_length=8),
            placement=on_first(layout, 1),
        )
        for role in ("generation", "inference", "training")
        for layout in ((1, 1, 1), (2, 1, 1), (1, 2, 1))
    ]
    return [Timed(c, (predict(c, hardware).seconds,) * 3) for c in cases]


def test_what_an_operation_takes_is_found_again(measured: Hardware) -> None:
    true = replace(measured, dispatch=Rates(decoding=2e-5, forward=5e-5, training=1.5e-5))
    found = recalibrate(Traced(operators(true), [], Counter()), measured, "mine", "a run")
    assert found.hardware.dispatch is not None
    for kind in ("decoding", "forward", "training"):
        assert getattr(found.hardware.dispatch, kind) == pytest.approx(getattr(true.dispatch, kind), rel=0.01)
    assert {c.parameter for c in found.changes} == {
        "dispatch.decoding", "dispatch.forward", "dispatch.training",
    }  # fmt: skip
    p, before = found.hardware.provenance, measured.provenance
    assert p is not None
    assert before is not None
    assert p.name == "mine"
    assert set(before.models) < set(p.models)
    assert {role: off < 0.02 for role, off in p.spread.items() if role != "transfers"} == {
        "generation": True, "inference": True, "training": True,
    }  # fmt: skip
    assert p.sources["product_flops"] == before.sources["product_flops"]
    assert p.notes == f"{before.notes}; a run"
    same = replace(found.hardware, dispatch=measured.dispatch, provenance=before)
    assert same == measured


def test_what_did_not_run_or_is_kept_stays(measured: Hardware) -> None:
    assert measured.dispatch is not None
    true = replace(measured, dispatch=Rates(decoding=2e-5, forward=5e-5, training=1.5e-5))
    some = [o for o in operators(true) if o.case.role != "training"]
    found = recalibrate(Traced(some, [], Counter()), measured, "mine", "", ["dispatch.forward"])
    assert [c.parameter for c in found.changes] == ["dispatch.decoding"]
    assert found.hardware.dispatch is not None
    assert found.hardware.dispatch.forward == measured.dispatch.forward
    assert found.hardware.dispatch.training == measured.dispatch.training
    assert found.hardware.dispatch.decoding == pytest.approx(2e-5, rel=0.01)
    assert found.hardware.provenance is not None
    assert measured.provenance is not None
    assert found.hardware.provenance.spread["training"] == measured.provenance.spread["training"]
    # One operator of a role tells a time, and nothing of how far others are off.
    found = recalibrate(Traced(some[:1], [], Counter()), measured, "mine", "")
    assert [c.parameter for c in found.changes] == ["dispatch.decoding"]
    assert found.hardware.provenance is not None
    assert found.hardware.provenance.spread == measured.provenance.spread


def message(nbytes: int, seconds: float) -> TransferSample:
    return TransferSample(
        primitive="point_to_point",
        tier="intra",
        participants=2,
        per_node=2,
        nbytes=nbytes,
        seconds=(seconds,),
    )


def test_messages_tell_a_link_unless_all_of_them_are_latency(measured: Hardware) -> None:
    sizes = (1_000, 100_000, 10_000_000, 1_000_000_000)
    some = operators(measured)
    long = [message(n, 1e-3 + n * 1e-9) for n in sizes]
    found = recalibrate(Traced(some, long, Counter()), measured, "mine", "")
    link = found.hardware.point_to_point.intra
    assert (link.alpha, link.beta) == (pytest.approx(1e-3, rel=0.02), pytest.approx(1e-9, rel=0.02))
    assert found.hardware.point_to_point.inter == measured.point_to_point.inter
    assert found.hardware.provenance is not None
    assert found.hardware.provenance.spread["transfers"] < 0.02
    left_out: Counter[str] = Counter()
    found = recalibrate(Traced(some, long[:2], left_out), measured, "mine", "")
    assert found.hardware.point_to_point == measured.point_to_point
    assert left_out == {"messages that tell no bandwidth at tier intra": 2}


def test_the_command_writes_what_a_run_showed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made, other = plan(), plan(staleness=1)
    write(tmp_path / "run.jsonl", Recorder(made).all(made.template).end())
    write(tmp_path / "early.jsonl", Recorder(made).all(made.template).end(4))
    for name, some in (("plan", made), ("other", other)):
        (tmp_path / f"{name}.exe.json").write_bytes(encode_stage(some))
    base = ["--onto", str(ROOT / "benchmarks" / "hardware" / "cpu-measured.json"), "-o", "mine.json"]
    assert run(["from-trace", "run.jsonl", "plan.exe.json", *base]) == 0
    said = capfd.readouterr().err
    assert "dispatch.training" in said
    assert "12 not counted: in the first 2 steps" in said
    written = load_hardware("./mine.json")
    assert written.provenance is not None
    assert written.provenance.name == "mine"
    assert identify(made)[:12] in written.provenance.notes
    (tmp_path / "mine.json").unlink()
    for arguments, code, exit_code in (
        (["run.jsonl", "other.exe.json", *base], "E953", 1),
        (["plan.exe.json", "plan.exe.json", *base], "E953", 1),
        (["run.jsonl", "run.jsonl", *base], "E901", 1),
        (["absent.jsonl", "plan.exe.json", *base], "E911", 2),
        (["run.jsonl", "plan.exe.json", "-o", "mine.json"], "E955", 1),
        (["run.jsonl", "plan.exe.json", *base, "--keep", "speed"], "E932", 2),
        (["early.jsonl", "plan.exe.json", *base, "--strict"], "W950", 1),
    ):
        assert run(["from-trace", *arguments]) == exit_code, arguments
        assert code in capfd.readouterr().err, arguments
        assert not (tmp_path / "mine.json").exists()


@pytest.mark.slow
def test_a_real_run_is_sampled(tmp_path: Path, measured: Hardware) -> None:
    from rpeg_rt.run import Settings, execute

    made = plan(actor_train=place("1"))
    path = write_plan(tmp_path, made)
    trace = tmp_path / "trace.jsonl"
    execute(path, Settings(steps=4, trace=trace), lambda *_: None)
    identity, read = read_plan(str(path))
    assert read == made
    lines = read_run(str(trace), identity)
    assert findings(lines) == []
    found = traced(lines, made)
    spent = {(e.node, e.step): e for e in lines if isinstance(e, Complete)}
    assert found.operators
    for sample in found.operators:
        assert 1 <= len(sample.seconds) <= 2
        nodes = [
            n.id for n in made.template if n.kind == "Op" and made.plan.get(n.vertex) == sample.case.placement
        ]
        longest = max(
            max(p.finish_ns - p.start_ns for p in e.parts.values())
            for (n, _), e in spent.items()
            if n in nodes
        )
        assert 0 < max(sample.seconds) <= longest / 1e9
    assert all(t.nbytes > 0 for t in found.transfers)
    corrected = recalibrate(found, measured, "mine", "")
    assert {c.parameter for c in corrected.changes} >= {"dispatch.decoding", "dispatch.forward"}
