"""What is said of a search: how good its plan is, in figures and in words."""

import msgspec
import pytest

from ir_schema.problem import Problem
from ir_schema.stages import SearchReport, Ties
from passes.evaluate import evaluate
from passes.uncertainty import uncertainty
from rpegc.diff import difference
from rpegc.driver import StageRun, input_run
from rpegc.outcome import outcome_of, summary
from rpegc.table import duration
from tests.rpegc.conftest import configured, measured


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


def test_a_prediction_carries_its_interval(problem: Problem) -> None:
    scheduled = evaluate(configured(measured(problem, 0.1)))
    run, expected = input_run(scheduled), uncertainty(scheduled)
    assert outcome_of(0, [run], []).uncertainty == expected
    low, high = expected.step_time_low_s, expected.step_time_high_s
    assert low is not None
    assert high is not None
    assert low < scheduled.step_time_s < high
    told = f"{duration(scheduled.step_time_s)} (90 %: {duration(low)} to {duration(high)})"
    assert any(line.split(maxsplit=2)[2:] == [told] for line in summary([run]).splitlines())


def test_why_there_is_no_interval_is_said(problem: Problem) -> None:
    scheduled = evaluate(configured(problem))
    assert "%:" not in summary([input_run(scheduled)])
    assert f"uncertainty         {uncertainty(scheduled).note}" in summary([input_run(scheduled)])


def test_which_plans_are_indistinguishable_is_said(problem: Problem) -> None:
    scheduled = evaluate(configured(problem))
    tokens = scheduled.score_tokens_per_s
    ties = Ties(coverage=0.9, kept=5, indistinguishable=3, baselines=("runner-up",))
    report = SearchReport(
        method="auto", baselines={"greedy": tokens / 2, "runner-up": tokens * 0.99}, ties=ties
    )
    configuration = msgspec.structs.replace(scheduled.configuration, search=report)
    run = input_run(msgspec.structs.replace(scheduled, configuration=configuration))
    assert outcome_of(0, [run], []).ties == ties
    lines = [line.split() for line in summary([run]).splitlines()]
    assert [line[0] for line in lines if line[-1:] == ["indistinguishable"]] == ["runner-up"]
    assert any(line[:5] == ["3", "of", "5", "other", "plans"] for line in lines)
