"""How a search is told from the command line: budgets, objective, warm start, log."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from ir_schema.envelope import decode_stage
from rpegc.cli.compile import compile_command
from rpegc.cli.group import run
from rpegc.cli.search_options import budget_of
from rpegc.frontend import format_text, load
from rpegc.searchlog import read_log
from tests.rpegc.conftest import CASES

ORIGINAL = CASES / "decided" / "01-ppo-sync-colocated-one-layout.json"
QUICK = ("--budget", "60", "-q")


def budget(text: str | None) -> dict[str, object]:
    context = click.Context(compile_command)
    return budget_of(context, click.Option(["--budget"]), text)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (None, {}),
        ("20000", {"budget": 20000}),
        ("90s", {"budget": None, "time_limit": 90.0}),
        ("1.5min", {"budget": None, "time_limit": 90.0}),
        ("2h", {"budget": None, "time_limit": 7200.0}),
    ],
)
def test_a_budget_is_evaluations_or_a_time(text: str | None, options: dict[str, object]) -> None:
    assert budget(text) == options


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-1", "1.5", "10x", "s", "1e3", "9" * 30, "9" * 400 + "h", "٣"]
)
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="neither"):
        budget(text)


Rpegc = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def rpegc(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rpegc:
    """Runs a command in a directory with `planned.json`, `free.json` (the same without a plan) and
    `start.exe.json`, the executable of the former's plan."""
    monkeypatch.chdir(tmp_path)
    value = json.loads(ORIGINAL.read_text())
    del value["expected"], value["fields"]
    Path("planned.json").write_text(json.dumps(value))
    del value["plan"]
    Path("free.json").write_text(json.dumps(value))
    assert run(["planned.json", "--search", "none", "-o", "start.exe.json"]) == 0

    def call(*arguments: str) -> tuple[int, Any, str]:
        capfd.readouterr()
        code = run([*arguments])
        out, err = capfd.readouterr()
        return code, json.loads(out) if out else None, err

    return call


@pytest.mark.parametrize("limit", ["0", "-1", "nan"])
def test_what_is_no_time_limit_is_refused(rpegc: Rpegc, limit: str) -> None:
    code, _, message = rpegc("free.json", "--time-limit", limit, "-o", "new.exe.json")
    assert code == 2
    assert "time" in message
    assert not Path("new.exe.json").exists()


def test_a_search_is_no_worse_than_the_plan_that_it_starts_from(rpegc: Rpegc) -> None:
    _, better, _ = rpegc("free.json", *QUICK, "--json", "-o", "better.exe.json")
    _, start, _ = rpegc("planned.json", "--search", "none", "--json")
    assert start["step_time_s"] > better["step_time_s"], "or the test says nothing"
    code, found, _ = rpegc("free.json", "--warm-start", "better.exe.json", "--budget", "1", "--json")
    assert code == 0
    assert found["step_time_s"] <= better["step_time_s"]


def test_a_warm_start_is_part_of_the_problem(rpegc: Rpegc) -> None:
    assert (
        rpegc("free.json", "--warm-start", "start.exe.json", *QUICK, "--emit", "problem", "-o", "p.json")[0]
        == 0
    )
    problem = decode_stage(Path("p.json").read_bytes())[1]
    assert problem.search.warm_start == decode_stage(Path("start.exe.json").read_bytes())[1].plan
    again = [
        rpegc(*source, *QUICK, "--emit", "configuration", "-o", "c.json")[0] or Path("c.json").read_bytes()
        for source in (("--from", "p.json"), ("free.json", "--warm-start", "start.exe.json"))
    ]
    assert decode_stage(again[0])[0].id == decode_stage(again[1])[0].id


def with_memory(gigabytes: float) -> None:
    """Write `small.json`: `free.json` on GPUs of less memory."""
    value = json.loads(Path("free.json").read_text())
    value["hardware"]["memory_bytes"] = gigabytes * 1e9
    Path("small.json").write_text(json.dumps(value))


def test_a_warm_start_that_does_not_fit_is_noted(rpegc: Rpegc) -> None:
    with_memory(40)
    code, _, _ = rpegc("small.json", "--warm-start", "start.exe.json", *QUICK, "-o", "x.json")
    assert code == 0
    report = decode_stage(Path("x.json").read_bytes())[1].search
    assert any("warm start" in note and "fit" in note for note in report.notes)
    assert "warm start" not in report.baselines


def test_a_search_by_time_has_no_budget(rpegc: Rpegc) -> None:
    assert rpegc("free.json", "--budget", "0.3s", "--search-log", "log", "-q", "-o", "x.json")[0] == 0
    begin = read_log("log").begin
    assert (begin.budget, begin.time_limit) == (None, 0.3)


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (("free.json", "--warm-start", "free.json"), "E935", 2),
        (("free.json", "--warm-start", "none.json"), "E911", 2),
        (("free.json", "--warm-start", "start.exe.json", "-O0"), "E932", 2),
        (("free.json", "--warm-start", "start.exe.json", "--search", "none"), "E932", 2),
        (("--from", "start.exe.json", "--warm-start", "start.exe.json"), "E932", 2),
        (("--from", "start.exe.json", "--objective", "efficiency"), "E932", 2),
        (("--from", "start.exe.json", "--search-log", "x"), "E932", 2),
        (("free.json", "-p", "verify", "--objective", "efficiency"), "E932", 2),
        (("free.json", "--search-log", "-"), "E932", 2),
        (("free.json", "--search-log", "no/x"), "E912", 2),
        (("free.json", "--budget", "9s", "--time-limit", "9"), "E932", 2),
        (("free.json", "--budget", "many"), "E932", 2),
        (("small.json", "--warm-start", "start.exe.json"), "E416", 1),
        (("other.json", "--warm-start", "start.exe.json"), "E435", 1),
        (("fixed.json", "--warm-start", "start.exe.json"), "E436", 1),
        (("convergence", "start.exe.json"), "E937", 2),
        (("convergence", "none.json"), "E911", 2),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else x,
)
def test_what_cannot_be_is_told(rpegc: Rpegc, arguments: tuple[str, ...], code: str, exit_code: int) -> None:
    value = json.loads(Path("free.json").read_text())
    plan = json.loads(Path("planned.json").read_text())["plan"]
    fixed = {"ref_inf": {"microbatches": 3 * plan["ref_inf"]["microbatches"]}}
    Path("fixed.json").write_text(json.dumps({**value, "plan": fixed}))
    Path("small.json").write_text(json.dumps({**value, "device_space": [1, 1, value["device_space"][2]]}))
    Path("other.json").write_text(json.dumps(value).replace('"ref_inf"', '"judge_inf"'))
    found, _, err = rpegc(*arguments)
    assert (found, f"error[{code}]" in err) == (exit_code, True), err


def test_the_objective_of_the_command_line_replaces_the_files(rpegc: Rpegc) -> None:
    assert (
        rpegc("free.json", *QUICK, "--objective", "efficiency", "--search-log", "log", "-o", "x.json")[0] == 0
    )
    assert read_log("log").begin.objective == "efficiency"


def test_a_log_agrees_with_the_outcome(rpegc: Rpegc) -> None:
    code, found, _ = rpegc("free.json", *QUICK, "--search-log", "log", "--json")
    assert code == 0
    log = read_log("log")
    assert log.begin.problem_id == found["stages"][0]["id"]
    values = [x.value for x in log.improvements]
    assert values == sorted(values)
    assert log.end is not None
    assert (log.end.termination, log.end.evaluations) == (found["termination"], found["evaluations"])
    assert log.end.step_s == pytest.approx(found["step_time_s"])
    assert (log.end.gap, log.end.lower_bound_s) == (found["optimality_gap"], found["lower_bound_s"])
    code, rows, _ = rpegc("convergence", "log", "log", "--json")
    assert code == 0
    assert [row["step_s"] for row in rows] == 2 * [log.end.step_s]


def test_a_log_is_ended_where_nothing_fits(rpegc: Rpegc) -> None:
    with_memory(24)
    code, _, err = rpegc("small.json", *QUICK, "--search-log", "log")
    assert (code, "error[E420]" in err) == (1, True)
    log = read_log("log")
    assert log.end is not None
    assert (log.end.termination, log.improvements) == ("failed", ())


def test_text_says_a_warm_start_too(rpegc: Rpegc, tmp_path: Path) -> None:
    assert rpegc("free.json", "--warm-start", "start.exe.json", "--emit", "problem", "-o", "p.json")[0] == 0
    text = format_text(Path("p.json").read_bytes(), "p.json").encode()
    assert load(text, "p.rpeg", tmp_path).problem == decode_stage(Path("p.json").read_bytes())[1]
