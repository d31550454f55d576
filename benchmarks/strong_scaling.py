"""Strong scaling: 13B models on 8 to 128 GPUs, for throughput and for throughput x utilisation."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from benchmarks.objectives import bars, both, gains, pairs, summary, utilisation_bars
from benchmarks.scenarios import STRONG, strong
from benchmarks.study import Figure, Row, Run, Scale, Study, command, figure


def runs(scale: Scale) -> list[Run]:
    """Five machines at full scale, for both objectives."""
    return both([({"gpus": gpus}, strong(gpus)) for gpus in STRONG if gpus <= scale.gpus], scale)


def figures(rows: Sequence[Row]) -> list[Figure]:
    """The ends of the scale, the gain over the greedy heuristic, and the summary of both objectives."""
    plain = [row for row, _ in pairs(rows)]
    scores = {
        gpus: [r["tokens_per_s"] for r in plain if r["gpus"] == gpus and not r["failure"]] for gpus in STRONG
    }
    fits = [bool(r["greedy"]) + bool(r["concurrent"]) for r in plain if r["gpus"] == 8]
    gained = gains(rows, "greedy")
    return [
        figure("8 GPUs", "heuristics whose plan fits", "", fits),
        *(figure(f"{gpus} GPUs", "throughput", "tokens/s", scores[gpus]) for gpus in (8, 128)),
        figure("16 to 128 GPUs", "throughput gained over greedy", "%", chain.from_iterable(gained.values())),
        figure("128 GPUs", "throughput gained over greedy", "%", gained.get(128, [])),
        *summary(rows),
    ]


def plot(rows: Sequence[Row], canvas: Any) -> None:
    """Scores, with the gain over the greedy heuristic, and utilisation of either objective's plan."""
    cases = [pair for pair in pairs(rows) if pair[0]["seed"] == 0]
    ticks = [f"{plain['gpus']} GPUs" for plain, _ in cases]
    left, right = canvas.subplots(1, 2)
    bars(left, cases, ticks, over="greedy")
    utilisation_bars(right, cases, ticks)
    left.legend(fontsize=7)


STUDY = Study(
    name="strong_scaling",
    about=__doc__,
    full=Scale(budget=20000, seeds=1, gpus=128),
    small=Scale(budget=50, seeds=1, gpus=16),
    runs=runs,
    figures=figures,
    plots={"throughput": ((11, 4.5), plot)},
)

if __name__ == "__main__":
    command(STUDY)()
