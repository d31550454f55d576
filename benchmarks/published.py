"""Published measurements beside predictions: how far is cost model `megatron` off?

`python -m benchmarks.published` predicts every row of `calib/data` that an operator of a plan, or a whole
plan, expresses, with the shipped hardware files, and writes `results/published`: every prediction, the errors
by set beside those of one fitted efficiency, which errors go together, what was left out and why, and a plot.
It takes seconds.
"""

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.published_rows import Case, cases
from benchmarks.published_steps import Step, steps
from benchmarks.study import HERE, provenance
from calib.statistics import Agreement, agreement, best_scale
from ir_schema.envelope import pretty
from passes.cost.megatron_memory import training_state
from passes.evaluate import evaluate
from passes.uncertainty import COVERAGE, spread_of, uncertainty
from rpegc.calibration.operators import alone, nodes_for
from rpegc.calibration.validation import operations, share_of_parameters
from rpegc.plots import check_plot, write_plot
from rpegc.stagefiles import make_directory, write_bytes
from rpegc.table import csv_bytes, table

OUT = HERE / "results" / "published"


Interval = tuple[float, float]


@dataclass(frozen=True)
class Outcome:
    """A case with its prediction, and what one efficiency is fitted to: operations per GPU, or bytes.
    `interval` is where a measured time lies with probability `COVERAGE`, as far as is known."""

    case: Case | Step
    predicted: float
    base: float
    interval: Interval | None = None

    @property
    def within(self) -> bool:
        """Whether the measured time lies in the predicted interval."""
        assert self.interval is not None, "a time has one"
        low, high = self.interval
        return low <= self.case.measured <= high


def outcome(case: Case | Step) -> Outcome:
    """The case with what the compiler says of it."""
    if isinstance(case, Step):
        scheduled = evaluate(case.configuration)
        known = uncertainty(scheduled)
        low, high = known.step_time_low_s, known.step_time_high_s
        assert low is not None, known.note
        assert high is not None, known.note
        return Outcome(case, scheduled.step_time_s, case.work, (low, high))
    predicted, spread = predict(case)
    if spread is None:
        return Outcome(case, predicted, base(case))
    off = math.exp(NormalDist().inv_cdf((1 + COVERAGE) / 2) * spread)
    return Outcome(case, predicted, base(case), (predicted / off, predicted * off))


def predict(case: Case) -> tuple[float, float | None]:
    """What the compiler says of the measured quantity, and the standard deviation of ln(measured / predicted)
    that the hardware file expects of times. Of operators that may have been meant, the fastest that fits into
    memory: who published it had tried them."""
    found = []
    spread = spread_of(case.hardware)
    for operator in case.operators:
        space = nodes_for(operator.placement.layout.gpus)
        model, vertex = alone(operator, case.hardware, space)
        if case.quantity == "state":
            return sum(training_state(operator.model, operator.placement.layout).values()), None
        if case.quantity == "activations":
            return model.residency.transient(vertex, operator.placement)["layer_inputs"], None
        available = case.hardware.memory_bytes * (1 - case.hardware.runtime_reserve)
        if len(case.operators) > 1 and model.operator_bytes(vertex, operator.placement) > available:
            continue
        parts = model.operator(vertex, operator.placement)
        whole, off = sum(parts.values()), spread.operator(operator.role, parts)
        if case.quantity == "seconds":
            found.append((whole, off))
            continue
        # The prefills of all others happen while a request decodes; its own is in the time to first token.
        workload = operator.workload
        first = _seconds_of_first_token(case)
        share = 1 / workload.sequences
        found.append(((whole - share * first) / (workload.response_length - 1), off))
    return min(found)


def _seconds_of_first_token(case: Case) -> float:
    """Prefill of the whole batch."""
    operator = case.operator
    workload = type(operator.workload)(
        prompts=operator.workload.prompts, rollouts=1, prompt_length=operator.workload.prompt_length,
        response_length=1,
    )  # fmt: skip
    changed = type(operator)(
        role=operator.role, model=operator.model, workload=workload, placement=operator.placement
    )
    model, vertex = alone(changed, case.hardware, nodes_for(operator.placement.layout.gpus))
    return sum(model.operator(vertex, operator.placement).values())


def base(case: Case) -> float:
    """What one efficiency is fitted to: operations per GPU (2 N a token forward, 8 N in training), or
    parameters per GPU where bytes were measured."""
    if case.quantity in ("activations", "state"):
        return share_of_parameters(case.operator)
    whole = operations(case.operator)
    return whole / case.operator.workload.response_length if case.quantity == "seconds per token" else whole


def by_set(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """Outcomes by (set, part), in the order of their first case."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for o in outcomes:
        found.setdefault((o.case.set, o.case.part), []).append(o)
    return found


def errors(outcomes: Sequence[Outcome]) -> tuple[Agreement, Agreement]:
    """Agreement of the predictions, and of the best that one efficiency can do."""
    measured = [o.case.measured for o in outcomes]
    work = [o.base for o in outcomes]
    scale = best_scale(measured, work)
    return agreement(measured, [o.predicted for o in outcomes]), agreement(
        measured, [scale * w for w in work]
    )


HEADER = (
    "set",
    "part",
    "n",
    "MAPE",
    "Spearman",
    "ordered",
    f"in the {100 * COVERAGE:.0f} % interval",
    "baseline MAPE",
    "baseline Spearman",
    "baseline ordered",
)


SHARED = ("part", "in common", "pairs", "correlation of errors")


def summary(outcomes: Sequence[Outcome]) -> list[tuple[object, ...]]:
    """A row of `HEADER` by set and part."""

    def told(a: Agreement) -> tuple[str, ...]:
        return f"{100 * a.mape:.1f} %", _share(a.spearman, "{:.3f}"), _share(100 * a.ordered, "{:.1f} %")

    rows: list[tuple[object, ...]] = []
    for (name, part), members in by_set(outcomes).items():
        ours, theirs = errors(members)
        times = [o for o in members if o.interval is not None]
        share = sum(o.within for o in times) / len(times) if times else math.nan
        rows.append((name, part, ours.n, *told(ours), _share(100 * share, "{:.0f} %"), *told(theirs)))
    return rows


ONE_NODE = "training, one node, vTrain"


def shared(outcomes: Sequence[Outcome]) -> list[tuple[object, ...]]:
    """Which iterations of `ONE_NODE` are off alike: part, pairs by what they have in common, how many there
    are, and the correlation of their ln(measured / predicted)."""
    rows: list[tuple[object, ...]] = []
    for (name, part), members in by_set(outcomes).items():
        if name != ONE_NODE:
            continue
        error = np.array([math.log(o.case.measured / o.predicted) for o in members])
        product = np.outer(error - error.mean(), error - error.mean()) / error.var()
        operators = [o.case.operator for o in members if isinstance(o.case, Case)]
        placed = [x.placement for x in operators]
        model = _equal([x.model for x in operators])
        batch = _equal([x.workload.sequences for x in operators])
        layout = _equal([p.layout for p in placed])
        microbatches = _equal([p.microbatches for p in placed])
        pairs = {
            "layout and microbatch size, other model": layout & batch & microbatches & ~model,
            "layout and model, other microbatch size": layout & batch & model & ~microbatches,
            "model and batch, other layout": batch & model & ~layout,
        }
        for what, alike in pairs.items():
            once = np.triu(alike, 1)
            rows.append((part, what, int(once.sum()), f"{product[once].mean():.2f}"))
    return rows


def _equal(values: Sequence[object]) -> NDArray[np.bool_]:
    """Which of all pairs of values are equal, a square."""
    number = {v: i for i, v in enumerate(dict.fromkeys(values))}
    column = np.array([number[v] for v in values])
    equal: NDArray[np.bool_] = column[:, None] == column
    return equal


def _share(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)


def draw(outcomes: Sequence[Outcome], figure: Any) -> None:
    """Predicted over measured, one panel for each quantity."""
    panels = {"seconds": "operator or step [s]", "seconds per token": "token [s]", "bytes": "memory [bytes]"}
    axes = figure.subplots(1, len(panels))
    for axis, (quantity, label) in zip(axes, panels.items(), strict=True):
        for (name, part), members in by_set(outcomes).items():
            mine = [o for o in members if o.case.quantity == quantity
                    or (quantity == "bytes" and o.case.quantity in ("state", "activations"))]  # fmt: skip
            if mine:
                axis.scatter(
                    [o.case.measured for o in mine], [o.predicted for o in mine], s=6, alpha=0.6,
                    label=f"{name} ({part[:3]}.)", marker="x" if part == "calibration" else "o",
                )  # fmt: skip
        low, high = axis.get_xlim()
        axis.plot((low, high), (low, high), color="grey", linewidth=0.7)
        axis.set(xscale="log", yscale="log", xlabel=f"measured: {label}", ylabel="predicted")
        axis.legend(fontsize=6)


def run() -> tuple[list[Outcome], Counter[tuple[str, str]]]:
    """All predictions, and what was left out."""
    operators, missing = cases()
    plans, more = steps()
    return [outcome(c) for c in (*operators, *plans)], missing + more


PREDICTIONS = ("set", "part", "case", "quantity", "measured", "predicted")


def predictions(outcomes: Sequence[Outcome]) -> bytes:
    """Every prediction, as CSV."""
    rows = [
        (
            o.case.set,
            o.case.part,
            o.case.label,
            o.case.quantity,
            f"{o.case.measured:.6g}",
            f"{o.predicted:.6g}",
        )
        for o in outcomes
    ]
    return csv_bytes(PREDICTIONS, rows)


@click.command(help=__doc__)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=OUT, help="Folder of the results.")
def main(output: Path) -> None:
    check_plot("scatter.png")
    started = time.perf_counter()
    outcomes, missing = run()
    rows = summary(outcomes)
    make_directory(output)
    write_bytes(str(output / "predictions.csv"), predictions(outcomes))
    write_bytes(str(output / "sets.csv"), csv_bytes(HEADER, rows))
    alike = shared(outcomes)
    write_bytes(str(output / "shared.csv"), csv_bytes(SHARED, alike))
    left_out = [(file, reason, n) for (file, reason), n in missing.items()]
    write_bytes(str(output / "left_out.csv"), csv_bytes(("file", "reason", "rows"), left_out))
    write_plot(str(output / "scatter.png"), lambda figure: draw(outcomes, figure), inches=(13.0, 4.5))
    seconds = time.perf_counter() - started
    told = provenance("python -m benchmarks.published", seconds, 1)
    write_bytes(str(output / "provenance.json"), pretty(told))
    print(table(HEADER, rows, right=range(2, len(HEADER))))
    print()
    print(table(SHARED, alike, right=(2, 3)))
    print("\nleft out:")
    print(table(("rows", "file", "reason"), [(n, f, r) for f, r, n in left_out], right=(0,)))
    print(f"{seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
