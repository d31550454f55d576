"""Published tables of measurements, told apart by their columns.

A table is CSV with a header. Which kind it is follows from what it says: products (`m`, `n`, `k`,
`latency_ms`), collectives (`op`, `n_gpus`, `bytes` and `latency_us` or `time_us`), messages (`pair`, `bytes`,
`bw_GBps`) or training iterations (`hidden`, `layers`, `tp`, `pp`, `dp`, `iter_time_ms`). Further columns are
ignored, but rows can be chosen by any.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from calib.fits import Found, products, transfer
from calib.fitting import Array
from ir_schema.base import Tier
from ir_schema.diagnostics import DiagnosticError, error

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

    Raises DiagnosticError E940 (no table of a known kind) or E941 (a row is cut off, or no rows are left).
    """
    try:
        reader = csv.DictReader(io.StringIO(data.decode()))
        header = reader.fieldnames or ()
        rows = [row for row in reader if None not in row]
    except (UnicodeDecodeError, csv.Error) as exc:
        raise DiagnosticError([error("E940", f"`{name}` is no CSV: {exc}")]) from exc
    kind = next((k for k, columns in COLUMNS.items() if set(columns) <= set(header)), None)
    if kind is None:
        known = "; ".join(f"{k}: {', '.join(c)}" for k, c in COLUMNS.items())
        raise DiagnosticError([error("E940", f"`{name}` has no columns that can be fitted", help=known)])
    cut = next((i for i, row in enumerate(rows, 1) if None in row.values()), None)
    if cut is not None:
        raise DiagnosticError(
            [error("E941", f"row {cut} of `{name}` has fewer values than the header names")]
        )
    chosen = [r for r in rows if all(r[c] in values for c, values in where.items() if c in header)]
    if not chosen:
        told = ", ".join(f"{c}={','.join(v)}" for c, v in where.items() if c in header)
        raise DiagnosticError(
            [error("E941", f"no row of `{name}` has {told}" if told else f"`{name}` is empty")]
        )
    return Table(name, kind, chosen)


def fit_products(table: Table) -> Found:
    """The parameters of matrix products of elements of two bytes, or of four where column `gemm_dtype` says
    so."""
    width = 4 if table.rows[0].get("gemm_dtype") in ("float32", "float") else 2
    m, n, k = (table.numbers(c) for c in ("m", "n", "k"))
    return products(m, n, k, width, table.numbers("latency_ms") * 1e-3)


PRIMITIVES = {"all_reduce": "collective", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter"}


def fit_collectives(table: Table) -> dict[tuple[str, Tier], Found]:
    """alpha and beta by field of the hardware file and tier: several `n_nodes` are between nodes.

    Raises ValueError, or DiagnosticError E941, for values that cannot be.
    """
    found: dict[tuple[str, Tier], Found] = {}
    for op, field in PRIMITIVES.items():
        for tier in ("intra", "inter"):
            rows = [
                r for r in table.rows
                if r["op"] == op and (int(r.get("n_nodes") or 1) > 1) == (tier == "inter")
            ]  # fmt: skip
            if not rows:
                continue
            part = table._replace(rows=rows)
            p, size = part.numbers("n_gpus"), part.numbers("bytes")
            if not (p > 1).all():
                raise ValueError(f"a collective among {p.min():g} GPUs")
            times = part.numbers("latency_us" if "latency_us" in rows[0] else "time_us") * 1e-6
            twice = 2.0 if op == "all_reduce" else 1.0
            found[field, tier] = transfer(p, twice * (p - 1), twice * (p - 1) / p * size, times)
    return found


def fit_messages(table: Table) -> dict[tuple[str, Tier], Found]:
    """alpha and beta of messages between GPUs, inside a node and between nodes (column `pair`)."""
    found: dict[tuple[str, Tier], Found] = {}
    for tier, word in (("intra", "intra-node"), ("inter", "inter-node")):
        rows = [r for r in table.rows if word in r["pair"] and r["pair"].startswith("GPU")]
        part = table._replace(rows=[r for r in rows if float(r["bytes"] or 0) >= SHORT])
        if part.rows:
            size = part.numbers("bytes")
            ones = np.ones(len(size))
            found["point_to_point", tier] = transfer(ones, ones, size, size / (part.numbers("bw_GBps") * 1e9))  # type: ignore[index]
    return found
