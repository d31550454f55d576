"""Hardware files from tables: every parameter that a table measures replaces the one of another file.

What is derived from fitted parameters follows them: the rate of whole layers, the time of the kernels between
products, and figures between racks, of which there is no table.
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from calib.fits import Found
from calib.tables import Table, fit_collectives, fit_messages, fit_products, mixed
from ir_schema.base import Tier
from ir_schema.diagnostics import Diagnostic, DiagnosticError, error
from ir_schema.hardware import AlphaBeta, Hardware
from rpegc.calibration.draft import BETWEEN, Change, Draft, TransferField, warning
from rpegc.calibration.operators import fit_iterations, whole_layer_flops
from rpegc.calibration.sanity import contradictions

RACK_LATENCY = 1.5
"""Latency between racks over that between nodes, for nobody measured it."""
REFERENCE_HIDDEN = 4096


class Refit(NamedTuple):
    """A fitted hardware file, what changed, what of another machine it still has (nothing if it is the same
    machine), and what is wrong with it."""

    hardware: Hardware
    changes: list[Change]
    untouched: list[str]
    findings: list[Diagnostic]


def refit(
    base: Hardware, tables: Sequence[Table], *, keep: Sequence[str] = (), name: str | None = None
) -> Refit:
    """`base` with all parameters that `tables` measure, but those in `keep`; as file of another machine if
    it gets another `name`.

    Raises DiagnosticError E941 for measurements that are no positive numbers, or too few.
    """
    draft = Draft(base, keep)
    wrong = [d for table in tables for d in _of_several(table)]
    order = ("products", "collectives", "messages", "iterations")
    for table in sorted(tables, key=lambda t: order.index(t.kind)):
        try:
            _add(draft, table)
        except ValueError as exc:
            raise DiagnosticError([error("E941", f"`{table.name}`: {exc}")]) from exc
    _derive(draft)
    findings = [*wrong, *draft.findings(), *contradictions(draft.hardware, draft.changes)]
    untouched = draft.own() if name not in (None, draft.provenance.name) else []
    # How far whole predictions were off says nothing of other parameters.
    draft.describe(name=name or draft.provenance.name, spread={})
    return Refit(draft.hardware, draft.changes, untouched, findings)


def _of_several(table: Table) -> Iterator[Diagnostic]:
    """W946 for a table whose chosen rows are not of one machine."""
    for column, values in mixed(table):
        some = ", ".join(values[:4]) + (" ..." if len(values) > 4 else "")
        text = f"the chosen rows of `{table.name}` have {len(values)} values of {column} ({some})"
        help = f"choose those of one machine: `--where {shlex.quote(f'{column}={values[0]}')}`"
        yield warning("W946", text, help)


def _add(draft: Draft, table: Table) -> None:
    if table.kind == "products":
        _values(draft, fit_products(table), f"fit to {_told(table)}")
    elif table.kind == "iterations":
        found = fit_iterations(table, draft.hardware)
        _values(draft, found, f"fit to {_told(table)}, all other parameters as they are here")
        draft.set("kernel_seconds", 0.0, None, 0, "launches are in launch_seconds")
    else:
        transfers = fit_collectives(table) if table.kind == "collectives" else fit_messages(table)
        for (field, tier), found in transfers.items():
            _tier(draft, field, tier, found, table)  # type: ignore[arg-type]


def _values(draft: Draft, found: Found, source: str) -> None:
    for name, value in found.values.items():
        draft.set(name, value, found.residual, found.n, source, told=name not in found.untold)


def _tier(draft: Draft, field: TransferField, tier: Tier, found: Found, table: Table) -> None:
    alpha, beta = found.values["alpha"], found.values["beta"]
    text = f"bandwidth of the largest transfers, then the latency fitted: {found.n} of the {_told(table)}"
    link = AlphaBeta(alpha=alpha, beta=beta)
    draft.link(field, tier, link, found.residual, found.n, text, untold=found.untold)
    if tier == "inter":
        rack = AlphaBeta(alpha=RACK_LATENCY * alpha, beta=beta)
        source = f"as between nodes, at {RACK_LATENCY} times the latency: an assumption"
        draft.link(field, "rack", rack, None, 0, source)


def _derive(draft: Draft) -> None:
    """What follows from the parameters that were fitted."""
    fitted = {c.parameter for c in draft.changes}
    h = draft.hardware
    if "memory_bandwidth" in fitted:
        shape = h.nongemm_reference
        moved = BETWEEN * 2 * REFERENCE_HIDDEN * shape.sequences * shape.tokens
        source = (
            f"traffic of two norms and two residual sums, {BETWEEN} values of 2 bytes per token and "
            f"hidden unit at hidden {REFERENCE_HIDDEN}, over the memory bandwidth: an estimate"
        )
        draft.set("nongemm_seconds", moved / h.memory_bandwidth, None, 0, source)
    if fitted & {"product_flops", "launch_seconds"}:
        source = (
            "rate of whole layers, what lies between products included, of a model of hidden size 8192 "
            "over 8 sequences of 1024 tokens: derived from the others with cost model `megatron`"
        )
        draft.set("peak_flops", whole_layer_flops(draft.hardware), None, 0, source)


def _told(table: Table) -> str:
    """What a table is, for a source: its file, rows, and where its rows say that they come from."""
    origins: dict[str, None] = {}
    for row in table.rows:
        origin = (row.get("source") or "").split("#")[0]
        if origin and origin != "same":
            origins[origin] = None
    what = {
        "products": "latencies of matrix products",
        "collectives": "times of collectives",
        "messages": "bandwidths of messages",
        "iterations": "times of training iterations",
    }[table.kind]
    return f"{len(table.rows)} {what} of {table.name}" + (f" ({'; '.join(origins)})" if origins else "")
