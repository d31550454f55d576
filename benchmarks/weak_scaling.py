"""Weak scaling: models grow with the machine; 36 cases, for throughput and for throughput x utilisation."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from benchmarks.objectives import Pair, bars, both, gains, pairs, summary, utilisation_bars
from benchmarks.scenarios import REGIMES, SWEEPS, weak
from benchmarks.study import Figure, Row, Run, Scale, Study, command, figure
from ir_schema.device import size


def runs(scale: Scale) -> list[Run]:
    """36 cases at full scale, for both objectives."""
    return both(
        [(labels, problem) for labels, problem in weak() if size(problem.device_space) <= scale.gpus], scale
    )


def figures(rows: Sequence[Row]) -> list[Figure]:
    """The gain over the concurrent heuristic, and the summary of both objectives."""
    found = chain.from_iterable(gains(rows, "concurrent").values())
    return [figure("where the concurrent plan fits", "throughput gained over it", "%", found), *summary(rows)]


def _panels(
    rows: Sequence[Row], canvas: Any, draw: Callable[[Any, Sequence[Pair], Sequence[str]], None]
) -> None:
    """A panel for every sweep and regime, in which `draw` draws the pairs of the first seed."""
    axes = canvas.subplots(len(SWEEPS), len(REGIMES))
    for i, sweep in enumerate(SWEEPS):
        for j, (prompts, response) in enumerate(REGIMES):
            place = {"sweep": sweep, "prompts": prompts, "response": response, "seed": 0}
            cases = [pair for pair in pairs(rows) if pair[0].items() >= place.items()]
            draw(axes[i][j], cases, [f"{p['gpus']} GPUs\n{p['sizes']}" for p, _ in cases])
            axes[i][j].set_title(f"{sweep}: B {prompts}, $L_r$ {response}", fontsize=8)
    axes[0][0].legend(fontsize=7)


def throughput(rows: Sequence[Row], canvas: Any) -> None:
    """Scores, with the gain over the concurrent heuristic."""
    _panels(rows, canvas, lambda axis, cases, ticks: bars(axis, cases, ticks, over="concurrent"))


def utilisation(rows: Sequence[Row], canvas: Any) -> None:
    """Utilisation of either objective's plan."""
    _panels(rows, canvas, utilisation_bars)


STUDY = Study(
    name="weak_scaling",
    about=__doc__,
    full=Scale(budget=20000, seeds=1, gpus=128),
    small=Scale(budget=50, seeds=1, gpus=8, method="sa"),
    runs=runs,
    figures=figures,
    plots={"throughput": ((13, 9), throughput), "utilisation": ((13, 9), utilisation)},
)

if __name__ == "__main__":
    command(STUDY)()
