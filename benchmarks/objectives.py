"""Cases searched for both objectives, against the heuristics: what weak and strong scaling have in common."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.scenarios import with_objective
from benchmarks.study import Figure, Row, Run, Scale, figure
from ir_schema.problem import Problem

Pair = tuple[Row, Row]
SERIES = {"greedy": "C7", "concurrent": "C1", "throughput": "C2", "throughput x utilisation": "C3"}
"""Colours of the heuristics and of the objectives."""


def both(cases: Iterable[tuple[Mapping[str, object], Problem]], scale: Scale) -> list[Run]:
    """Every case with every seed, for throughput and for throughput x utilisation."""
    return [
        Run(
            {**labels, "seed": seed, "objective": objective},
            with_objective(problem, objective),
            scale.search(seed),
        )
        for labels, problem in cases
        for seed in range(scale.seeds)
        for objective in ("throughput", "efficiency")
    ]


def pairs(rows: Sequence[Row]) -> list[Pair]:
    """The rows of the two objectives, case by case."""
    return list(zip(rows[::2], rows[1::2], strict=True))


def gains(rows: Sequence[Row], heuristic: str) -> dict[int, list[float]]:
    """What throughput gains [%] over the heuristic's plan where that fits, by number of GPUs."""
    found: dict[int, list[float]] = {}
    for plain, _ in pairs(rows):
        if plain[heuristic]:
            found.setdefault(plain["gpus"], []).append(100 * (plain["tokens_per_s"] / plain[heuristic] - 1))
    return found


def summary(rows: Sequence[Row]) -> list[Figure]:
    """The share of cases for which a plan fits, its optimality gap, and what the second objective trades."""
    fitting = [
        (plain, other) for plain, other in pairs(rows) if not plain["failure"] and not other["failure"]
    ]
    case = "throughput x utilisation"
    return [
        figure(
            "all",
            "cases with a plan that fits",
            "%",
            [100 * mean(not plain["failure"] for plain, _ in pairs(rows))],
        ),
        figure(
            "all",
            "optimality gap",
            "%",
            [100 * plain["gap"] for plain, _ in fitting if plain["gap"] is not None],
        ),
        figure(
            case,
            "throughput given up",
            "%",
            [100 * (1 - other["tokens_per_s"] / plain["tokens_per_s"]) for plain, other in fitting],
        ),
        figure(
            case,
            "utilisation gained",
            "points",
            [100 * (other["utilisation"] - plain["utilisation"]) for plain, other in fitting],
        ),
        figure(case, "utilisation", "%", [100 * other["utilisation"] for _, other in fitting]),
    ]


def bars(axis: Any, cases: Sequence[Pair], ticks: Sequence[str], over: str) -> None:
    """Scores [tokens/s] of heuristics and objectives, with the gain over heuristic `over`."""
    for k, (name, colour) in enumerate(SERIES.items()):
        for x, (plain, other) in enumerate(cases):
            value = plain[name] if k < 2 else (plain, other)[k - 2]["tokens_per_s"]
            place = x + 0.2 * (k - 1.5)
            axis.bar(place, value or 0, 0.2, color=colour, label=name if x == 0 else None)
            if not value:
                axis.text(place, 0, "OOM", rotation=90, ha="center", va="bottom", fontsize=6)
            elif name == "throughput" and plain[over]:
                gain = f"{value / plain[over] - 1:+.0%}"
                axis.text(place, value, gain, ha="center", va="bottom", fontsize=6)
    axis.set_xticks(range(len(cases)), ticks, fontsize=7)
    axis.set_ylabel("tokens/s", fontsize=7)


def utilisation_bars(axis: Any, cases: Sequence[Pair], ticks: Sequence[str]) -> None:
    """Utilisation of the plans for the two objectives."""
    for k, name in enumerate(list(SERIES)[2:]):
        values = [pair[k]["utilisation"] or 0 for pair in cases]
        places = [x + 0.4 * (k - 0.5) for x in range(len(cases))]
        axis.bar(places, values, 0.4, color=SERIES[name], label=name)
    axis.set_xticks(range(len(cases)), ticks, fontsize=7)
    axis.set_ylabel("utilisation", fontsize=7)
    axis.set_ylim(0, 1.05)
