"""The whole-step comparison: its plans can be compiled and differ, and its figures are what they say."""

from pathlib import Path

import click
import msgspec
import pytest

from benchmarks.steps import Measured, Steps, compare, compile_plans, measure, read_measured, summary
from benchmarks.steps_plans import Case, cases
from rpeg_rt.load import load_plan

HARDWARE = Path(__file__).parents[2] / "benchmarks" / "hardware" / "cpu-measured.json"


def test_all_plans_can_be_compiled_and_no_two_are_the_same(tmp_path: Path) -> None:
    seen: dict[str, list[object]] = {}
    for case, plan in zip(cases(), compile_plans(cases(), HARDWARE, tmp_path), strict=True):
        made = load_plan(plan).executable
        assert made.plan == case.plan
        assert made.problem.graph.staleness["actor"] == case.staleness
        mine = (made.plan, case.staleness)
        assert mine not in seen.setdefault(case.problem, [])
        seen[case.problem].append(mine)
    assert sum(map(len, seen.values())) >= 12
    assert {case.workers for case in cases()} == {1, 2, 4}


def test_a_plans_time_is_the_median_of_its_rounds() -> None:
    # The second step of a run is not counted either: its first is missing already.
    steps = Steps(
        problem="a", plan="x", seconds=((9.0, 1.0, 2.0, 6.0), (9.0, 3.0, 3.5, 4.0), (0.1, 1.0, 1.0, 8.0))
    )
    assert steps.rounds() == [2.0, 3.5, 1.0]
    (row,) = compare([Case("a", "x", 2, {})], [steps], [1.5])
    assert (row["least_s"], row["measured_s"], row["greatest_s"]) == (1.0, 2.0, 3.5)
    assert (row["steps"], row["workers"], row["predicted_s"]) == (9, 2, 1.5)


def row(problem: str, predicted: float, measured: float, noise: float = 0.0) -> dict[str, object]:
    ends = {"least_s": measured - noise, "greatest_s": measured + noise}
    return {"problem": problem, "predicted_s": predicted, "measured_s": measured} | ends


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
    assert (a[0], a[1], a[4], a[5]) == ("a", 3, 3, "66.7 %")
    assert (b[0], b[1], b[4], b[5]) == ("b", 2, 1, "100.0 %")
    assert (whole[0], whole[1], whole[4], whole[5]) == ("all", 5, 4, "75.0 %")
    assert a[2] == f"{100 * (2.5 / 4) / 3:.1f} %"


def test_pairs_are_told_apart_where_no_round_of_one_is_among_those_of_the_other() -> None:
    rows = [row("a", 2.0, 1.0, noise=0.3), row("a", 1.0, 1.5, noise=0.3), row("a", 3.0, 2.0, noise=0.1)]
    (a, whole) = summary(rows)
    # The first two overlap, and are predicted wrong.
    assert a[4:] == (3, "66.7 %", 2, "100.0 %")
    assert whole[4:] == a[4:]
    assert summary([row("a", 1.0, 1.0, noise=1.0), row("a", 2.0, 1.0, noise=1.0)])[0][6:] == (0, "")


def write(path: Path, **seconds: tuple[tuple[float, ...], ...]) -> Path:
    steps = tuple(Steps(problem="p", plan=name, seconds=s) for name, s in seconds.items())
    path.write_bytes(msgspec.json.encode(Measured(provenance={}, software={}, load=None, steps=steps)))
    return path


def test_step_times_are_read_again(tmp_path: Path) -> None:
    chosen = [Case("p", "x", 1, {}), Case("p", "y", 1, {})]
    good = write(tmp_path / "steps.json", x=((1.0, 2.0),), y=((1.0, 3.0),))
    assert [s.rounds() for s in read_measured(good, chosen).steps] == [[2.0], [3.0]]
    with pytest.raises(click.ClickException, match="other plans"):
        read_measured(good, chosen[:1])
    with pytest.raises(click.ClickException, match="lacks steps"):
        read_measured(write(tmp_path / "short.json", x=((1.0,),), y=((1.0, 3.0),)), chosen)
    (tmp_path / "no.json").write_text("[]")
    with pytest.raises(click.ClickException, match=r"no\.json has no step times"):
        read_measured(tmp_path / "no.json", chosen)


@pytest.mark.slow
def test_a_plan_is_measured(tmp_path: Path) -> None:
    chosen = [next(c for c in cases() if c.workers == 2)]
    plans = compile_plans(chosen, HARDWARE, tmp_path)
    (found,) = measure(chosen, plans, rounds=2, steps=4)
    assert [len(r) for r in found.seconds] == [3, 3]
    (of_plan,) = compare(chosen, [found], [load_plan(plans[0]).executable.prediction.score.step_time_s])
    assert 0 < of_plan["least_s"] <= of_plan["measured_s"] <= of_plan["greatest_s"]
    assert 0.2 < of_plan["predicted_s"] / of_plan["measured_s"] < 5
