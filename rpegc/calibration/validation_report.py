"""A validation as people read it: tables, a verdict, CSV, one JSON object, and a scatter plot."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calib.statistics import Agreement
from ir_schema.hardware import Hardware
from ir_schema.problem import Layout
from ir_schema.samples import Environment, OperatorSample
from rpegc.calibration.validation import QUANTITIES, Aim, Outcome, Part, Quantity
from rpegc.plots import write_plot
from rpegc.stagefiles import write_bytes
from rpegc.table import csv_bytes, table

TOLERANCE = 0.25
"""Half-width of the band around a perfect prediction in the plot."""
_HEADER = ("", "n", "MAPE", "rho", "in order", "work: MAPE", "rho", "in order", "constant: MAPE")
_AGREEMENT = ("quantity", "part", "n", "predictor", "mape", "spearman", "ordered")
_OPERATORS = (
    "model", "role", "layout", "microbatches", "prompts", "rollouts", "prompt_length", "response_length",
    "mean_response_length", "repetitions", "seconds", "predicted_seconds", "bytes", "predicted_bytes",
)  # fmt: skip


def show(parts: Sequence[Part]) -> str:
    """Two tables: agreement in time and in memory, beside that of the baselines."""
    told = []
    for quantity in QUANTITIES:
        rows = [
            (p.name, p.ours.n, *_cells(p.ours), *_cells(p.work), _percent(p.constant.mape))
            for p in parts
            if p.quantity == quantity
        ]
        told.append(table((quantity, *_HEADER[1:]), rows, right=range(1, len(_HEADER))))
    return "\n\n".join(told)


def _cells(a: Agreement) -> tuple[str, str, str]:
    rho = "-" if math.isnan(a.spearman) else f"{a.spearman:.3f}"
    return _percent(a.mape), rho, _percent(a.ordered)


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"


_MEANING = {
    "operators": "operators that were compared",
    "time.mape": "predicted times are off by",
    "time.spearman": "rank correlation of times",
    "time.ordered": "pairs whose times are predicted in order",
    "memory.mape": "predicted bytes are off by",
    "memory.spearman": "rank correlation of bytes",
    "memory.ordered": "pairs whose bytes are predicted in order",
}


def verdict(aims: Sequence[Aim]) -> str:
    """What was aimed at, and whether it was reached, a sentence each and one for all."""
    lines = []
    for a in aims:
        bound = "at most" if a.name.endswith("mape") else "at least"
        outcome = "met" if a.met else "MISSED"
        reached, aim = _figure(a.name, a.reached), _figure(a.name, a.aim)
        lines.append(f"{_MEANING[a.name]}: {reached}, aimed at {bound} {aim}: {outcome}")
    missed = sum(not a.met for a in aims)
    lines.append(
        f"{missed} of {len(aims)} aims are missed: plans whose predictions differ by less than these errors "
        "cannot be told apart."
        if missed
        else "All aims are met."
    )
    return "\n".join(lines)


def _figure(name: str, value: float) -> str:
    if name == "operators":
        return f"{value:.0f}"
    return f"{value:.3f}" if name.endswith("spearman") else _percent(value)


def conditions(hardware: Hardware, environment: Environment, models: int) -> str:
    """What was validated, where it was measured, and what is to be borne in mind."""
    p = hardware.provenance
    name, calibrated = (p.name, p.models) if p else ("", ())
    e = environment
    machine = f"{', '.join(e.machines)} ({e.accelerator or e.processor}, {e.backend})"
    workers = " + ".join(map(str, e.workers))
    lines = [f"{name or 'unnamed hardware'} against {workers} workers of {machine}, measured {e.started}"]
    if p is None or p.nominal:
        lines.append("note: the hardware file is nominal: nobody has calibrated the machine")
    if calibrated:
        lines.append(
            f"none of the {models} models is among the {len(calibrated)} that it was calibrated with"
        )
    elif p is not None and not p.nominal:
        lines.append("note: the hardware file does not say which models it was calibrated with")
    if e.load is not None and e.load > 1:
        lines.append(f"note: {e.load:.1f} other processes were running on the machine: times contain them")
    return "\n".join(lines)


def operators_csv(found: Sequence[Outcome], samples: Sequence[OperatorSample]) -> bytes:
    """Every operator with what was measured and what is predicted: seconds, and bytes of live tensors."""
    rows = []
    for o, s in zip(found, samples, strict=True):
        m, w, p = o.case.model, o.case.workload, o.case.placement
        rows.append(
            (
                f"{m.layers} x {m.hidden} {m.head}", o.case.role, layout_name(p.layout), p.microbatches,
                w.prompts, w.rollouts, w.prompt_length, w.response_length, f"{w.mean_response_length:g}",
                len(s.seconds), *(f"{x['time']:.6g}" for x in (o.measured, o.predicted)),
                *(f"{x['memory']:.0f}" for x in (o.measured, o.predicted)),
            )
        )  # fmt: skip
    return csv_bytes(_OPERATORS, rows)


def layout_name(layout: Layout) -> str:
    """`P_d x P_p x P_t`, and what else is not 1: `2x1x1`, `1x1x2 cp2`."""
    more = [
        f" {name}{n}"
        for name, n in (("cp", layout.context_parallel), ("ep", layout.expert_parallel))
        if n > 1
    ]
    return f"{layout.data_parallel}x{layout.pipeline_parallel}x{layout.tensor_parallel}" + "".join(more)


def agreement_csv(parts: Sequence[Part]) -> bytes:
    """The agreement of every predictor on every part; NaN is an empty cell."""
    rows = [
        (p.quantity, p.name, a.n, name, *(_cell(x) for x in (a.mape, a.spearman, a.ordered)))
        for p in parts
        for name, a in (("rpeg", p.ours), ("work", p.work), ("constant", p.constant))
    ]
    return csv_bytes(_AGREEMENT, rows)


def _cell(value: float) -> str | None:
    return None if math.isnan(value) else f"{value:.4f}"


def as_object(parts: Sequence[Part], aims: Sequence[Aim], environment: Environment) -> dict[str, object]:
    """All of it as one JSON object."""

    def agreement(a: Agreement) -> dict[str, object]:
        return {k: None if math.isnan(v) else v for k, v in a._asdict().items()}

    return {
        "environment": environment,
        "parts": [
            {
                "quantity": p.quantity,
                "part": p.name,
                "rpeg": agreement(p.ours),
                "work": agreement(p.work),
                "constant": agreement(p.constant),
            }
            for p in parts
        ],
        "aims": {
            a.name: {"aim": a.aim, "reached": None if math.isnan(a.reached) else a.reached, "met": a.met}
            for a in aims
        },
        "met": all(a.met for a in aims),
    }


def draw(found: Sequence[Outcome], figure: Any) -> None:
    """Predicted over measured, time and memory, with the band in which a prediction is off by a quarter."""
    axes = figure.subplots(1, 2)
    labels: dict[Quantity, str] = {
        "time": "time of an operator [s]",
        "memory": "peak of live tensors [bytes]",
    }
    for axis, (quantity, label) in zip(axes, labels.items(), strict=True):
        for role in dict.fromkeys(o.case.role for o in found):
            mine = [o for o in found if o.case.role == role]
            axis.scatter(
                [o.measured[quantity] for o in mine], [o.predicted[quantity] for o in mine], s=12, alpha=0.7,
                label=role,
            )  # fmt: skip
        scatter_band(axis, [o.measured[quantity] for o in found])
        axis.set(xlabel=f"measured: {label}", ylabel="predicted")
        axis.legend(fontsize=8)


def scatter_band(axis: Any, measured: Sequence[float]) -> None:
    """Logarithmic axes with the diagonal, and the band of `TOLERANCE` around it."""
    low, high = 0.8 * min(measured), 1.25 * max(measured)
    ends = (low, high)
    axis.set(xscale="log", yscale="log")
    axis.plot(ends, ends, color="grey", linewidth=0.8)
    bounds = ([(1 + sign * TOLERANCE) * x for x in ends] for sign in (-1, 1))
    axis.fill_between(ends, *bounds, color="grey", alpha=0.15, label=f"±{100 * TOLERANCE:.0f} %")


def write_results(
    directory: Path, found: Sequence[Outcome], samples: Sequence[OperatorSample], parts: Sequence[Part]
) -> None:
    """`operators.csv`, `agreement.csv` and `scatter.png`. Raises UsageFailure E912 and E936."""
    write_bytes(str(directory / "operators.csv"), operators_csv(found, samples))
    write_bytes(str(directory / "agreement.csv"), agreement_csv(parts))
    write_plot(str(directory / "scatter.png"), lambda figure: draw(found, figure), inches=(11.0, 4.8))
