"""Stability of the search on 64 to 1,024 GPUs: how far plans of different seeds are from the best seen."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from benchmarks.scenarios import STABILITY, scaling
from benchmarks.study import Figure, Row, Run, Scale, Study, command, figure

PAPER_SECONDS = 600


def runs(scale: Scale) -> list[Run]:
    """Every machine with every seed."""
    return [
        Run({"gpus": gpus, "seed": seed}, scaling(gpus), scale.search(seed))
        for gpus in STABILITY
        if gpus <= scale.gpus
        for seed in range(scale.seeds)
    ]


def scores(rows: Sequence[Row]) -> dict[int, list[float]]:
    """Scores of all seeds, by number of GPUs."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if not row["failure"]:
            found.setdefault(row["gpus"], []).append(row["tokens_per_s"])
    return found


def figures(rows: Sequence[Row]) -> list[Figure]:
    """The spread of the scores, and how many plans are scored in the time of the paper's searches."""
    found = scores(rows)
    spread = {gpus: 100 * stdev(v) / mean(v) for gpus, v in found.items() if len(v) > 1}
    worst = {gpus: 100 * (1 - min(v) / max(v)) for gpus, v in found.items()}
    result = [figure("64 to 1,024 GPUs", "coefficient of variation", "%", spread.values())]
    for case, sizes in (("64 to 512 GPUs", STABILITY[:-1]), ("1,024 GPUs", STABILITY[-1:])):
        there = [worst[gpus] for gpus in sizes if gpus in worst]
        result.append(figure(case, "worst below the best seen", "%", there))
    for gpus in STABILITY:
        rate = [
            PAPER_SECONDS * r["evaluations"] / r["seconds"]
            for r in rows
            if r["gpus"] == gpus and r["seconds"]
        ]
        result.append(
            figure(f"{gpus:,} GPUs", f"evaluations in {PAPER_SECONDS} s", "", [mean(rate)] if rate else [])
        )
    gaps = [100 * row["gap"] for row in rows if row["gap"] is not None]
    return [*result, figure("all", "optimality gap", "%", gaps)]


def plot(rows: Sequence[Row], canvas: Any) -> None:
    """The share of seeds whose plan is within a distance of the best seen."""
    axis = canvas.subplots()
    for gpus, values in scores(rows).items():
        below = sorted(100 * (1 - v / max(values)) for v in values)
        shares = [100 * (i + 1) / len(below) for i in range(len(below))]
        axis.step([0, *below], [0, *shares], where="post", label=f"{gpus} GPUs")
    axis.set(xlabel="below the best score seen [%]", ylabel="seeds [%]", ylim=(0, 101))
    axis.legend()


STUDY = Study(
    name="stability",
    about=__doc__,
    full=Scale(budget=50000, seeds=20, gpus=1024),
    small=Scale(budget=30, seeds=2, gpus=64),
    runs=runs,
    figures=figures,
    plots={"stability": ((7, 5), plot)},
)

if __name__ == "__main__":
    command(STUDY)()
