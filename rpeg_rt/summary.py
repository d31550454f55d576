"""What a run came to, for a reader in a hurry and for programs."""

from collections.abc import Sequence

from ir_schema.base import Record
from rpeg_rt.trace import Evaluation

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


class Outcome(Record, frozen=True, kw_only=True):
    """The figures of one finished run. `rewards` are the means of each step's responses, `evaluations` those
    on held-out prompts before the first step and after the last."""

    plan: str
    steps: int
    seed: int
    workers: int
    nodes: int
    seconds: float
    step_seconds: float
    predicted_step_seconds: float
    hardware: str
    rewards: tuple[float, ...]
    evaluations: tuple[Evaluation, ...]
    bytes_moved: int
    trace: str | None
    trace_verified: bool


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """At most `width` bars, each the mean of a run of values, from the least to the greatest."""
    if not values:
        return ""
    columns = min(width, len(values))
    means = []
    for c in range(columns):
        part = values[c * len(values) // columns : (c + 1) * len(values) // columns]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    span = high - low or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int((m - low) / span * len(_BARS)))] for m in means)


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Means of the first and last tenth of the values (at least one each)."""
    n = max(1, len(values) // 10)
    return sum(values[:n]) / n, sum(values[-n:]) / n


def render(outcome: Outcome) -> str:
    """The summary as text."""
    steps = f"{outcome.steps} step{'s' if outcome.steps != 1 else ''}"
    lines = [
        f"{steps} in {outcome.seconds:.1f} s on {outcome.workers} workers, seed {outcome.seed}",
        f"step time    measured {outcome.step_seconds:.3f} s, predicted "
        f"{outcome.predicted_step_seconds:.3g} s on {outcome.hardware}",
    ]
    if outcome.rewards:
        first, last = ends(outcome.rewards)
        lines.append(
            f"reward       {first:.3f} at the start, {last:.3f} at the end  {sparkline(outcome.rewards)}"
        )
    if outcome.evaluations:
        before, after = outcome.evaluations[0], outcome.evaluations[-1]
        lines.append(
            f"held out     {before.reward:.3f} before, {after.reward:.3f} after; {before.correct:.1%} and "
            f"{after.correct:.1%} of {after.prompts} prompts right"
        )
    lines.append(
        f"plan         {outcome.plan[:16]}, {outcome.nodes} nodes, {outcome.bytes_moved / 1e6:.1f} MB moved"
    )
    verified = "verified against the plan" if outcome.trace_verified else "NOT verified"
    lines.append(f"trace        {verified}" + (f", {outcome.trace}" if outcome.trace else ""))
    return "\n".join(lines)
