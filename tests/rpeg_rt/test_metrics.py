"""Metrics agree with the trace and reach a file and TensorBoard."""

import json
import sys
from pathlib import Path

import pytest

from ir_schema.trace import Complete, Dispatch, Evaluation
from rpeg_rt.cli import main
from rpeg_rt.run import Settings, execute
from rpeg_rt.trace import read_trace
from tests.rpeg_rt.plans import colocated, executable, place, problem, write_plan

STEPS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an asynchronous run with evaluations."""
    directory = tmp_path_factory.mktemp("metrics")
    made = problem(staleness=1, run={"eval_prompts": "prompts.jsonl", "steps": STEPS})
    plan = colocated(actor_train=place("1"), critic_train=place("1"))
    path = write_plan(directory, executable(made, plan))
    settings = Settings(
        trace=directory / "trace.jsonl",
        metrics=directory / "metrics.jsonl",
        tensorboard=directory / "board",
        eval_every=2,
    )
    outcome = execute(path, settings, lambda *_: None)
    assert outcome.tokens_per_second is not None
    assert outcome.tokens_per_second > 0
    return directory


def lines(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_the_seconds_of_all_kinds_are_those_of_the_trace(run: Path) -> None:
    events = list(read_trace(run / "trace.jsonl"))
    spent: dict[str, int] = {}
    for event in events:
        if isinstance(event, Complete):
            host = () if event.host is None else (event.host,)
            for part in (*event.parts.values(), *host):
                spent["all"] = spent.get("all", 0) + part.finish_ns - part.start_ns
    steps = [line for line in lines(run) if "step" in line]
    told = sum(sum(line["busy_s"].values()) for line in steps)  # type: ignore[attr-defined]
    # Weights that nothing reads any more may still be on their way when the last step ends.
    assert 0.9 * spent["all"] / 1e9 < told <= spent["all"] / 1e9 * (1 + 1e-9)
    assert {"generation", "inference", "training", "host", "Comm"} <= set(steps[1]["busy_s"])  # type: ignore[call-overload]


def test_seconds_are_those_between_steps_without_evaluations(run: Path) -> None:
    events = list(read_trace(run / "trace.jsonl"))
    begun = next(e.time_ns for e in events if isinstance(e, Dispatch))
    steps = [line for line in lines(run) if "step" in line]
    end = steps[-1]["time_s"]
    paused = [e for e in events if isinstance(e, Evaluation) and begun < e.start_ns < end * 1e9]  # type: ignore[operator]
    assert [e.step for e in paused] == [2]
    expected = end - begun / 1e9 - sum(e.time_ns - e.start_ns for e in paused) / 1e9  # type: ignore[operator]
    assert sum(line["seconds"] for line in steps) == pytest.approx(expected)  # type: ignore[misc]


def test_staleness_and_tokens(run: Path) -> None:
    steps = [line for line in lines(run) if "step" in line]
    assert [line["step"] for line in steps] == list(range(STEPS))
    assert [line["staleness"] for line in steps] == [{"actor": s, "critic": s} for s in (0, 1, 1, 1)]
    for line in steps:
        figures = line["vertices"]["actor_train"]  # type: ignore[index]
        assert line["tokens"] == pytest.approx(8 * (figures["prompt_tokens"] + figures["response_tokens"]))
        assert 3 <= figures["prompt_tokens"] <= 5
        assert line["tokens_per_second"] == pytest.approx(line["tokens"] / line["seconds"])  # type: ignore[operator]


def test_tensorboard_is_told_the_same(run: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = accumulator.EventAccumulator(str(run / "board"))
    board.Reload()
    steps = [line for line in lines(run) if "step" in line]
    for tag, values in {
        "run/seconds": [line["seconds"] for line in steps],
        "staleness/actor": [line["staleness"]["actor"] for line in steps],  # type: ignore[index]
        "actor_train/reward": [line["vertices"]["actor_train"]["reward"] for line in steps],  # type: ignore[index]
        "held_out/reward": [line["evaluation"]["reward"] for line in lines(run) if "evaluation" in line],  # type: ignore[index]
    }.items():
        assert [s.value for s in board.Scalars(tag)] == pytest.approx(values, rel=1e-6), tag


def test_without_tensorboard(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main([str(run / "plan.exe.json"), "--tensorboard", str(tmp_path / "board")]) == 2
    assert (
        "--tensorboard needs the package `tensorboard`: install rpeg[tensorboard]" in capsys.readouterr().err
    )


def test_a_directory_that_cannot_be_made(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    assert main([str(run / "plan.exe.json"), "--tensorboard", str(tmp_path / "file" / "board")]) == 2
    assert f"error: cannot write to the directory {tmp_path / 'file' / 'board'}" in capsys.readouterr().err
