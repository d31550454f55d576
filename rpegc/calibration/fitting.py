"""Hardware files from tables: every parameter that a table measures replaces the one of another file.

What is derived from fitted parameters follows them: the rate of whole layers, the time of the kernels between
products, and figures between racks, of which there is no table.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from calib.fits import Found
from calib.tables import Table, fit_collectives, fit_messages, fit_products
from ir_schema.base import Tier
from ir_schema.diagnostics import Diagnostic, DiagnosticError, error
from ir_schema.hardware import AlphaBeta, Hardware, Provenance, Tiers
from rpegc.calibration.operators import fit_iterations, whole_layer_flops

POOR = 0.25
"""Mean relative error from which on a fit is said to be poor."""
RACK_LATENCY = 1.5
"""Latency between racks over that between nodes, for nobody measured it."""
REFERENCE_HIDDEN = 4096
BETWEEN = 10
"""Hidden values that a token moves in the kernels between a layer's products (`nongemm_seconds`)."""

replace = msgspec.structs.replace
TransferField = Literal["collective", "point_to_point", "all_gather", "reduce_scatter"]


class Change(NamedTuple):
    """A parameter that was fitted or derived: its value before and now (alpha and beta of a tier are one
    parameter), the mean relative error over `n` measurements (None: derived), and where it comes from."""

    parameter: str
    before: float | AlphaBeta | None
    after: float | AlphaBeta
    residual: float | None
    n: int
    source: str


class Refit(NamedTuple):
    """A fitted hardware file, what changed, and what is wrong with it."""

    hardware: Hardware
    changes: list[Change]
    findings: list[Diagnostic]


def refit(base: Hardware, tables: Sequence[Table], *, keep: Sequence[str] = ()) -> Refit:
    """`base` with all parameters that `tables` measure, but those in `keep`.

    Raises DiagnosticError E941 for measurements that are no positive numbers, or too few.
    """
    work = _Work(base, tuple(keep))
    order = ("products", "collectives", "messages", "iterations")
    for table in sorted(tables, key=lambda t: order.index(t.kind)):
        try:
            work.add(table)
        except ValueError as exc:
            raise DiagnosticError([error("E941", f"`{table.name}`: {exc}")]) from exc
    work.derive()
    return Refit(work.hardware, work.changes, _findings(work.hardware, work.changes))


class _Work:
    def __init__(self, base: Hardware, keep: tuple[str, ...]) -> None:
        self.hardware = base if base.provenance else replace(base, provenance=Provenance(name=""))
        self.keep = keep
        self.changes: list[Change] = []

    def add(self, table: Table) -> None:
        if table.kind == "products":
            self._values(fit_products(table), f"fit to {_told(table)}")
        elif table.kind == "iterations":
            found = fit_iterations(table, self.hardware)
            self._values(found, f"fit to {_told(table)}, all other parameters as they are here")
            self._set("kernel_seconds", 0.0, None, 0, "launches are in launch_seconds")
        else:
            transfers = fit_collectives(table) if table.kind == "collectives" else fit_messages(table)
            for (field, tier), found in transfers.items():
                self._tier(field, tier, found, table)  # type: ignore[arg-type]

    def _values(self, found: Found, source: str) -> None:
        for name, value in found.values.items():
            self._set(name, value, found.residual, found.n, source)

    def _set(self, name: str, value: float, residual: float | None, n: int, source: str) -> None:
        if name not in self.keep:
            before = getattr(self.hardware, name)
            self.hardware = replace(self.hardware, **{name: _digits(value)})
            self._note(Change(name, before, _digits(value), residual, n, source))

    def _tier(self, field: TransferField, tier: Tier, found: Found, table: Table) -> None:
        alpha, beta = found.values["alpha"], found.values["beta"]
        self._link(field, tier, AlphaBeta(alpha=_digits(alpha), beta=_digits(beta)), found, _told(table))
        if tier == "inter":
            rack = AlphaBeta(alpha=_digits(RACK_LATENCY * alpha), beta=_digits(beta))
            source = f"as between nodes, at {RACK_LATENCY} times the latency: an assumption"
            self._link(field, "rack", rack, None, source)

    def _link(
        self, field: TransferField, tier: Tier, link: AlphaBeta, found: Found | None, source: str
    ) -> None:
        name = f"{field}.{tier}"
        if name in self.keep or field in self.keep:
            return
        tiers: Tiers = getattr(self.hardware, field) or self.hardware.collective
        before = tiers.at(tier) if getattr(self.hardware, field) else None
        self.hardware = replace(self.hardware, **{field: replace(tiers, **{tier: link})})
        if found is None:
            self._note(Change(name, before, link, None, 0, source))
        else:
            text = f"bandwidth of the largest transfers, then the latency fitted: {found.n} of the {source}"
            self._note(Change(name, before, link, found.residual, found.n, text))

    def _note(self, change: Change) -> None:
        p = self.hardware.provenance
        assert p is not None
        sources = p.sources | {change.parameter: change.source}
        residuals = {k: v for k, v in p.residuals.items() if k != change.parameter}
        if change.residual is not None:
            residuals[change.parameter] = round(change.residual, 4)
        self.hardware = replace(self.hardware, provenance=replace(p, sources=sources, residuals=residuals))
        self.changes.append(change)

    def derive(self) -> None:
        """What follows from the parameters that were fitted."""
        fitted = {c.parameter for c in self.changes}
        h = self.hardware
        if "memory_bandwidth" in fitted:
            shape = h.nongemm_reference
            moved = BETWEEN * 2 * REFERENCE_HIDDEN * shape.sequences * shape.tokens
            source = (
                f"traffic of two norms and two residual sums, {BETWEEN} values of 2 bytes per token and "
                f"hidden unit at hidden {REFERENCE_HIDDEN}, over the memory bandwidth: an estimate"
            )
            self._set("nongemm_seconds", moved / h.memory_bandwidth, None, 0, source)
        if fitted & {"product_flops", "launch_seconds"}:
            source = (
                "rate of whole layers, what lies between products included, of a model of hidden size 8192 "
                "over 8 sequences of 1024 tokens: derived from the others with cost model `megatron`"
            )
            self._set("peak_flops", whole_layer_flops(self.hardware), None, 0, source)


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


def _digits(value: float) -> float:
    """Four digits: more would say what no fit knows."""
    return float(f"{value:.4g}")


def _findings(hardware: Hardware, changes: Sequence[Change]) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    for c in changes:
        if c.residual is not None and c.residual > POOR:
            off = f"off by {100 * c.residual:.0f} % on average over {c.n} measurements"
            found.append(_warning("W940", f"the fit of `{c.parameter}` is {off}"))
    assert hardware.provenance is not None
    for name, most in hardware.provenance.limits.items():
        for parameter, value in _rates(hardware, name):
            if value > most * (1 + 1e-9):
                found.append(
                    _warning("W941", f"`{parameter}` is {value:.4g}, the data sheet says {most:.4g}")
                )
    return found


def _rates(hardware: Hardware, limit: str) -> list[tuple[str, float]]:
    """The parameters to which the limit called `limit` applies, as rates."""
    field, _, tier = limit.partition(".")
    if tier:
        tiers: Tiers | None = getattr(hardware, field)
        return [(limit, 1 / tiers.at(tier).beta)] if tiers and tiers.at(tier).beta else []  # type: ignore[arg-type]
    names = ("peak_flops", "product_flops") if field == "peak_flops" else (field,)
    return [(name, getattr(hardware, name)) for name in names]


def _warning(code: str, message: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, severity="warning")
