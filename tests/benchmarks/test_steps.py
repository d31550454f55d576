"""The whole-step comparison: its plans can be compiled and differ, and its figures are what they say."""

from pathlib import Path

import pytest

from benchmarks.steps import Case, cases, measure, source, summary, write_prompts
from rpeg_rt.load import load_plan
from rpegc.cli.group import run as rpegc

HARDWARE = Path(__file__).parents[2] / "benchmarks" / "hardware" / "cpu-measured.json"


def test_all_plans_can_be_compiled_and_no_two_are_the_same(tmp_path: Path) -> None:
    seen: dict[str, list[object]] = {}
    for case in cases():
        (tmp_path / "p.rpeg").write_text(source(case, HARDWARE, 4))
        plan = tmp_path / "plan.exe.json"
        assert rpegc([str(tmp_path / "p.rpeg"), "--search", "none", "-q", "-o", str(plan)]) == 0, case.name
        made = load_plan(plan).executable
        assert made.plan == case.plan
        assert made.problem.graph.staleness["actor"] == case.staleness
        mine = (made.plan, case.staleness)
        assert mine not in seen.setdefault(case.problem, [])
        seen[case.problem].append(mine)
    assert sum(map(len, seen.values())) >= 12
    assert {case.workers for case in cases()} == {1, 2, 4}


def row(problem: str, predicted: float, measured: float) -> dict[str, object]:
    return {"problem": problem, "predicted_s": predicted, "measured_s": measured}


def test_pairs_are_those_of_one_problem() -> None:
    # Two of three pairs in order, and one of one; between the problems nothing is in order.
    rows = [
        row("a", 1.0, 1.0),
        row("a", 2.0, 2.0),
        row("a", 1.5, 4.0),
        row("b", 1.0, 90.0),
        row("b", 2.0, 91.0),
    ]
    (a, b, whole) = summary(rows)
    assert (a[0], a[1], a[4]) == ("a", 3, "66.7 %")
    assert (b[0], b[1], b[4]) == ("b", 2, "100.0 %")
    assert (whole[0], whole[1], whole[4]) == ("all", 5, "75.0 %")
    assert a[2] == f"{100 * (2.5 / 4) / 3:.1f} %"


@pytest.mark.slow
def test_a_plan_is_measured(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl")
    case: Case = next(c for c in cases() if c.workers == 2)
    found = measure(case, HARDWARE, 4, tmp_path)
    assert found["steps"] == 2
    assert 0 < found["least_s"] <= found["measured_s"] <= found["greatest_s"]
    assert 0.2 < found["predicted_s"] / found["measured_s"] < 5
