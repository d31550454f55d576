"""What all studies have in common: searches run in parallel, tables written, plots drawn, one command each.

A study is a list of searches. Each gives one row of the study's table: its labels, then `RESULTS`. A search
that is traced gives a row for every improvement as well, before its own, with the time [s] since it began,
the evaluations and the score. The table is the study's result: figures and plots are made from it alone.
"""

import csv
import json
import math
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks.scenarios import strong
from ir_schema.diagnostics import DiagnosticError
from ir_schema.problem import Problem
from passes.evaluate import evaluate
from passes.search import WATCH, Search, Watch
from passes.search.progress import Improvement
from passes.search.settings import Method
from rpegc.failure import UsageFailure
from rpegc.parallel import cores, workers
from rpegc.plots import check_plot, write_plot
from rpegc.table import csv_bytes

HERE = Path(__file__).resolve().parent
RESULTS = (
    "tokens_per_s",
    "step_s",
    "utilisation",
    "p_eff",
    "peak_gib",
    "lower_bound_s",
    "gap",
    "greedy",
    "concurrent",
    "method",
    "evaluations",
    "seconds",
    "failure",
)
"""Score [tokens/s] and step time [s] of the best plan that fits, utilisation, P_eff, peak memory of a GPU, a
bound below every plan's step time and the optimality gap; score of either heuristic's plan; how it was
searched. What does not exist (no plan fits: `failure` is the code; a heuristic's plan does not fit; no bound
is known) is empty."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How large a study is: evaluations of a search, seeds, the GPUs of the largest machine, and by which
    method is searched where the study does not say (the compiler's own, or a quicker one)."""

    budget: int
    seeds: int
    gpus: int
    method: Method = Search().method

    def search(self, seed: int = 0, *, method: Method | None = None, **switches: bool) -> Search:
        """A search with this budget, on one core; `switches` are those of the ablations."""
        return Search(method=method or self.method, budget=self.budget, seed=seed, threads=1, **switches)


@dataclass(frozen=True)
class Run:
    """One search of a study. `labels` tell it from the others in the table."""

    labels: Mapping[str, object]
    problem: Problem
    search: Search
    trace: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure of a study in `unit`, from `low` to `high` over the cases it sums up, or None."""

    case: str
    figure: str
    unit: str
    low: float | None
    high: float | None


def figure(case: str, name: str, unit: str, values: Iterable[float]) -> Figure:
    """The range of `values`."""
    found = list(values)
    return Figure(case, name, unit, min(found, default=None), max(found, default=None))


@dataclass(frozen=True)
class Study:
    """A study: its searches at a scale, its figures and its plots (name: inches, and what draws it)."""

    name: str
    about: str
    full: Scale
    small: Scale
    runs: Callable[[Scale], list[Run]]
    figures: Callable[[Sequence[Row]], list[Figure]]
    plots: Mapping[str, tuple[tuple[float, float], Callable[[Sequence[Row], Any], None]]]


@cache
def warm_up(method: Method) -> None:
    """Search a little, so that what is compiled on first use is, before this process times a search."""
    Search(method=method, budget=200, threads=1).run(strong(32))


def execute(run: Run) -> list[Row]:
    """The rows of one search. Time counts from an idle process whose code is compiled."""
    warm_up(run.search.method)
    rows: list[Row] = []
    started = time.perf_counter()

    def improved(found: Improvement) -> None:
        row = {"tokens_per_s": found.score, "step_s": found.step_s, "evaluations": found.evaluations}
        rows.append({**run.labels, **row, "seconds": round(time.perf_counter() - started, 3)})

    token = WATCH.set(Watch(on_improvement=improved) if run.trace else None)
    try:
        found = run.search.run(run.problem)
    except DiagnosticError as exc:
        code = exc.diagnostics[0].code
        return [*rows, {**run.labels, "method": run.search.method, "failure": code}]
    finally:
        WATCH.reset(token)
    seconds = time.perf_counter() - started
    score, report = evaluate(found), found.search
    assert report is not None, "a search reports"
    result = {
        "tokens_per_s": score.score_tokens_per_s,
        "step_s": score.step_time_s,
        "utilisation": score.utilisation,
        "p_eff": score.P_eff,
        "peak_gib": score.max_peak_bytes / 2**30,
        "lower_bound_s": report.lower_bound_s,
        "gap": report.optimality_gap,
        "greedy": report.baselines.get("greedy"),
        "concurrent": report.baselines.get("concurrent"),
        "method": report.method,
        "evaluations": report.evaluations,
        "seconds": round(seconds, 3),
    }
    return [*rows, {**run.labels, **result}]


def execute_all(runs: Sequence[Run], jobs: int) -> list[Row]:
    """The rows of all searches, in their order, from `jobs` processes; progress goes to standard error."""
    rows: list[Row] = []
    with workers(jobs) as pool:
        for done, (run, found) in enumerate(zip(runs, pool.map(execute, runs), strict=True), start=1):
            rows += found
            last = found[-1]
            outcome = last.get("failure") or f"{last['tokens_per_s']:.5g} tokens/s"
            label = " ".join(map(str, run.labels.values()))
            print(f"{done}/{len(runs)} {label}: {outcome}", file=sys.stderr, flush=True)
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """`rows` as CSV, numbers to six digits: labels in the order in which they appear, then `RESULTS`."""
    labels = dict.fromkeys(name for row in rows for name in row if name not in RESULTS)
    names = (*labels, *RESULTS)
    path.write_bytes(csv_bytes(names, [[_cell(row.get(name)) for name in names] for row in rows]))


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def read_rows(path: Path) -> list[Row]:
    """Rows as they were written: numbers as numbers, None for what is empty."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text or None


def provenance(arguments: str, seconds: float, jobs: int) -> dict[str, object]:
    """Where results come from: the command, the state of the code, and the machine."""
    return {
        "command": arguments,
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(seconds),
        "processes": jobs,
        "cores": cores(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("msgspec", "numba", "numpy")},
    }


def _commit() -> str | None:
    """The commit that is checked out, marked if more than results differs from it; None without git."""
    if shutil.which("git") is None:
        return None

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ("git", *arguments), cwd=HERE.parent, capture_output=True, text=True, check=False
        )

    head = git("rev-parse", "--short", "HEAD").stdout.strip()
    results = (":!benchmarks/results", ":!benchmarks/README.md")
    changed = git("diff", "--quiet", "HEAD", "--", ".", *results).returncode != 0
    return f"{head} with changes" if head and changed else head or None


def command(study: Study) -> click.Command:
    """The command line of a study."""

    @click.command(name=study.name, help=study.about)
    @click.option("--small", is_flag=True, help="A few cases with few evaluations: does it work?")
    @click.option(
        "--output",
        type=click.Path(file_okay=False, path_type=Path),
        default=HERE / "results" / study.name,
        help="Directory for table, plots and provenance.  [default: benchmarks/results/NAME]",
    )
    @click.option(
        "--budget", type=click.IntRange(1), help=f"Evaluations of a search.  [default: {study.full.budget}]"
    )
    @click.option(
        "--seeds", type=click.IntRange(1), help=f"Seeds of each search.  [default: {study.full.seeds}]"
    )
    @click.option(
        "--jobs", type=click.IntRange(1), default=cores(), show_default="cores", help="Searches at a time."
    )
    def main(small: bool, output: Path, budget: int | None, seeds: int | None, jobs: int) -> None:
        chosen = study.small if small else study.full
        scale = replace(chosen, budget=budget or chosen.budget, seeds=seeds or chosen.seeds)
        plots = {str(output / f"{name}.png"): plot for name, plot in study.plots.items()}
        try:
            output.mkdir(parents=True, exist_ok=True)
            for path in plots:
                check_plot(path)
        except (OSError, UsageFailure) as exc:
            raise click.ClickException(str(exc)) from exc
        started = time.perf_counter()
        rows = execute_all(study.runs(scale), jobs)
        arguments = f"python -m benchmarks.{study.name} --budget {scale.budget} --seeds {scale.seeds}"
        told = provenance(arguments + " --small" * small, time.perf_counter() - started, jobs)
        write_rows(output / "results.csv", rows)
        (output / "provenance.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        rows = read_rows(output / "results.csv")
        for path, (inches, plot) in plots.items():
            write_plot(path, partial(plot, rows), inches=inches)
        for f in study.figures(rows):
            if f.high is not None:
                click.echo(f"{f.case}: {f.figure} {written(f)}")

    return main


def written(f: Figure) -> str:
    """A figure's value in words: `5.2 to 61 %`, `at most 6 %` without a lower end, `never` for infinity."""
    if f.high is None:
        return "–"
    low, high = (None if v is None else _number(v) for v in (f.low, f.high))
    amount = high if low == high else f"at most {high}" if low is None else f"{low} to {high}"
    return amount if amount == "never" else f"{amount} {f.unit}".strip()


def _number(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
