"""What a run came to, for a reader in a hurry and for programs."""

from collections.abc import Sequence

from ir_schema.base import Record
from ir_schema.trace import Evaluation

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


class Outcome(Record, frozen=True, kw_only=True):
    """The figures of one finished run, from step `first` on. Times and rates of steps are medians, without
    evaluations in between, and None where no step was left to do; tokens are those of prompts and responses.
    `rewards` are the means of each step's responses, `evaluations` those on held-out prompts before the first
    step and after the last."""

    plan: str
    steps: int
    first: int = 0
    seed: int
    workers: int
    nodes: int
    seconds: float
    step_seconds: float | None
    predicted_step_seconds: float
    tokens_per_second: float | None
    hardware: str
    rewards: tuple[float, ...]
    evaluations: tuple[Evaluation, ...]
    bytes_moved: int
    trace: str | None
    trace_verified: bool


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """At most `width` bars, each the mean of a run of values, and the scale that they are drawn to.

    The scale includes 0, so that small changes look small.
    """
    if not values:
        return ""
    columns = min(width, len(values))
    means = []
    for c in range(columns):
        part = values[c * len(values) // columns : (c + 1) * len(values) // columns]
        means.append(sum(part) / len(part))
    low, high = min(0.0, *means), max(0.0, *means)
    span = high - low or 1.0
    bars = "".join(_BARS[min(len(_BARS) - 1, int((m - low) / span * len(_BARS)))] for m in means)
    return f"{bars} ({low:.3g} to {high:.3g})"


def ends(values: Sequence[float]) -> str:
    """Means of the first and last tenth of the values (at least one each), in words."""
    n = max(1, len(values) // 10)
    first, last = sum(values[:n]) / n, sum(values[-n:]) / n
    if n == 1:
        return f"{first:.3f} in the first step, {last:.3f} in the last"
    return f"{first:.3f} in the first {n} steps, {last:.3f} in the last {n}"


def size(count: int) -> str:
    """Bytes in binary units."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def render(outcome: Outcome) -> str:
    """The summary as text."""
    steps = f"{outcome.steps} step{'s' if outcome.steps != 1 else ''}"
    if 0 < outcome.first < outcome.steps:
        steps = f"steps {outcome.first + 1} to {outcome.steps}"
    if outcome.first == outcome.steps:
        steps = f"what was left after {steps}"
    lines = [f"{steps} in {outcome.seconds:.1f} s on {outcome.workers} workers, seed {outcome.seed}"]
    if outcome.step_seconds is not None:
        lines.append(
            f"step time    measured {outcome.step_seconds:.3f} s, predicted "
            f"{outcome.predicted_step_seconds:.3g} s on {outcome.hardware}"
        )
    if outcome.tokens_per_second is not None:
        lines.append(f"throughput   {outcome.tokens_per_second:.0f} tokens/s of prompts and responses")
    if outcome.rewards:
        lines.append(f"reward       {ends(outcome.rewards)}  {sparkline(outcome.rewards)}")
    if outcome.evaluations:
        before, after = outcome.evaluations[0], outcome.evaluations[-1]
        lines.append(
            f"held out     {before.reward:.3f} before training, {after.reward:.3f} after; of "
            f"{after.prompts} prompts {before.correct:.1%} right before, {after.correct:.1%} after"
        )
    lines.append(
        f"plan         {outcome.plan[:16]}, {outcome.nodes} nodes, {size(outcome.bytes_moved)} moved"
    )
    verified = "verified against the plan" if outcome.trace_verified else "NOT verified"
    lines.append(f"trace        {verified}" + (f", {outcome.trace}" if outcome.trace else ""))
    return "\n".join(lines)
