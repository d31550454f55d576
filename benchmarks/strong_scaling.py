"""Strong scaling: 13B models on 8 to 128 GPUs, for throughput and for throughput x utilisation.

On 8 GPUs memory decides, by less than the assumed capacity of a GPU is known: that case is searched with the
capacity of the hardware file and with the nominal one.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from benchmarks.objectives import bars, both, gains, pairs, summary, utilisation_bars
from benchmarks.scenarios import NOMINAL_BYTES, STRONG, strong
from benchmarks.study import Figure, Row, Run, Scale, Study, command, figure


def runs(scale: Scale) -> list[Run]:
    """Five machines and the smallest once more with nominal memory at full scale, for both objectives."""
    cases = [({"gpus": gpus, "memory": "of the file"}, strong(gpus)) for gpus in STRONG if gpus <= scale.gpus]
    return both([({"gpus": 8, "memory": "nominal"}, strong(8, NOMINAL_BYTES)), *cases], scale)


def figures(rows: Sequence[Row]) -> list[Figure]:
    """The ends of the scale, the gain over the greedy heuristic, and the summary of both objectives."""
    plain = [row for row, _ in pairs(rows)]
    fits = [bool(r["greedy"]) + bool(r["concurrent"]) for r in plain if r["gpus"] == 8]
    gained = gains(rows, "greedy")

    def scores(gpus: int, memory: str) -> list[float]:
        here = [row for row in plain if (row["gpus"], row["memory"]) == (gpus, memory)]
        return [row["tokens_per_s"] for row in here if not row["failure"]]

    return [
        figure("8 GPUs", "heuristics whose plan fits", "", fits),
        figure("8 GPUs", "throughput", "tokens/s", scores(8, "of the file")),
        figure("8 GPUs of 96 GiB", "throughput", "tokens/s", scores(8, "nominal")),
        figure("128 GPUs", "throughput", "tokens/s", scores(128, "of the file")),
        figure("16 to 128 GPUs", "throughput gained over greedy", "%", chain.from_iterable(gained.values())),
        figure("128 GPUs", "throughput gained over greedy", "%", gained.get(128, [])),
        *summary(rows),
    ]


def plot(rows: Sequence[Row], canvas: Any) -> None:
    """Scores, with the gain over the greedy heuristic, and utilisation of either objective's plan."""
    cases = [pair for pair in pairs(rows) if pair[0]["seed"] == 0]
    ticks = [f"{p['gpus']} GPUs" + "\n96 GiB" * (p["memory"] == "nominal") for p, _ in cases]
    left, right = canvas.subplots(1, 2)
    bars(left, cases, ticks, over="greedy")
    utilisation_bars(right, cases, ticks)
    left.legend(fontsize=7)


STUDY = Study(
    name="strong_scaling",
    about=__doc__,
    full=Scale(budget=20000, seeds=1, gpus=128),
    small=Scale(budget=50, seeds=1, gpus=16, method="sa"),
    runs=runs,
    figures=figures,
    plots={"throughput": ((11, 4.5), plot)},
)

if __name__ == "__main__":
    command(STUDY)()
