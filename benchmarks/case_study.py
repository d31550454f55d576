"""Case study: operators at once (P_eff) and step time of both heuristics' plans and of the one searched for.

The configuration of the paper's case study is not printed in full; this is strong scaling's workload on the
machines on which both heuristics' plans fit.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.scenarios import strong
from benchmarks.study import Figure, Row, Run, Scale, Study, command, figure

MACHINES = (32, 64, 128)
PLANS = ("greedy", "concurrent", "searched")


def runs(scale: Scale) -> list[Run]:
    """Every machine, planned by either heuristic and by search."""
    plans = {
        "greedy": [scale.search(method="greedy")],
        "concurrent": [scale.search(method="concurrent")],
        "searched": [scale.search(seed) for seed in range(scale.seeds)],
    }
    return [
        Run({"gpus": gpus, "plan": plan, "seed": search.seed}, strong(gpus), search)
        for gpus in MACHINES
        if gpus <= scale.gpus
        for plan, searches in plans.items()
        for search in searches
    ]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """P_eff of each plan, and how much shorter the searched plan's step is than the heuristics'."""
    planned = [row for row in rows if not row["failure"]]
    steps = {(row["gpus"], row["plan"]): row["step_s"] for row in planned if row["plan"] != "searched"}
    searched = [row for row in planned if row["plan"] == "searched"]
    return [
        *(figure(p, "P_eff", "", [row["p_eff"] for row in planned if row["plan"] == p]) for p in PLANS),
        *(
            figure(
                "searched",
                f"makespan below {plan}'s",
                "%",
                [
                    100 * (1 - r["step_s"] / steps[r["gpus"], plan])
                    for r in searched
                    if (r["gpus"], plan) in steps
                ],
            )
            for plan in PLANS[:2]
        ),
    ]


def plot(rows: Sequence[Row], canvas: Any) -> None:
    """P_eff and step time, by machine and plan."""
    gpus = list(dict.fromkeys(row["gpus"] for row in rows))
    for axis, column, label in zip(
        canvas.subplots(1, 2), ("p_eff", "step_s"), ("operators at once, P_eff", "step time [s]"), strict=True
    ):
        for k, plan in enumerate(PLANS):
            values = {
                row["gpus"]: row[column] or 0 for row in rows if row["plan"] == plan and row["seed"] == 0
            }
            axis.bar(
                [x + 0.27 * (k - 1) for x in range(len(gpus))], [values[g] for g in gpus], 0.27, label=plan
            )
        axis.set_xticks(range(len(gpus)), [f"{g} GPUs" for g in gpus])
        axis.set_ylabel(label)
    axis.legend()


STUDY = Study(
    name="case_study",
    about=__doc__,
    full=Scale(budget=20000, seeds=3, gpus=128),
    small=Scale(budget=100, seeds=1, gpus=32, method="sa"),
    runs=runs,
    figures=figures,
    plots={"plans": ((10, 4), plot)},
)

if __name__ == "__main__":
    command(STUDY)()
