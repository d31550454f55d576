"""What a sweep found, as a table for people, as CSV and as JSON."""

import csv
import io

from ir_schema.base import Record
from ir_schema.envelope import pretty
from rpegc.sweep.points import Figures, Point
from rpegc.table import duration, size, table

FIGURES = Figures.__struct_fields__


class Sweep(Record, frozen=True, kw_only=True):
    """What `rpegc sweep --json` prints: the points in the order of the grid, those that are done where
    `interrupted`."""

    source: str
    keys: tuple[str, ...]
    points: tuple[Point, ...]
    interrupted: bool = False


def as_json(sweep: Sweep) -> bytes:
    """The sweep as one JSON object."""
    return pretty(sweep)


def as_csv(sweep: Sweep) -> bytes:
    """One line for each point: its values, its figures, and the code and message of what is wrong with it."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow([*sweep.keys, "gpus", *FIGURES, "front", "plan_id", "code", "message"])
    for point in sweep.points:
        first = point.diagnostics[0] if point.diagnostics else None
        told = ("", "") if first is None else (first.code, first.message)
        figures = [getattr(point.figures, name, None) for name in FIGURES]
        cells = map(_cell, [point.gpus, *figures, point.front, point.plan_id])
        lines.writerow([*(point.values[key] for key in sweep.keys), *cells, *told])
    return out.getvalue().encode()


def _cell(value: object) -> object:
    """A CSV cell: nothing for None, `true` or `false`, else the value (floats in full)."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value


def as_text(sweep: Sweep) -> str:
    """A table with a line for each point, those of the Pareto front marked, and what the mark means."""
    header = (*sweep.keys, "GPUs", "tokens/s", "per GPU", "step", "GPU-h/Mtok", "util.", "peak", "gap", "")
    rows = [[*(point.values[key] for key in sweep.keys), *_columns(point)] for point in sweep.points]
    text = table(header, rows, right=range(len(header) - 1))
    if any(point.front for point in sweep.points):
        text += (
            "\n\n* Pareto front: no other point has more tokens/s without more GPU-hours per million tokens"
        )
    return text


def _columns(point: Point) -> list[str]:
    """The columns of a point behind its values."""
    gpus = "-" if point.gpus is None else str(point.gpus)
    f = point.figures
    if f is None:
        found = point.diagnostics[0]
        return [gpus, *["-"] * 7, f"{found.code}: {found.message}"]
    return [
        gpus,
        _rate(f.tokens_per_second),
        _rate(f.tokens_per_second_per_gpu),
        duration(f.step_time_s),
        f"{f.gpu_hours_per_million_tokens:.4g}",
        f"{100 * f.utilization:.1f} %",
        size(f.peak_memory_bytes),
        "-" if f.optimality_gap is None else f"{100 * f.optimality_gap:.1f} %",
        "*" if point.front else "" if f.fits else "does not fit in memory",
    ]


def _rate(tokens: float) -> str:
    """Tokens/s with four digits or all before the point."""
    return f"{tokens:.0f}" if tokens >= 1e4 else f"{tokens:.4g}"
