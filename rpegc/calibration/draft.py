"""A hardware file in the making: what replaces parameters of another file, and what is wrong with it."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from ir_schema.base import Tier
from ir_schema.diagnostics import Diagnostic
from ir_schema.hardware import AlphaBeta, Dispatch, Hardware, Provenance, Tiers

POOR = 0.25
"""Mean relative error from which on a fit is said to be poor."""

replace = msgspec.structs.replace
TransferField = Literal["collective", "point_to_point", "all_gather", "reduce_scatter"]


class Change(NamedTuple):
    """A parameter that was fitted or derived: its value before and now (alpha and beta of a tier are one
    parameter), the mean relative error over `n` measurements (None: no fit), and where it comes from."""

    parameter: str
    before: float | AlphaBeta | None
    after: float | AlphaBeta
    residual: float | None
    n: int
    source: str


class Draft:
    """`hardware` as it is by now, what changed, and `keep`: what may not."""

    def __init__(self, base: Hardware, keep: Iterable[str] = ()) -> None:
        self.hardware = base if base.provenance else replace(base, provenance=Provenance(name=""))
        self.keep = frozenset(keep)
        self.changes: list[Change] = []

    def set(self, name: str, value: float, residual: float | None, n: int, source: str) -> None:
        """Give a parameter a value, rounded to four digits; a kept one keeps its own."""
        if name in self.keep:
            return
        field, _, kind = name.partition(".")
        value, before = digits(value), getattr(self.hardware, field)
        if kind:
            known = before or Dispatch(decoding=0.0, forward=0.0, training=0.0)
            before = getattr(before, kind) if before else None
            self.hardware = replace(self.hardware, **{field: replace(known, **{kind: value})})
        else:
            self.hardware = replace(self.hardware, **{field: value})
        self._note(Change(name, before, value, residual, n, source))

    def link(
        self, field: TransferField, tier: Tier, link: AlphaBeta, residual: float | None, n: int, source: str
    ) -> None:
        """Give a transfer primitive its latency and inverse bandwidth at a tier."""
        name = f"{field}.{tier}"
        if name in self.keep or field in self.keep:
            return
        link = AlphaBeta(alpha=digits(link.alpha), beta=digits(link.beta))
        tiers: Tiers = getattr(self.hardware, field) or self.hardware.collective
        before = tiers.at(tier) if getattr(self.hardware, field) else None
        self.hardware = replace(self.hardware, **{field: replace(tiers, **{tier: link})})
        self._note(Change(name, before, link, residual, n, source))

    def _note(self, change: Change) -> None:
        p = self.hardware.provenance
        assert p is not None
        sources = p.sources | {change.parameter: change.source}
        residuals = {k: v for k, v in p.residuals.items() if k != change.parameter}
        if change.residual is not None:
            residuals[change.parameter] = round(change.residual, 4)
        self.hardware = replace(self.hardware, provenance=replace(p, sources=sources, residuals=residuals))
        self.changes.append(change)

    def findings(self) -> list[Diagnostic]:
        """W940 for every poor fit, W941 for every value beyond the data sheet."""
        found: list[Diagnostic] = []
        for c in self.changes:
            if c.residual is not None and c.residual > POOR:
                off = f"off by {100 * c.residual:.0f} % on average over {c.n} measurements"
                found.append(warning("W940", f"the fit of `{c.parameter}` is {off}"))
        assert self.hardware.provenance is not None
        for name, most in self.hardware.provenance.limits.items():
            for parameter, value in _rates(self.hardware, name):
                if value > most * (1 + 1e-9):
                    text = f"`{parameter}` is {value:.4g}, the data sheet says {most:.4g}"
                    found.append(warning("W941", text))
        return found


def digits(value: float) -> float:
    """Four digits: more would say what no fit knows."""
    return float(f"{value:.4g}")


def warning(code: str, message: str) -> Diagnostic:
    """A finding that fails under `--strict` only."""
    return Diagnostic(code=code, message=message, severity="warning")


def _rates(hardware: Hardware, limit: str) -> list[tuple[str, float]]:
    """The parameters to which the limit called `limit` applies, as rates."""
    field, _, tier = limit.partition(".")
    if tier:
        tiers: Tiers | None = getattr(hardware, field)
        return [(limit, 1 / tiers.at(tier).beta)] if tiers and tiers.at(tier).beta else []  # type: ignore[arg-type]
    names = ("peak_flops", "product_flops") if field == "peak_flops" else (field,)
    return [(name, getattr(hardware, name)) for name in names]
