"""Running pipelines: what is passed on, what instruments see, and what happens when a pass misbehaves."""

from pathlib import Path

import pytest

from ir_schema.diagnostics import DiagnosticError
from ir_schema.envelope import decode_stage
from ir_schema.problem import Problem
from ir_schema.stages import Configuration, Unrolled
from rpegc.driver import Instrument, StageRun, input_run, run_pipeline
from rpegc.failure import InternalFailure, UsageFailure
from rpegc.instrument import PrintAfter, SaveStages, TimePasses, VerifyEach
from rpegc.pipeline import Pipeline
from tests.rpegc.fakes import Plan, Spread, Tune

CHAIN = Pipeline((Tune(steps=3), Plan(), Spread()))


def test_every_stage_is_passed_on(problem: Problem) -> None:
    runs = run_pipeline(CHAIN, input_run(problem))
    assert [type(r.stage) for r in runs] == [Problem, Problem, Configuration, Unrolled]
    assert [r.parent for r in runs[1:]] == [r.id for r in runs[:-1]]
    assert runs[-1].stage.configuration.problem.options.steps == 3


def test_a_stage_file_says_how_it_was_made(problem: Problem) -> None:
    last = run_pipeline(CHAIN, input_run(problem, external={"a.rpeg": "0" * 64}))[1]
    envelope, body = decode_stage(last.encode())
    assert body == last.stage
    assert (envelope.produced_by, envelope.id, envelope.parent) == ("tune{steps=3}", last.id, last.parent)
    assert envelope.external == {"a.rpeg": "0" * 64}


def test_resuming_gives_the_same_stages(problem: Problem, tmp_path: Path) -> None:
    whole = run_pipeline(CHAIN, input_run(problem), [SaveStages(tmp_path)])
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "00-input.problem.json",
        "01-tune.problem.json",
        "02-plan.configuration.json",
        "03-spread.unrolled.json",
    ]
    _, body = decode_stage((tmp_path / "02-plan.configuration.json").read_bytes())
    resumed = run_pipeline(CHAIN.part(2), input_run(body))
    assert resumed[-1].encode() == whole[-1].encode()


def test_a_users_mistake_is_not_a_crash(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError, match="too strict") as caught:
        run_pipeline(Pipeline((Tune(strict=True),)), input_run(problem), reproducers=tmp_path)
    assert not isinstance(caught.value, InternalFailure)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fault", "message"), [("crash", "RuntimeError: out of luck"), ("type", "returned Problem instead of")]
)
def test_a_crash_leaves_what_is_needed_to_see_it_again(
    problem: Problem, tmp_path: Path, fault: str, message: str
) -> None:
    pipeline = Pipeline((Tune(steps=3), Plan(fault=fault), Spread()))
    with pytest.raises(InternalFailure) as caught:
        run_pipeline(pipeline, input_run(problem), reproducers=tmp_path)
    [found] = caught.value.diagnostics
    assert found.code == "E990"
    assert "pass `plan` crashed" in found.message
    assert any(message in note for note in found.notes)
    folder = Path(caught.value.reproducer or "")
    assert (folder / "pipeline.txt").read_text() == f"plan{{fault={fault}}},spread\n"
    _, body = decode_stage((folder / "input.problem.json").read_bytes())
    assert body.options.steps == 3
    assert f"rpegc --from {folder}/input.problem.json -p 'plan{{fault={fault}}},spread'" in found.help
    with pytest.raises(InternalFailure, match="crashed"):
        run_pipeline(pipeline.part(1), input_run(body))


def test_a_crash_is_reported_where_nothing_can_be_written(problem: Problem, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InternalFailure, match="crashed") as caught:
        run_pipeline(Pipeline((Plan(fault="crash"),)), input_run(problem), reproducers=blocked)
    assert caught.value.reproducer is None


def test_verify_each_blames_the_pass(problem: Problem, tmp_path: Path) -> None:
    pipeline = Pipeline((Plan(fault="unsound"), Spread()))
    run_pipeline(pipeline, input_run(problem))
    with pytest.raises(InternalFailure) as caught:
        run_pipeline(pipeline, input_run(problem), [VerifyEach()], reproducers=tmp_path)
    [found] = caught.value.diagnostics
    assert found.code == "E991"
    assert "`plan` made an unsound `configuration`" in found.message
    assert any("the layout needs 1 GPUs, the allocation has 729" in note for note in found.notes)
    assert caught.value.reproducer is not None


def test_verify_each_blames_an_unsound_input_on_its_giver(problem: Problem) -> None:
    body = run_pipeline(Pipeline((Plan(fault="unsound"),)), input_run(problem))[-1].stage
    with pytest.raises(UsageFailure, match="not a sound `configuration`"):
        run_pipeline(Pipeline((Spread(),)), input_run(body), [VerifyEach()])


def test_times_and_prints(problem: Problem) -> None:
    said: list[str] = []
    timer = TimePasses()
    run_pipeline(CHAIN, input_run(problem), [timer, PrintAfter({"plan"}, lambda run: run.name, said.append)])
    assert [name for name, _ in timer.times] == ["tune", "plan", "spread"]
    assert timer.table().splitlines()[-1].endswith("total")
    assert len(said) == 1
    assert said[0].startswith("-- after plan: configuration ")


def test_instruments_see_passes_and_stages_in_order(problem: Problem) -> None:
    seen: list[str] = []

    class Log(Instrument):
        def before(self, p: object) -> None:
            seen.append(f"> {p.name}")

        def after(self, index: int, run: StageRun) -> None:
            seen.append(f"{index} {run.name}")

    run_pipeline(CHAIN, input_run(problem), [Log()])
    assert seen == ["0 problem", "> tune", "1 problem", "> plan", "2 configuration", "> spread", "3 unrolled"]
