"""The log of a search: written line by line, ended in any case, read back, compared."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration, SearchReport
from passes.search.progress import Improvement
from rpegc.convergence import convergence, draw, render
from rpegc.driver import input_run, run_pipeline
from rpegc.failure import UsageFailure
from rpegc.pipeline import Pipeline
from rpegc.searchlog import Begin, Better, End, SearchLog, digest, read_log
from tests.rpegc.conftest import configured
from tests.rpegc.fakes import Plan

HERE = Placement(
    origin=(0, 0, 0),
    extent=(1, 1, 1),
    data_parallel=1,
    pipeline_parallel=1,
    tensor_parallel=1,
    microbatches=1,
)
THERE = msgspec.structs.replace(HERE, origin=(0, 0, 1))
FIRST = Improvement(0.5, 1, 100.0, 100.0, 2.0, "split auto", {"a": HERE})
SECOND = Improvement(1.5, 40, 125.0, 125.0, 1.6, "split auto", {"a": THERE}, lower_bound_s=1.2)


@dataclass(frozen=True)
class Searching(Plan):
    """A search that finds two plans, or does what `fault` says after the first."""

    name: ClassVar[str] = "search"
    method: str = "sa"
    seed: int = 7
    budget: int | None = 50
    time_limit: float | None = None
    log: ClassVar[SearchLog]

    def run(self, stage: Problem) -> Configuration:
        self.log.improvement(FIRST)
        if self.fault == "infeasible":
            raise DiagnosticError([error("E420", "no plan fits")])
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        self.log.improvement(SECOND)
        report = SearchReport(
            method="sa",
            evaluations=50,
            cache_hits=3,
            termination="budget",
            lower_bound_s=1.2,
            optimality_gap=0.25,
        )
        return msgspec.structs.replace(configured(stage), search=report)


def searched(problem: Problem, file: Path, fault: str = "nothing") -> None:
    """Run a search of `problem` that is logged to `file`."""
    with SearchLog(str(file)) as log:
        Searching.log = log
        run_pipeline(Pipeline((Searching(fault=fault),)), input_run(problem), [log])


@pytest.fixture
def file(problem: Problem, tmp_path: Path) -> Path:
    path = tmp_path / "search.jsonl"
    searched(problem, path)
    return path


def test_a_log_says_what_was_searched_every_better_plan_and_the_end(problem: Problem, file: Path) -> None:
    log = read_log(str(file))
    assert log.begin == Begin(
        problem=problem.name,
        problem_id=input_run(problem).id,
        objective="throughput",
        search="search",
        method="sa",
        seed=7,
        budget=50,
        time_limit=None,
    )
    assert [(x.seconds, x.evaluations, x.step_s, x.gap) for x in log.improvements] == [
        (0.5, 1, 2.0, None),
        (1.5, 40, 1.6, pytest.approx(0.25)),
    ]
    assert log.improvements[0].plan != log.improvements[1].plan
    assert log.end is not None
    assert (log.end.termination, log.end.evaluations, log.end.step_s, log.end.gap) == (
        "budget",
        50,
        1.6,
        0.25,
    )
    assert [json.loads(line)["line"] for line in file.read_text().splitlines()] == [
        "begin", "improvement", "improvement", "end"
    ]  # fmt: skip


@pytest.mark.parametrize(("fault", "termination"), [("infeasible", "failed"), ("interrupt", "interrupted")])
def test_a_search_that_finds_nothing_ends_its_log(
    problem: Problem, tmp_path: Path, fault: str, termination: str
) -> None:
    path = tmp_path / "search.jsonl"
    with pytest.raises((DiagnosticError, KeyboardInterrupt)):
        searched(problem, path, fault)
    log = read_log(str(path))
    assert log.end == End(termination=termination, seconds=log.end.seconds if log.end else 0)
    assert len(log.improvements) == 1


def test_a_log_grows_while_the_search_runs(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    log = SearchLog(str(path))
    log.after(0, input_run(problem))
    log.before(Searching())
    log.improvement(FIRST)
    read = read_log(str(path))
    assert (len(read.improvements), read.end) == (1, None)
    with path.open("ab") as rest:
        rest.write(b'{"line":"improve')
    assert read_log(str(path)) == read
    with log:
        pass
    assert "failed" in path.read_text()


def test_a_log_is_only_of_the_search(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    with SearchLog(str(path)) as log:
        run_pipeline(Pipeline((Plan(),)), input_run(problem), [log])
    assert not path.exists()


def test_a_log_that_cannot_be_written_is_a_usage_error(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(UsageFailure) as caught:
        searched(problem, tmp_path)
    assert caught.value.diagnostics[0].code == "E912"


@pytest.mark.parametrize(
    "content", [b"", b"x\n", b"{}\n", b'{"line":"end","termination":"budget","seconds":1}\n']
)
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UsageFailure) as caught:
        read_log(str(path))
    assert caught.value.diagnostics[0].code == "E937"


def test_lines_after_the_end_are_refused(file: Path) -> None:
    file.write_bytes(2 * file.read_bytes())
    with pytest.raises(UsageFailure):
        read_log(str(file))


def test_equal_plans_of_one_structure_have_one_digest() -> None:
    assert digest("split auto", {"a": HERE, "b": THERE}) == digest("split auto", {"b": THERE, "a": HERE})
    assert digest("split auto", {"a": HERE}) != digest("split never", {"a": HERE})
    assert digest("split auto", {"a": HERE}) != digest("split auto", {"a": THERE})


def better(seconds: float, evaluations: int, value: float) -> Better:
    return Better(
        seconds=seconds, evaluations=evaluations, score=value, value=value, step_s=1 / value,
        lower_bound_s=None, gap=None, structure="", plan="",
    )  # fmt: skip


def test_convergence_is_when_the_last_percent_began(file: Path) -> None:
    log = read_log(str(file))
    values = [(1.0, 10, 90.0), (2.0, 20, 98.9), (3.0, 30, 99.1), (4.0, 40, 100.0)]
    found = convergence(replace(log, improvements=tuple(better(*v) for v in values)))
    assert (found.near_s, found.near_evaluations) == (3.0, 30)
    assert found.step_s == 0.01
    assert "3 s" in render([found])


def test_a_search_without_a_plan_has_no_figures(file: Path) -> None:
    found = convergence(replace(read_log(str(file)), improvements=()))
    assert (found.improvements, found.step_s, found.near_s) == (0, None, None)
    assert render([found]).splitlines()[1].split()[3:6] == ["-", "25", "%"]


def test_logs_are_drawn_side_by_side(file: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    log = read_log(str(file))
    draw([log, replace(log, name="none", improvements=())], figure)
    seconds, evaluations = figure.axes
    steps = [line for line in seconds.get_lines() if line.get_label() == log.name]
    assert [list(map(tuple, line.get_xydata())) for line in steps] == [
        [(0.5, 2.0), (1.5, 1.6), (pytest.approx(log.end.seconds if log.end else 0), 1.6)]
    ]
    assert list(evaluations.get_lines()[0].get_xdata()) == [1, 40, 50]
    assert [list(line.get_ydata()) for line in seconds.get_lines() if line not in steps] == [[1.2, 1.2]]


def test_values_are_drawn_of_another_objective(file: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    log = read_log(str(file))
    begin = msgspec.structs.replace(log.begin, objective="efficiency")
    draw([replace(log, begin=begin)], figure)
    assert list(figure.axes[0].get_lines()[0].get_ydata()) == [100.0, 125.0, 125.0]
    assert len(figure.axes[0].get_lines()) == 1
