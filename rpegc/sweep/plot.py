"""A sweep as a figure: the Pareto front, and every measure along the first varied key."""

from typing import Any

from rpegc.figures import Figures
from rpegc.plots import write_plot
from rpegc.sweep.points import Point
from rpegc.sweep.table import Sweep

MEASURES = (
    ("tokens/s", "tokens_per_second", 1.0),
    ("tokens/s per GPU", "tokens_per_second_per_gpu", 1.0),
    ("step time [s]", "step_time_s", 1.0),
    ("utilisation [%]", "utilization", 100.0),
    ("peak memory [GiB]", "peak_memory_bytes", 2.0**-30),
    ("optimality gap [%]", "optimality_gap", 100.0),
)
"""Panels: title, field of `Figures`, and what its value is multiplied with."""

MOST_NAMED = 12
"""More lines or front points than these are drawn without names, which would hide the plot."""


def plot(sweep: Sweep, name: str) -> None:
    """Draw the sweep into file `name`. Raises UsageFailure as `rpegc.plots.write_plot` does."""
    write_plot(name, lambda figure: _draw(sweep, figure), inches=(16.0, 8.0))


def _draw(sweep: Sweep, figure: Any) -> None:
    figure.suptitle(f"{sweep.source}: predictions of the cost model")
    panels = figure.subplot_mosaic([["front", "front", 0, 1, 2], ["front", "front", 3, 4, 5]])
    _draw_front(sweep, panels["front"])
    lines = _lines(sweep)
    values = list(dict.fromkeys(p.values[sweep.keys[0]] for p in sweep.points))
    for number, (title, field, factor) in enumerate(MEASURES):
        axes, highest = panels[number], 0.0
        for name, points in lines.items():
            known = [(values.index(x), y * factor) for x, f in points if (y := getattr(f, field)) is not None]
            axes.plot([x for x, _ in known], [y for _, y in known], marker="o", label=name)
            highest = max([highest, *(y for _, y in known)])
        axes.set_title(title)
        axes.set_xlabel(sweep.keys[0])
        axes.set_xlim(-0.5, len(values) - 0.5)
        axes.set_xticks(range(len(values)), values)
        axes.set_ylim(0, 1.1 * highest or 1)
    if 1 < len(lines) <= MOST_NAMED:
        panels[0].legend(fontsize="small")


def _lines(sweep: Sweep) -> dict[str, list[tuple[str, Figures]]]:
    """The plans as (value of the first key, figures), by the values of the other keys."""
    lines: dict[str, list[tuple[str, Figures]]] = {}
    for point in sweep.points:
        if point.figures is not None:
            name = _named(point, sweep.keys[1:])
            lines.setdefault(name, []).append((point.values[sweep.keys[0]], point.figures))
    return lines


def _draw_front(sweep: Sweep, axes: Any) -> None:
    """Tokens/s against GPU-hours per million tokens, the points of the front joined and named."""
    front = [(p, p.figures) for p in sweep.points if p.figures is not None and p.front]
    front.sort(key=lambda pair: pair[1].tokens_per_second)
    for fits, colour, label in ((True, "tab:gray", "plans"), (False, "tab:red", "plans that do not fit")):
        chosen = [p.figures for p in sweep.points if p.figures is not None and p.figures.fits is fits]
        if chosen:
            axes.scatter(*_coordinates(chosen), color=colour, label=label)
    axes.plot(*_coordinates([f for _, f in front]), color="tab:blue", marker="o", label="Pareto front")
    for point, figures in front[:MOST_NAMED]:
        at = figures.tokens_per_second, figures.gpu_hours_per_million_tokens
        name = _named(point, sweep.keys)
        axes.annotate(name, at, xytext=(0, 6), textcoords="offset points", ha="center", fontsize="small")
    axes.margins(x=0.3)
    axes.set_title("Pareto front")
    axes.set_xlabel("tokens/s")
    axes.set_ylabel("GPU-hours per million tokens")
    axes.legend(fontsize="small")


def _coordinates(figures: list[Figures]) -> tuple[list[float], list[float]]:
    return [f.tokens_per_second for f in figures], [f.gpu_hours_per_million_tokens for f in figures]


def _named(point: Point, keys: tuple[str, ...]) -> str:
    """The values of a point at `keys`, by the last words of the keys."""
    return ", ".join(f"{key.rsplit('.', maxsplit=1)[-1]} = {point.values[key]}" for key in keys)
