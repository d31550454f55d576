"""Convergence of the search on 256 to 2,048 GPUs: the best plan against time, with two methods.

The yardstick is the best plan that any search of the study finds on the machine.
"""

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.scenarios import CONVERGENCE, convergence
from benchmarks.study import Figure, Row, Run, Scale, Study, command, figure
from passes.search import Search

SECONDS = 300
WITHIN = 0.05


def runs(scale: Scale) -> list[Run]:
    """Every machine and seed, with the compiler's default method and with plain annealing."""
    methods = dict.fromkeys((Search().method, "sa"))
    return [
        Run(
            {"gpus": gpus, "searched_by": method, "seed": seed},
            convergence(gpus),
            scale.search(seed, method=method),
            trace=True,
        )
        for gpus in CONVERGENCE
        if gpus <= scale.gpus
        for method in methods
        for seed in range(scale.seeds)
    ]


def curves(rows: Sequence[Row]) -> dict[tuple[int, str, int], list[tuple[float, float]]]:
    """(seconds, score) of the improvements of every search, by GPUs, method and seed; the last is its end."""
    found: dict[tuple[int, str, int], list[tuple[float, float]]] = {}
    for row in rows:
        if row["tokens_per_s"]:
            curve = found.setdefault((row["gpus"], row["searched_by"], row["seed"]), [])
            curve.append((row["seconds"], row["tokens_per_s"]))
    return found


def figures(rows: Sequence[Row]) -> list[Figure]:
    """By method: how much the makespan falls, and how soon it is near the best seen."""
    found = curves(rows)
    best: dict[int, float] = {}
    for (gpus, _, _), curve in found.items():
        best[gpus] = max(best.get(gpus, 0.0), curve[-1][1])
    result = []
    for method in dict.fromkeys(method for _, method, _ in found):
        mine = {(gpus, seed): curve for (gpus, m, seed), curve in found.items() if m == method}
        note = "" if method == Search().method else f", method {method}"
        fall = [100 * (1 - curve[0][1] / curve[-1][1]) for curve in mine.values()]
        result.append(figure(f"256 to 2,048 GPUs{note}", "makespan below the initial plan's", "%", fall))
        for size in CONVERGENCE:
            there = [curve for (gpus, _), curve in mine.items() if gpus == size]
            early = [max(v for s, v in curve if s <= max(SECONDS, curve[0][0])) for curve in there]
            above = [100 * (best[size] / value - 1) for value in early]
            soon = [next((s for s, v in c if v >= best[size] / (1 + WITHIN)), math.inf) for c in there]
            case = f"{size:,} GPUs{note}"
            result += [
                figure(case, f"makespan above the best seen, after {SECONDS} s", "%", above),
                figure(case, f"time until {WITHIN:.0%} above it", "s", soon),
            ]
    gaps = [100 * row["gap"] for row in rows if row["gap"] is not None]
    return [*result, figure("all", "optimality gap", "%", gaps)]


def plot(rows: Sequence[Row], canvas: Any) -> None:
    """Makespan relative to the initial plan's against time."""
    found = curves(rows)
    methods = list(dict.fromkeys(method for _, method, _ in found))
    sizes = list(dict.fromkeys(gpus for gpus, _, _ in found))
    axis = canvas.subplots()
    for (gpus, method, seed), curve in found.items():
        axis.step(
            [s for s, _ in curve],
            [curve[0][1] / v for _, v in curve],
            where="post",
            color=f"C{sizes.index(gpus)}",
            ls=("-", ":")[methods.index(method)],
            lw=1,
            label=f"{gpus} GPUs, {method}" if seed == 0 else None,
        )
    axis.set_xscale("log")
    axis.set(xlabel="seconds", ylabel="makespan / that of the initial plan")
    axis.legend(fontsize=8)


STUDY = Study(
    name="convergence",
    about=__doc__,
    full=Scale(budget=200000, seeds=2, gpus=2048),
    small=Scale(budget=30, seeds=1, gpus=256),
    runs=runs,
    figures=figures,
    plots={"convergence": ((8, 5), plot)},
)

if __name__ == "__main__":
    command(STUDY)()
