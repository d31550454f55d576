"""The summary of a run says what its figures are and draws them to an honest scale."""

import pytest
from msgspec.structs import replace

from ir_schema.trace import Evaluation
from rpeg_rt.summary import Outcome, ends, render, size, sparkline


def test_a_nearly_flat_curve_looks_flat() -> None:
    assert sparkline([0.98, 1.0, 0.99]) == "███ (0 to 1)"
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█ (0 to 1)"
    assert sparkline([-1.0, 0.0]) == "▁█ (-1 to 0)"
    assert sparkline([-1.0, -0.99]) == "▁▁ (-1 to 0)"
    assert sparkline([0.0, 0.0]) == "▁▁ (0 to 0)"
    assert sparkline([]) == ""


def test_bars_are_means_of_equal_parts() -> None:
    assert sparkline([0.0, 1.0, 1.0, 1.0], width=2) == "▅█ (0 to 1)"


def test_the_ends_say_how_many_steps_they_are() -> None:
    assert ends([1.0]) == "1.000 in the first step, 1.000 in the last"
    assert ends([0.0, *[0.5] * 17, 1.0]) == "0.000 in the first step, 1.000 in the last"
    assert ends([0.0, 1.0, *[0.5] * 17, 1.0]) == "0.500 in the first 2 steps, 0.750 in the last 2"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (17_920, "17.5 KiB"),
        (209_100_000, "199.4 MiB"),
        (3 * 2**40, "3072.0 GiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_render() -> None:
    def evaluation(reward: float, correct: float) -> Evaluation:
        return Evaluation(
            step=0,
            start_ns=0,
            time_ns=1,
            vertex="t",
            versions={},
            prompts=400,
            reward=reward,
            correct=correct,
        )

    outcome = Outcome(
        plan="0123456789abcdef0123",
        steps=2,
        seed=5,
        workers=4,
        nodes=18,
        seconds=3.21,
        step_seconds=0.4567,
        predicted_step_seconds=0.1234,
        tokens_per_second=1234.4,
        hardware="some-box",
        rewards=(0.25, 1.0),
        evaluations=(evaluation(0.001, 0.0), evaluation(0.75, 0.5)),
        bytes_moved=17_920,
        trace=None,
        trace_verified=True,
    )
    assert render(outcome).splitlines() == [
        "2 steps in 3.2 s on 4 workers, seed 5",
        "step time    measured 0.457 s, predicted 0.123 s on some-box",
        "throughput   1234 tokens/s of prompts and responses",
        "reward       0.250 in the first step, 1.000 in the last  ▃█ (0 to 1)",
        "held out     0.001 before training, 0.750 after; of 400 prompts 0.0% right before, 50.0% after",
        "plan         0123456789abcdef, 18 nodes, 17.5 KiB moved",
        "trace        verified against the plan",
    ]
    rest = replace(outcome, first=2, step_seconds=None, tokens_per_second=None, rewards=(), evaluations=())
    assert render(rest).splitlines() == [
        "what was left after 2 steps in 3.2 s on 4 workers, seed 5",
        "plan         0123456789abcdef, 18 nodes, 17.5 KiB moved",
        "trace        verified against the plan",
    ]
