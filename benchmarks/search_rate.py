"""How many plans the search can evaluate: lowered, scheduled and checked for memory in full, none cached.

Plans are drawn uniformly from all candidates of one structure, that with staleness 1 and split generation;
and they are those that an annealing visits, in its batches. Rates are of one thread's CPU time; what the
cost model is asked for on first sight of a shape, and compilation, are stated apart.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import click
import numpy as np

from benchmarks.scenarios import STABILITY, scaling
from passes.search import Search
from passes.search.evaluator import Batch, Evaluator, Rows
from passes.search.space import Space, build
from passes.search.structures import structures

GPUS = (*STABILITY, 2048)
REPEATS = 5
START = "from benchmarks.search_rate import start; print(start())"


def space_of(gpus: int) -> Space:
    """The space of the structure that is measured."""
    chosen = [(s, p) for s, p in structures(scaling(gpus)) if p.options.split != "never"]
    return build(0, *chosen[0])[0]


def drawn(space: Space, count: int) -> Rows:
    """Plans drawn uniformly: of every vertex any candidate with the same probability."""
    rng = np.random.default_rng(0)
    rows = np.empty((count, len(space.vertices), 2), dtype=np.int64)
    for i, v in enumerate(space.vertices):
        candidates = space.candidates[v]
        starts = [candidates.starts[s.gpus] for s in candidates.shapes]
        number = np.repeat(candidates.numbers, [len(s) for s in starts])
        first = np.concatenate(starts)
        chosen = rng.integers(len(first), size=count)
        rows[:, i, 0], rows[:, i, 1] = number[chosen], first[chosen]
    return rows


def uniform(gpus: int, count: int) -> dict[str, float]:
    """Evaluations per second over uniform draws (the fastest of some passes), and what comes before."""
    begun = time.thread_time()
    space = space_of(gpus)
    built = time.thread_time()
    rows = drawn(space, count)
    space.evaluator.evaluate_rows(rows[:1])
    compiled = time.thread_time()
    space.evaluator.evaluate_rows(rows)
    passes = [time.thread_time() - compiled]
    for _ in range(REPEATS):
        at = time.thread_time()
        space.evaluator.evaluate_rows(rows)
        passes.append(time.thread_time() - at)
    fastest = min(passes[1:])
    return {
        "evaluations_per_second_per_core": round(count / fastest),
        "candidates_s": round(built - begun, 3),
        "tables_s": round(passes[0] - fastest, 3),
    }


def chain(gpus: int, budget: int) -> dict[str, float]:
    """Evaluations per second inside an annealing, and of the whole search with all that it does beside."""
    spent, count, evaluate = 0.0, 0, Evaluator.evaluate_rows

    def timed(self: Evaluator, rows: Rows) -> Batch:
        nonlocal spent, count
        at = time.thread_time()
        batch = evaluate(self, rows)
        spent, count = spent + time.thread_time() - at, count + len(rows)
        return batch

    Evaluator.evaluate_rows = timed  # type: ignore[method-assign]
    try:
        begun = time.thread_time()
        Search(method="sa", budget=budget, threads=1, no_polish=True).run(scaling(gpus))
        whole = time.thread_time() - begun
    finally:
        Evaluator.evaluate_rows = evaluate  # type: ignore[method-assign]
    return {"chain_per_second": round(count / spent), "annealing_per_second": round(count / whole)}


def start() -> float:
    """CPU seconds of this process up to now, when it has evaluated a plan on 64 GPUs."""
    space = space_of(64)
    rows = drawn(space, 1)
    space.evaluator.evaluate_rows(rows)
    space.evaluator.keys(rows)
    space.evaluator.critical_time(rows[0])
    return time.process_time()


def starts() -> tuple[float, float]:
    """`start` in a new process without kept machine code, and in the next one."""
    with tempfile.TemporaryDirectory() as kept:
        environment = os.environ | {"NUMBA_CACHE_DIR": kept}
        command = [sys.executable, "-c", START]
        cold, warm = (
            float(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
            for _ in range(2)
        )
    return round(cold, 2), round(warm, 2)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects, one for each machine.")
@click.option("--gpus", type=click.Choice([str(n) for n in GPUS]), multiple=True, help="Only these machines.")
@click.option("--plans", type=click.IntRange(1), default=20_000, show_default=True, help="Plans to draw.")
@click.option("--budget", type=click.IntRange(1), default=20_000, show_default=True, help="Of the annealing.")
def main(as_json: bool, gpus: tuple[str, ...], plans: int, budget: int) -> None:
    """Measure evaluations per second on machines of 64 to 2,048 GPUs, and the time to the first one."""
    cold, warm = starts()
    found = []
    for n in map(int, gpus or GPUS):
        figures = uniform(n, plans) | chain(n, budget)
        found.append({"gpus": n} | figures | {"cold_start_s": cold, "warm_start_s": warm})
        if not as_json:
            click.echo(", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in found[-1].items()))
    if as_json:
        click.echo(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
