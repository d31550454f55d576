"""A comparison as a figure: bars of step time, and small panels of what it is bought with."""

from collections.abc import Callable
from typing import Any

from rpegc.compare.data import Comparison, Entry
from rpegc.compare.show import REASONS, effort, gained, machine
from rpegc.figures import Figures
from rpegc.plots import write_plot
from rpegc.table import duration, rate

OURS, THEIRS = "tab:blue", "tab:gray"


def plot(found: Comparison, name: str) -> None:
    """Draw the comparison into file `name`. Raises UsageFailure as `rpegc.plots.write_plot` does."""
    write_plot(name, lambda figure: _draw(found, figure), inches=(14.0, 2.0 + 0.5 * len(found.entries)))


def _draw(found: Comparison, figure: Any) -> None:
    """Panels with a bar for each decision space, the first space on top."""
    figure.suptitle(
        f"{found.problem} on {machine(found)}: the best plan within what each system may decide\n"
        f"predictions of cost model {found.cost_model}, not measurements of these systems"
    )
    figure.supxlabel(effort(found), fontsize="small")
    steps, rates, peaks, shares = figure.subplots(1, 4, sharey=True, width_ratios=(5, 2, 2, 2))
    steps.set_yticks(range(len(found.entries)), [e.name for e in found.entries])
    steps.set_ylim(len(found.entries) - 0.5, -0.5)  # also where there is no bar
    longest = _bars(steps, found, "step time [s]", lambda f: f.step_time_s)
    steps.set_xlim(0, 1.6 * longest or 1)  # what is told of a plan stands behind its bar
    for place, entry in enumerate(found.entries):
        at = 0.0 if entry.figures is None else entry.figures.step_time_s
        steps.annotate(
            _told(entry),
            (at, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
        )
    _bars(rates, found, "tokens/s", lambda f: f.tokens_per_second, rate)
    _bars(
        peaks,
        found,
        "peak memory [GiB], limit dashed",
        lambda f: f.peak_memory_bytes / 2**30,
        "{:.1f}".format,
    )
    _bars(shares, found, "utilisation [%]", lambda f: 100 * f.utilization, "{:.1f}".format)
    shares.set_xlim(0, 100)
    for limit in {e.figures.memory_limit_bytes / 2**30 for e in found.entries if e.figures is not None}:
        peaks.axvline(limit, color="tab:red", linestyle="--")


def _bars(
    axes: Any,
    found: Comparison,
    title: str,
    value: Callable[[Figures], float],
    told: Callable[[float], str] | None = None,
) -> float:
    """One bar for each plan, with what is `told` of its value inside; the length of the longest."""
    axes.set_title(title, fontsize="medium")
    longest = 0.0
    for place, entry in enumerate(found.entries):
        if entry.figures is not None:
            length = value(entry.figures)
            bar = axes.barh(place, length, color=OURS if entry is found.rpeg else THEIRS)
            if told is not None:
                axes.bar_label(bar, [told(length)], label_type="center", color="white", fontsize="small")
            longest = max(longest, length)
    return longest


def _told(entry: Entry) -> str:
    """The step time and what rpeg gains on it, or why there is no plan."""
    if entry.figures is None:
        return REASONS[entry.outcome]
    step = duration(entry.figures.step_time_s)
    return step if entry.rpeg_gain is None else f"{step}, rpeg {gained(entry.rpeg_gain)} tokens/s"
