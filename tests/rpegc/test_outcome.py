"""What is said of a search: how good its plan is, in figures and in words."""

import msgspec
import pytest

from ir_schema.problem import Problem
from ir_schema.stages import SearchReport
from rpegc.diff import difference
from rpegc.driver import StageRun, input_run
from rpegc.outcome import outcome_of, summary
from tests.rpegc.conftest import configured


def found(problem: Problem, **report: float) -> StageRun:
    search = SearchReport(method="auto", evaluations=10, **report)
    return input_run(msgspec.structs.replace(configured(problem), search=search))


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({}, None),
        ({"lower_bound_s": 10.6, "optimality_gap": 0.1378}, "at most 13.8 % of the step time to gain"),
        ({"lower_bound_s": 10.6, "optimality_gap": 0.1378}, "no plan takes less than 10.6 s per step"),
        ({"lower_bound_s": 10.6, "optimality_gap": 0.0}, "proven optimal"),
    ],
)
def test_the_gap_is_said_in_words_and_figures(
    problem: Problem, report: dict[str, float], words: str | None
) -> None:
    run = found(problem, **report)
    said = summary([run])
    outcome = outcome_of(0, [run], [])
    assert (outcome.lower_bound_s, outcome.optimality_gap) == (
        report.get("lower_bound_s"),
        report.get("optimality_gap"),
    )
    if words is None:
        assert "to gain" not in said
        assert "proven" not in said
    else:
        assert words in said


def test_two_gaps_are_compared(problem: Problem) -> None:
    before, after = found(problem), found(problem, lower_bound_s=1.0, optimality_gap=0.25)
    assert difference(before.stage, after.stage).headline == ("optimality gap: unknown => 25 %",)
    assert difference(after.stage, found(problem, optimality_gap=0.25).stage).headline == ()
