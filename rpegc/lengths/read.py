"""Response lengths from a file of rows: JSON lines, CSV with a header, or Parquet.

A length is a whole number of tokens, 0 or more; `512.0` and, in CSV, digits as text count as one. Anything
else is reported with its line (text) or row (Parquet), never skipped: a fit to part of the data misleads.
"""

import csv
import io
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ir_schema.diagnostics import DiagnosticError, error
from rpegc.failure import suggestion, usage_error
from rpegc.stagefiles import read_bytes

USUAL_FIELDS = (
    "response_length",
    "response_tokens",
    "completion_length",
    "completion_tokens",
    "output_length",
    "output_tokens",
    "num_tokens",
    "length",
)

MAX_LENGTH = 10**9

Row = tuple[str, object]
"""Where a row stands (`line 12`), and what it holds: a number, or a dict of fields."""


def read_lengths(name: str, field: str | None = None) -> tuple[str | None, NDArray[np.float64]]:
    """The lengths in file `name` [tokens], in its order, and the field that they were taken from.

    Without `field` the one of `USUAL_FIELDS`, else the only numeric one is taken; JSON lines may be bare
    numbers, which have none. Raises UsageFailure E911 (unreadable), E936 (not an accepted format, or an
    extra is missing); DiagnosticError E340 (malformed) and E341 (which field?).
    """
    rows = _rows(name)
    first = next(rows, None)
    if first is None:
        raise DiagnosticError([error("E340", f"`{name}` holds no rows")])
    chosen = _field(first[1], field) if isinstance(first[1], dict) or field is not None else None
    lengths = [_length(where, row, chosen) for where, row in itertools.chain([first], rows)]
    return chosen, np.array(lengths, dtype=np.float64)


def _rows(name: str) -> Iterator[Row]:
    readers = {".jsonl": _json_rows, ".csv": _csv_rows, ".parquet": _parquet_rows}
    reader = readers.get(Path(name).suffix.lower())
    if reader is None:
        raise usage_error(
            "E936", f"cannot tell what `{name}` holds", help="its name ends in .jsonl, .csv or .parquet"
        )
    return reader(read_bytes(name))


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise DiagnosticError([error("E340", f"line {line}: not UTF-8 text")]) from exc


def _json_rows(data: bytes) -> Iterator[Row]:
    for number, line in enumerate(_text(data).split("\n"), start=1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as exc:
                help = "every line is one JSON object or one number"
                raise DiagnosticError([error("E340", f"line {number}: not JSON: {exc}", help=help)]) from exc


def _csv_rows(data: bytes) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)  # a response's text may stand beside its length
    reader = csv.DictReader(io.StringIO(_text(data), newline=""), strict=True)
    try:
        unnamed = [name for name in reader.fieldnames or () if _is_number(_number(name))]
        if unnamed:
            message = f"line 1: `{unnamed[0]}` is no name of a column"
            raise DiagnosticError(
                [error("E340", message, help="add a header line, such as `response_length`")]
            )
        for row in reader:
            where = f"line {reader.line_num}"
            if None in row or None in row.values():
                expected = len(reader.fieldnames or ())
                raise DiagnosticError([error("E340", f"{where}: not the {expected} columns of the header")])
            yield where, {k: _number(v) for k, v in row.items()}
    except csv.Error as exc:
        raise DiagnosticError([error("E340", f"line {reader.reader.line_num}: {exc}")]) from exc


def _number(text: str) -> object:
    """The number that a CSV cell spells, or the cell."""
    try:
        return float(text)
    except ValueError:
        return text


def _parquet_rows(data: bytes) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, BufferReader, parquet
    except ImportError as exc:
        help = "pip install 'rpeg[parquet]', or export the column as CSV"
        raise usage_error("E936", "Parquet files need the extra `parquet` (pyarrow)", help=help) from exc
    number = itertools.count(1)
    try:
        for batch in parquet.ParquetFile(BufferReader(data)).iter_batches():
            yield from ((f"row {next(number)}", row) for row in batch.to_pylist())
    except (ArrowException, OSError) as exc:
        raise DiagnosticError([error("E340", f"not a Parquet file: {exc}")]) from exc


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _field(first: object, field: str | None) -> str:
    """The field that holds the lengths, judged by the first row. Raises DiagnosticError E341."""
    if not isinstance(first, dict):
        raise DiagnosticError([error("E341", f"the rows are bare values: there is no field `{field}`")])
    numeric = [k for k, v in first.items() if _is_number(v)]
    fields = ", ".join(f"`{k}`" if k in numeric else f"`{k}` (no number)" for k in first) or "none"
    if field is not None:
        if field not in first:
            raise DiagnosticError(
                [
                    error(
                        "E341",
                        f"no field `{field}`",
                        help=suggestion(field, first),
                        notes=[f"fields: {fields}"],
                    )
                ]
            )
        return field
    usual = [k for k in USUAL_FIELDS if k in numeric]
    if usual or len(numeric) == 1:
        return str([*usual, *numeric][0])
    help = "name one with `--field`"
    raise DiagnosticError(
        [error("E341", "which field holds the lengths?", help=help, notes=[f"fields: {fields}"])]
    )


def _length(where: str, row: object, field: str | None) -> float:
    if field is not None and not (isinstance(row, dict) and field in row):
        raise DiagnosticError([error("E340", f"{where}: no field `{field}`")])
    value = row[field] if isinstance(row, dict) else row
    if isinstance(value, int | float) and _is_number(value) and 0 <= value <= MAX_LENGTH and value % 1 == 0:
        return float(value)
    shown = json.dumps(value) if isinstance(value, str) else str(value)
    shown = shown if len(shown) <= 40 else f"{shown[:39]}…"
    what = f"`{field}` is {shown}" if field else shown
    help = "a length is a whole number of tokens, 0 or more"
    raise DiagnosticError([error("E340", f"{where}: {what}, not a length", help=help)])
