"""Whole steps: predicted beside measured step time of plans that differ, and which of two plans is faster.

`python -m benchmarks.steps HARDWARE` compiles the plans of `benchmarks.steps_plans` with the given hardware
file and runs every one of them with the runtime, in several short rounds, each in the opposite order of the
one before: what else happens on the machine falls on all plans alike. All step times are written to
`steps.json`; `--measured steps.json` compares them with another hardware file.

A plan's time is the median over its rounds of the median over a round's steps. Pairs are those of plans of
one problem, for between these a search chooses. The measurement tells two plans apart if every round of the
one was faster than every round of the other.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.steps_plans import Case, cases, source, write_prompts
from benchmarks.study import HERE, Row, provenance
from calib.hardware import load_hardware
from calib.statistics import mape, spearman
from ir_schema.base import Record
from rpeg_rt.bench.environment import running
from rpeg_rt.load import load_plan
from rpeg_rt.metrics import StepMetrics
from rpeg_rt.run import Settings, execute
from rpeg_rt.trace import software_versions
from rpegc.calibration.validation_report import scatter_band
from rpegc.cli.group import run as rpegc
from rpegc.plots import check_plot, write_plot
from rpegc.table import csv_bytes, table

NAME = "steps"
WARM = 2
"""Steps of a run before those that are counted: memory is allocated and connections are made."""
COLUMNS = ("problem", "plan", "workers", "steps", "predicted_s", "measured_s", "least_s", "greatest_s")
HEADER = (
    "problem",
    "plans",
    "MAPE",
    "rho",
    "pairs",
    "faster plan predicted",
    "told apart",
    "of these predicted",
)


class Steps(Record, frozen=True, kw_only=True):
    """Seconds of a plan's steps by round, from the second step of a run on."""

    problem: str
    plan: str
    seconds: tuple[tuple[float, ...], ...]

    def rounds(self) -> list[float]:
        """The median of what is counted of every round."""
        return [statistics.median(r[WARM - 1 :]) for r in self.seconds]


class Measured(Record, frozen=True, kw_only=True):
    """All step times of a measurement, and what it was made with; `load`: how many processes were running
    before (None: the system does not say)."""

    provenance: dict[str, Any]
    software: dict[str, str]
    load: float | None
    steps: tuple[Steps, ...]


# Measuring and predicting --------------------------------------------------------------------------------


def compile_plans(chosen: Sequence[Case], hardware: Path, directory: Path) -> list[Path]:
    """The plans as executables, by `rpegc`."""
    plans = []
    for i, case in enumerate(chosen):
        problem, plan = directory / f"{i}.rpeg", directory / f"{i}.exe.json"
        problem.write_text(source(case, hardware), encoding="utf-8")
        if rpegc([str(problem), "--search", "none", "-q", "-o", str(plan)]):
            raise click.ClickException(f"plan `{case.name}` of `{case.problem}` cannot be compiled")
        plans.append(plan)
    return plans


def step_seconds(plan: Path, steps: int) -> tuple[float, ...]:
    """Seconds of each of so many steps of a plan but the first, which begins with starting workers."""
    finished: list[StepMetrics] = []
    execute(plan, Settings(steps=steps, data=plan.parent), lambda metrics, _: finished.append(metrics))
    return tuple(round(after.time_s - before.time_s, 6) for before, after in pairwise(finished))


def measure(chosen: Sequence[Case], plans: Sequence[Path], rounds: int, steps: int) -> tuple[Steps, ...]:
    """Run all plans in rounds, every other one in the opposite order."""
    write_prompts(plans[0].parent / "prompts.jsonl")
    found: list[list[tuple[float, ...]]] = [[] for _ in plans]
    for r in range(rounds):
        order = range(len(plans))
        for done, i in enumerate(order if r % 2 == 0 else reversed(order), start=1):
            found[i].append(step_seconds(plans[i], steps))
            case, told = chosen[i], f"{1e3 * statistics.median(found[i][-1][WARM - 1 :]):.0f} ms"
            where = f"round {r + 1}/{rounds}, {done}/{len(plans)}"
            print(f"{where}: {case.problem}: {case.name}: {told}", file=sys.stderr, flush=True)
    return tuple(
        Steps(problem=c.problem, plan=c.name, seconds=tuple(s)) for c, s in zip(chosen, found, strict=True)
    )


def read_measured(path: Path, chosen: Sequence[Case]) -> Measured:
    """What was measured before of just the plans that there are. Raises click.ClickException."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise click.ClickException(f"{path} has no step times: {exc}") from exc
    if [(s.problem, s.plan) for s in found.steps] != [(c.problem, c.name) for c in chosen]:
        raise click.ClickException(f"{path} has step times of other plans: measure anew, without --measured")
    if not all(s.seconds and all(len(r) >= WARM and min(r) > 0 for r in s.seconds) for s in found.steps):
        raise click.ClickException(f"{path} lacks steps: every round has {WARM} or more, none of 0 s")
    return found


# Comparing -----------------------------------------------------------------------------------------------


def compare(chosen: Sequence[Case], steps: Sequence[Steps], predicted: Sequence[float]) -> list[Row]:
    """Both step times of every plan beside each other, with the fastest and the slowest round."""
    rows = []
    for case, measured, prediction in zip(chosen, steps, predicted, strict=True):
        rounds = measured.rounds()
        rows.append(
            {
                "problem": case.problem,
                "plan": case.name,
                "workers": case.workers,
                "steps": sum(len(r) - WARM + 1 for r in measured.seconds),
                "predicted_s": prediction,
                "measured_s": statistics.median(rounds),
                "least_s": min(rounds),
                "greatest_s": max(rounds),
            }
        )
    return rows


def pairs(rows: Sequence[Row]) -> Iterator[tuple[bool, bool]]:
    """Of every two plans of one problem: whether the faster one is predicted, and whether the measurement
    tells them apart."""
    for a, b in combinations(rows, 2):
        if a["problem"] == b["problem"]:
            right = (a["measured_s"] - b["measured_s"]) * (a["predicted_s"] - b["predicted_s"]) > 0
            yield right, a["greatest_s"] < b["least_s"] or b["greatest_s"] < a["least_s"]


def summary(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """By problem, and for all: what `HEADER` names."""
    problems = list(dict.fromkeys(r["problem"] for r in rows))
    told: list[tuple[object, ...]] = []
    for name, mine in [*((p, [r for r in rows if r["problem"] == p]) for p in problems), ("all", list(rows))]:
        values = [r["measured_s"] for r in mine], [r["predicted_s"] for r in mine]
        every = list(pairs(mine))
        apart = [right for right, known in every if known]
        told.append(
            (
                name,
                len(mine),
                f"{100 * mape(*values):.1f} %",
                f"{spearman(*values):.3f}",
                len(every),
                _share([right for right, _ in every]),
                len(apart),
                _share(apart),
            )
        )
    return told


def _share(right: Sequence[bool]) -> str:
    return f"{100 * sum(right) / len(right):.1f} %" if right else ""


def draw(rows: Sequence[Row], figure: Any) -> None:
    """Predicted over measured step time, with the range of the rounds."""
    axis = figure.subplots()
    markers = {1: "o", 2: "s", 4: "^"}
    for i, problem in enumerate(dict.fromkeys(r["problem"] for r in rows)):
        for workers, marker in markers.items():
            mine = [r for r in rows if r["problem"] == problem and r["workers"] == workers]
            measured = [r["measured_s"] for r in mine]
            axis.errorbar(
                measured, [r["predicted_s"] for r in mine],
                xerr=[[m - r["least_s"] for m, r in zip(measured, mine, strict=True)],
                      [r["greatest_s"] - m for m, r in zip(measured, mine, strict=True)]],
                fmt=marker, markersize=5, linewidth=0.7, color=f"C{i}", alpha=0.8,
                label=f"{problem}, {workers} worker{'s' * (workers > 1)}",
            )  # fmt: skip
    scatter_band(axis, [r["measured_s"] for r in rows])
    axis.set(xlabel="measured: step [s]", ylabel="predicted")
    axis.legend(fontsize=8)


# Command -------------------------------------------------------------------------------------------------


@click.command(help=__doc__)
@click.argument("hardware", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Runs of every plan.")
@click.option("--steps", type=click.IntRange(WARM + 1), default=4, show_default=True, help="Steps of a run.")
@click.option(
    "--measured", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare these step times; run nothing.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=HERE / "results" / NAME,
    help="Folder of the results.  [default: benchmarks/results/steps]",
)  # fmt: skip
def main(hardware: Path, rounds: int, steps: int, measured: Path | None, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    check_plot(str(output / "scatter.png"))
    chosen, load, started = cases(), running(), time.perf_counter()
    found = None if measured is None else read_measured(measured, chosen)
    with tempfile.TemporaryDirectory(prefix="rpeg-") as directory:
        plans = compile_plans(chosen, hardware.resolve(), Path(directory))
        predicted = [load_plan(p).executable.prediction.score.step_time_s for p in plans]
        if found is None:
            times = measure(chosen, plans, rounds, steps)
            command = (
                f"python -m benchmarks.{NAME} {os.path.relpath(hardware)} --rounds {rounds} --steps {steps}"
            )
            found = Measured(
                provenance=provenance(command, time.perf_counter() - started, 1),
                software=software_versions(),
                load=load,
                steps=times,
            )
            (output / "steps.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    rows = compare(chosen, found.steps, predicted)
    lines = [[f"{v:.6g}" if isinstance(v := r[c], float) else v for c in COLUMNS] for r in rows]
    (output / "results.csv").write_bytes(csv_bytes(COLUMNS, lines))
    write_plot(str(output / "scatter.png"), partial(draw, rows), inches=(7.0, 5.5))
    p = load_hardware(str(hardware.resolve())).provenance
    told = {
        "measured": found.provenance | {"load": found.load, "software": found.software},
        "hardware": p.name if p else "",
        "summary": [dict(zip(HEADER, r, strict=True)) for r in summary(rows)],
    }
    (output / "provenance.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    print(table(HEADER, summary(rows), right=range(1, len(HEADER))))


if __name__ == "__main__":
    main()
