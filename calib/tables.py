"""Published tables of measurements, told apart by their columns.

A table is CSV with a header. Which kind it is follows from what it says: products (`m`, `n`, `k`,
`latency_ms`), collectives (`op`, `n_gpus`, `bytes` and `latency_us` or `time_us`), messages (`pair`, `bytes`,
`bw_GBps`) or training iterations (`hidden`, `layers`, `tp`, `pp`, `dp`, `iter_time_ms`). Further columns are
ignored, but rows can be chosen by any.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from calib.fits import Found, products, transfer
from calib.fitting import Array
from ir_schema.base import Tier
from ir_schema.diagnostics import Diagnostic, DiagnosticError, error

Kind = Literal["products", "collectives", "messages", "iterations"]
Row = Mapping[str, str]

COLUMNS: dict[Kind, tuple[str, ...]] = {
    "products": ("m", "n", "k", "latency_ms"),
    "iterations": ("hidden", "layers", "heads", "seq_len", "gbs", "mbs", "tp", "pp", "dp", "iter_time_ms"),
    "collectives": ("op", "n_gpus", "bytes"),
    "messages": ("pair", "bytes", "bw_GBps"),
}
SHORT = 1024
"""Bytes below which a bandwidth that is printed to four digits says nothing about the time."""


class Table(NamedTuple):
    """The chosen rows of a table called `name`."""

    name: str
    kind: Kind
    rows: Sequence[Row]

    def numbers(self, column: str) -> Array:
        """A column of positive numbers. Raises DiagnosticError E941."""
        found = []
        for i, row in enumerate(self.rows):
            try:
                value = float(row.get(column, ""))
            except (TypeError, ValueError):
                value = float("nan")
            if not 0 < value < float("inf"):
                said = f"chosen row {i + 1} has {column} = {row.get(column)!r}"
                raise DiagnosticError([error("E941", f"`{self.name}`: {said}", help="a positive number")])
            found.append(value)
        return np.array(found)


def read_table(data: bytes, name: str, where: Mapping[str, Sequence[str]]) -> Table:
    """The table in `data` with the rows whose columns have one of the values in `where`; columns that it does
    not have choose nothing.

    Raises DiagnosticError E940 (no table of a known kind) or E941 (a row is cut off or too long, or no rows
    are left).
    """
    try:
        # Spreadsheets begin files with a byte order mark.
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""))
        header = [column.strip() for column in reader.fieldnames or ()]
        reader.fieldnames = header
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as exc:
        help = "text in UTF-8, values separated by commas"
        raise DiagnosticError([error("E940", f"`{name}` is no CSV: {exc}", help=help)]) from exc
    kind = next((k for k, columns in COLUMNS.items() if set(columns) <= set(header)), None)
    if kind is None:
        raise DiagnosticError([_unknown(name, header)])
    for i, row in enumerate(rows, 1):
        if None in row or None in row.values():
            fewer = "more" if None in row else "fewer"
            said = f"row {i} of `{name}` has {fewer} values than the header names"
            help = "values are separated by commas, decimals by points"
            raise DiagnosticError([error("E941", said, help=help)])
    twice = next((c for c in COLUMNS[kind] if header.count(c) > 1), None)
    if twice is not None:
        raise DiagnosticError([error("E940", f"`{name}` has two columns `{twice}`", help="keep one")])
    chosen = [r for r in rows if all(r[c] in values for c, values in where.items() if c in header)]
    if not chosen:
        asked = {c: v for c, v in where.items() if c in header} if rows else {}
        told = ", ".join(f"{c}={','.join(v)}" for c, v in asked.items())
        help = "; ".join(f"{c} is {_values(rows, c)}" for c in asked)
        said = f"no row of `{name}` has {told}" if told else f"`{name}` is empty"
        raise DiagnosticError([error("E941", said, help=help)])
    return Table(name, kind, chosen)


def _unknown(name: str, header: Sequence[str]) -> Diagnostic:
    """E940 for a header that names no measurements, with what it lacks of the closest kind."""
    there = {column.lower() for column in header}
    kind = max(COLUMNS, key=lambda k: len(there & {c.lower() for c in COLUMNS[k]}) / len(COLUMNS[k]))
    lacking = [c for c in COLUMNS[kind] if c not in header]
    if len(lacking) == len(COLUMNS[kind]):
        known = "; ".join(f"{k}: {', '.join(c)}" for k, c in COLUMNS.items())
        help = f"the first line names columns, separated by commas: {known}"
    else:
        help = f"to be a table of {kind} it lacks {', '.join(lacking)}"
    return error("E940", f"`{name}` has no columns that can be fitted", help=help)


ONE_MACHINE = ("system", "device", "gpu", "gemm_dtype", "dtype", "network", "config")
"""Columns that say of what a row is: rows with several values of one are not of one machine."""


def mixed(table: Table) -> Iterator[tuple[str, list[str]]]:
    """Columns of `ONE_MACHINE` of which the chosen rows have several values, and these."""
    for column in ONE_MACHINE:
        values = list(dict.fromkeys(row[column] for row in table.rows if row.get(column)))
        if len(values) > 1:
            yield column, values


_BITS = {"float": 32, "half": 16, "double": 64}


def _width(table: Table, row: Row) -> float:
    """Bytes of an element: as column `gemm_dtype` says (`bfloat16`, `half`, `fp8_e4m3`), else 2. Raises
    DiagnosticError E941."""
    dtype = (row.get("gemm_dtype") or "bfloat16").lower()
    told = re.search(r"(?:float|fp|bf|f|int)(64|32|16|8|4)(?!\d)", dtype)
    bits = int(told[1]) if told else _BITS.get(dtype)
    if bits is None:
        said = f"`{table.name}` has gemm_dtype = {row['gemm_dtype']!r}"
        raise DiagnosticError([error("E941", said, help="as `bfloat16`, `float32`, `half`, `fp8`")])
    return bits / 8


def fit_products(table: Table) -> Found:
    """The parameters of matrix products of elements of two bytes, or of as many as column `gemm_dtype`
    says."""
    width = np.array([_width(table, row) for row in table.rows])
    m, n, k = (table.numbers(c) for c in ("m", "n", "k"))
    return products(m, n, k, width, table.numbers("latency_ms") * 1e-3)


PRIMITIVES = {"all_reduce": "collective", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter"}


def fit_collectives(table: Table) -> dict[tuple[str, Tier], Found]:
    """alpha and beta by field of the hardware file and tier: several `n_nodes` are between nodes.

    Raises ValueError, or DiagnosticError E941, for values that cannot be, and without any row that counts.
    """
    found: dict[tuple[str, Tier], Found] = {}
    table = _with_nodes(table)
    for op, field in PRIMITIVES.items():
        for tier in ("intra", "inter"):
            rows = [
                r for r in table.rows if r["op"] == op and (float(r["n_nodes"]) > 1) == (tier == "inter")
            ]  # fmt: skip
            if not rows:
                continue
            part = table._replace(rows=rows)
            p, size = part.numbers("n_gpus"), part.numbers("bytes")
            if not (p > 1).all():
                raise ValueError(f"a collective among {p.min():g} GPUs")
            column = next((c for c in ("latency_us", "time_us") if c in rows[0]), None)
            if column is None:
                raise ValueError("there is neither column `latency_us` nor `time_us`")
            times = part.numbers(column) * 1e-6
            twice = 2.0 if op == "all_reduce" else 1.0
            found[field, tier] = transfer(p, twice * (p - 1), twice * (p - 1) / p * size, times)
    if not found:
        raise ValueError(f"column `op` says {_values(table.rows, 'op')}, and none of {', '.join(PRIMITIVES)}")
    return found


def _with_nodes(table: Table) -> Table:
    """The table with a number of nodes in every row: 1 where it says nothing."""
    rows = [{**row, "n_nodes": row.get("n_nodes") or "1"} for row in table.rows]
    told = table._replace(rows=rows)
    told.numbers("n_nodes")
    return told


def _values(rows: Sequence[Row], column: str) -> str:
    """Some of the values of a column, in words."""
    values = list(dict.fromkeys(row[column] for row in rows))
    return ", ".join(values[:8]) + (" ..." if len(values) > 8 else "")


def fit_messages(table: Table) -> dict[tuple[str, Tier], Found]:
    """alpha and beta of messages between GPUs, inside a node and between nodes (column `pair`).

    Raises ValueError, or DiagnosticError E941, for values that cannot be, and without any row that counts.
    """
    found: dict[tuple[str, Tier], Found] = {}
    long = table.numbers("bytes") >= SHORT
    tiers: dict[Tier, str] = {"intra": "intra-node", "inter": "inter-node"}
    for tier, word in tiers.items():
        rows = [
            r for r, counts in zip(table.rows, long, strict=True)
            if counts and word in r["pair"] and r["pair"].startswith("GPU")
        ]  # fmt: skip
        if rows:
            part = table._replace(rows=rows)
            size = part.numbers("bytes")
            ones = np.ones(len(size))
            seconds = size / (part.numbers("bw_GBps") * 1e9)
            found["point_to_point", tier] = transfer(ones, ones, size, seconds)
    if not found:
        raise ValueError(
            f"column `pair` says {_values(table.rows, 'pair')}; what counts begins with GPU, says intra-node "
            f"or inter-node, and has {SHORT} bytes or more"
        )
    return found
