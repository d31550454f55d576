"""Does every algorithm learn, and does staleness cost anything?

    python -m benchmarks.learning.study [--algorithm ppo dpo …] [--seeds 0 1 2 3 4] [--jobs N] [--output DIR]

A two-layer model that starts from random weights learns to name the largest of three digits (`473=` is
answered `7`): by rewards for sampled answers, or (DPO) from pairs of a right and a wrong answer. Every
algorithm runs with staleness 0 and 1, with each seed, on one CPU worker. Written are

    algorithms.csv   algorithm, staleness, seed, step, and the reward and share of right answers (DPO: margin
                     and share of pairs preferred rightly) on held-out prompts after that many steps;
                     `settings` tells one version of the study from another
    algorithms.png   means over the seeds with their standard errors

and what came out is printed. Every finished run is written at once: started again, the study runs what is
missing. `--small`: one seed and few steps, to see that it works; without --output it leaves nothing.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from benchmarks.learning.example import HERE, write_csv
from benchmarks.learning.task import ALGORITHMS, blind, problem, settings, write_data

BIN = Path(sys.executable).parent
COLUMNS = ("algorithm", "staleness", "seed", "step", "reward", "correct", "settings")
EVALUATIONS = 10
UNSATURATED = 0.95
CLOSE = 0.01
LAST = 3
SMALL_STEPS = 10


class Case(NamedTuple):
    """One run of the study."""

    algorithm: str
    staleness: int
    seed: int


def compiled(name: str, staleness: int, steps: int, directory: Path) -> Path:
    """The plan of an algorithm."""
    source = directory / f"{name}-{staleness}.rpeg"
    source.write_text(problem(name, staleness, steps))
    plan = source.with_suffix(".exe.json")
    subprocess.run([str(BIN / "rpegc"), str(source), "-O1", "-q", "-o", str(plan)], check=True)
    return plan


def examined(case: Case, plan: Path, steps: int) -> list[dict]:
    """The held-out evaluations of one run. Raises RuntimeError if its weights were not as stale as asked."""
    metrics = plan.with_name(f"{plan.stem}-{case.seed}.jsonl")
    command = [BIN / "rpeg-rt", plan, "--seed", case.seed, "--metrics", metrics, "-q"]
    command += ["--eval-every", max(1, steps // EVALUATIONS)]
    subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    stale = max(max(line["staleness"].values()) for line in lines if "staleness" in line)
    if stale != case.staleness:
        raise RuntimeError(f"{case}: the oldest weights were {stale} versions behind")
    figures = (line["evaluation"] for line in lines if "evaluation" in line)
    return [case._asdict() | {f: e[f] for f in ("step", "reward", "correct")} for e in figures]


def read_results(path: Path, wanted: dict[tuple[str, int], str]) -> list[dict]:
    """Rows of an earlier start, but for those of other settings than `wanted` by algorithm and staleness."""
    if not path.exists():
        return []
    kinds = (str, int, int, int, float, float, str)
    with path.open(newline="", encoding="utf-8") as file:
        rows = [
            {name: kind(row[name]) for name, kind in zip(COLUMNS, kinds, strict=True)}
            for row in csv.DictReader(file)
        ]
    return [r for r in rows if wanted.get((r["algorithm"], r["staleness"])) in (None, r["settings"])]


def write_results(path: Path, rows: Iterable[dict]) -> None:
    """All rows in a fixed order; the file is whole at any time."""
    order = list(ALGORITHMS)
    beside = path.with_suffix(".part")
    ordered = sorted(rows, key=lambda r: (order.index(r["algorithm"]), r["staleness"], r["seed"], r["step"]))
    write_csv(beside, COLUMNS, ordered)
    beside.replace(path)


def measure(row: dict) -> float:
    """What an algorithm is to raise, at most 1: the reward, or with pairs the share preferred rightly."""
    return row["correct"] if row["algorithm"] == "dpo" else row["reward"]


def over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error (0 for one seed)."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.mean(values), error


def at_step(rows: Iterable[dict], name: str, staleness: int, step: int) -> list[float]:
    """The measure of every seed."""
    wanted = (name, staleness, step)
    return [measure(r) for r in rows if (r["algorithm"], r["staleness"], r["step"]) == wanted]


def ends(rows: Iterable[dict], name: str, staleness: int, last: int) -> list[float]:
    """Of every seed, the mean measure of its `last` evaluations."""
    mine = [r for r in rows if (r["algorithm"], r["staleness"]) == (name, staleness)]
    runs = (
        sorted((r for r in mine if r["seed"] == seed), key=lambda r: r["step"])
        for seed in dict.fromkeys(r["seed"] for r in mine)
    )
    return [statistics.mean(measure(r) for r in run[-last:]) for run in runs]


def cost(rows: Sequence[dict], name: str, last: int) -> tuple[float, float, str]:
    """By how much staleness 1 raises the mean of the `last` evaluations, the standard error of that, and
    what the two say together."""
    (fresh, fresh_error), (stale, stale_error) = (over_seeds(ends(rows, name, s, last)) for s in (0, 1))
    difference, error = stale - fresh, (fresh_error**2 + stale_error**2) ** 0.5
    if abs(difference) <= CLOSE * fresh:
        return difference, error, f"within {CLOSE:.0%}"
    side = "above" if difference > 0 else "below"
    where = "within" if abs(difference) <= error else f"{side} by more than"
    return difference, error, f"{where} the standard error of the difference"


def conclusion(rows: Sequence[dict], name: str, baseline: float) -> str:
    """What an algorithm came to, in a sentence: how far it got, and what staleness cost, at the end and over
    the last evaluations."""
    last = max(r["step"] for r in rows if r["algorithm"] == name)
    before, _ = over_seeds(at_step(rows, name, 0, 0))
    (fresh, fresh_error), (stale, stale_error) = (over_seeds(ends(rows, name, s, 1)) for s in (0, 1))
    saturated = "" if fresh < UNSATURATED else " (saturated)"
    told = (
        f"{verdict} ({difference:+.3f} +- {error:.3f})"
        for difference, error, verdict in (cost(rows, name, count) for count in (1, LAST))
    )
    return (
        f"{name}: held out {before:.3f} before, {fresh:.3f} +- {fresh_error:.3f} after {last} steps"
        f"{saturated}; without reading the prompts {baseline:.3f}; "
        f"staleness 1 {stale:.3f} +- {stale_error:.3f}: "
        + f"; in the mean of the last {LAST} evaluations ".join(told)
    )


def plot(path: Path, rows: Sequence[dict], baselines: dict[str, float]) -> None:
    """A panel per algorithm: means over the seeds, by staleness."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in ALGORITHMS if any(r["algorithm"] == name for r in rows)]
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure, panels = plt.subplots(
        lines, columns, figsize=(3.6 * columns, 3 * lines), squeeze=False, layout="constrained"
    )
    for panel, name in zip(panels.flat, names, strict=False):
        mine = [r for r in rows if r["algorithm"] == name]
        for staleness in sorted({r["staleness"] for r in mine}):
            steps = sorted({r["step"] for r in mine if r["staleness"] == staleness})
            points = [over_seeds(at_step(mine, name, staleness, s)) for s in steps]
            low, mean, high = zip(*((m - e, m, m + e) for m, e in points), strict=True)
            style = ("-", "--")[staleness]
            panel.plot(steps, mean, f"C{staleness}{style}", lw=1.5, label=f"staleness {staleness}")
            panel.fill_between(steps, low, high, color=f"C{staleness}", alpha=0.25, lw=0)
        panel.axhline(baselines[name], color="grey", ls=":", lw=1.2, label="without reading the prompt")
        kind = "preference accuracy" if name == "dpo" else "reward"
        panel.set(title=name, xlabel="RL step", ylabel=f"held-out {kind}", ylim=(-0.02, 1.02))
    panels.flat[0].legend(loc="lower right", fontsize=8)
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    seeds = len({r["seed"] for r in rows})
    figure.suptitle(f"Mean of {seeds} seeds; bands: its standard error", fontsize=10)
    figure.savefig(path, dpi=120, metadata={"Software": None})


def study(names: Sequence[str], seeds: Sequence[int], *, small: bool, jobs: int, output: Path) -> None:
    """Run what is missing of the study, and write and tell what came out."""
    output.mkdir(parents=True, exist_ok=True)
    results = output / "algorithms.csv"
    steps = {name: SMALL_STEPS if small else ALGORITHMS[name].steps for name in ALGORITHMS}
    with tempfile.TemporaryDirectory() as text, ThreadPoolExecutor(jobs) as pool:
        directory = Path(text)
        write_data(directory)
        marks = {(n, s): settings(n, s, steps[n], directory) for n in names for s in (0, 1)}
        baselines = {name: blind(name, directory) for name in ALGORITHMS}
        rows = read_results(results, marks)
        there = {Case(r["algorithm"], r["staleness"], r["seed"]) for r in rows}
        cases = [Case(n, s, seed) for n in names for seed in seeds for s in (0, 1)]
        missing = [case for case in cases if case not in there]
        plans = {
            (n, s): compiled(n, s, steps[n], directory)
            for n, s in dict.fromkeys((c.algorithm, c.staleness) for c in missing)
        }
        started, lock, done = time.monotonic(), Lock(), count(1)

        def finish(case: Case) -> None:
            found = examined(case, plans[case.algorithm, case.staleness], steps[case.algorithm])
            with lock:
                rows.extend(row | {"settings": marks[case.algorithm, case.staleness]} for row in found)
                write_results(results, rows)
                print(
                    f"{next(done)}/{len(missing)} {case.algorithm} staleness "
                    f"{case.staleness} seed {case.seed}: {measure(found[0]):.3f} to "
                    f"{measure(found[-1]):.3f}, {time.monotonic() - started:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )

        try:
            for future in as_completed([pool.submit(finish, case) for case in missing]):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # what runs is finished first
            raise
    plot(output / "algorithms.png", rows, baselines)
    for name in names:
        print(conclusion(rows, name, baselines[name]), flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithm", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--small", action="store_true", help="one seed and few steps")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    small = arguments.small
    seeds = arguments.seeds[:1] if small else arguments.seeds
    run = partial(study, arguments.algorithm, seeds, small=small, jobs=arguments.jobs)
    if small and arguments.output is None:
        with tempfile.TemporaryDirectory() as directory:
            run(output=Path(directory))
    else:
        run(output=arguments.output or HERE)


if __name__ == "__main__":
    main()
