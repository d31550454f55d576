"""What a sweep found, as a table for people, as CSV and as JSON."""

from ir_schema.base import Record
from ir_schema.envelope import pretty
from rpegc.figures import FIGURES
from rpegc.sweep.points import Point
from rpegc.table import csv_bytes, duration, rate, size, table


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
    header = [*sweep.keys, "gpus", *FIGURES, "front", "plan_id", "code", "message"]
    lines = []
    for point in sweep.points:
        first = point.diagnostics[0] if point.diagnostics else None
        told = (None, None) if first is None else (first.code, first.message)
        figures = [getattr(point.figures, name, None) for name in FIGURES]
        values = [point.values[key] for key in sweep.keys]
        lines.append([*values, point.gpus, *figures, point.front, point.plan_id, *told])
    return csv_bytes(header, lines)


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
        rate(f.tokens_per_second),
        rate(f.tokens_per_second_per_gpu),
        duration(f.step_time_s),
        f"{f.gpu_hours_per_million_tokens:.4g}",
        f"{100 * f.utilization:.1f} %",
        size(f.peak_memory_bytes),
        "-" if f.optimality_gap is None else f"{100 * f.optimality_gap:.1f} %",
        "*" if point.front else "" if f.fits else "does not fit in memory",
    ]
