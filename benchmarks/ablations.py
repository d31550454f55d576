"""Ablations A1 to A9 of simulated annealing on four scenarios: what each part of it is worth."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from benchmarks.scenarios import ABLATION, ablation
from benchmarks.study import Figure, Row, Run, Scale, Study, command, figure
from ir_schema.device import size

SWITCHES = {
    "full": "",
    "A1": "no_splitting",
    "A2": "no_asynchrony",
    "A3": "fixed_microbatches",
    "A4": "no_pair_moves",
    "A5": "no_warm_restarts",
    "A6": "uniform_choice",
    "A7": "no_polish",
    "A8": "hard_memory",
    "A9": "geometric_cooling",
}
PRINTED = ("MEM-TIGHT", "HETERO", "DEEP")
"""The scenarios over which the paper prints losses and averages them."""


def runs(scale: Scale) -> list[Run]:
    """Every scenario, with everything and with each switch thrown."""
    return [
        Run(
            {"scenario": scenario, "ablation": name, "seed": seed},
            ablation(scenario),
            scale.search(seed, method="sa", **({switch: True} if switch else {})),
        )
        for scenario in ABLATION
        if size(ablation(scenario).device_space) <= scale.gpus
        for name, switch in SWITCHES.items()
        for seed in range(scale.seeds)
    ]


def losses(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Loss [%] of the mean score by (scenario, ablation). Runs that found no plan are not in the means."""
    scores: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if not row["failure"]:
            scores.setdefault((row["scenario"], row["ablation"]), []).append(row["tokens_per_s"])
    return {
        (scenario, name): 100 * (1 - mean(found) / mean(scores[scenario, "full"]))
        for (scenario, name), found in scores.items()
        if name != "full" and (scenario, "full") in scores
    }


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Losses by ablation: the average over the printed scenarios, then each; and searches without a plan."""
    found = losses(rows)
    result = []
    for name in list(SWITCHES)[1:]:
        printed = [found[s, name] for s in PRINTED if (s, name) in found]
        result.append(figure(name, "average loss", "%", [mean(printed)] if printed else []))
        result += [
            figure(name, f"loss on {s}", "%", [found[s, name]] if (s, name) in found else [])
            for s in ABLATION
        ]
    failed = [row["failure"] is not None for row in rows]
    return [*result, figure("all", "searches without a plan that fits", "", [sum(failed)])]


def plot(rows: Sequence[Row], canvas: Any) -> None:
    """Losses by ablation and scenario."""
    found = losses(rows)
    axis = canvas.subplots()
    names = list(SWITCHES)[1:]
    for k, scenario in enumerate(ABLATION):
        values = [found.get((scenario, name), 0.0) for name in names]
        axis.bar([x + 0.2 * (k - 1.5) for x in range(len(names))], values, 0.2, label=scenario)
    axis.axhline(0, color="black", lw=0.8)
    axis.set_xticks(range(len(names)), [f"{n}\n{SWITCHES[n].replace('_', ' ')}" for n in names], fontsize=7)
    axis.set_ylabel("loss of score [%]")
    axis.legend()


STUDY = Study(
    name="ablations",
    about=__doc__,
    full=Scale(budget=50000, seeds=5, gpus=128),
    small=Scale(budget=40, seeds=1, gpus=16),
    runs=runs,
    figures=figures,
    plots={"losses": ((11, 4.5), plot)},
)

if __name__ == "__main__":
    command(STUDY)()
