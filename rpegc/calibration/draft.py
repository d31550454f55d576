"""A hardware file in the making: what replaces parameters of another file, and what is wrong with it."""

from collections import defaultdict
from collections.abc import Container, Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from calib.hardware import parameters
from ir_schema.base import Tier
from ir_schema.diagnostics import Diagnostic
from ir_schema.hardware import AlphaBeta, Dispatch, Hardware, Provenance, Tiers

POOR = 0.25
"""Mean relative error from which on a fit is said to be poor."""
FAR = 20.0
"""A measured rate that is so many times below the data sheet's is not of that machine."""

replace = msgspec.structs.replace
TransferField = Literal["collective", "point_to_point", "all_gather", "reduce_scatter"]


BETWEEN = 10
"""Hidden values that a token moves in the kernels between a layer's products (`nongemm_seconds`)."""
_MORE = {
    "product_flops": "larger products",
    "gamma_M": "products of other numbers of rows, from one up",
    "gamma_K": "products of other widths, narrow ones among them",
    "memory_bandwidth": "products of few rows and large widths",
    "startup_seconds": "smaller products",
    "launch_seconds": "iterations of small models and microbatches",
    "score_bytes": "operators of long sequences",
    "contention": "operators of one worker and of several",
    "message_work": "operators of several workers with much to exchange",
    "wakeup_seconds": "operators of several workers with little to exchange",
    "alpha": "shorter transfers",
    "beta": "longer transfers",
}
"""What would tell a parameter."""


class Change(NamedTuple):
    """A parameter that was fitted or derived: its value before and now (alpha and beta of a tier are one
    parameter), the mean relative error over `n` measurements (None: no fit), where it comes from, and what
    of it these do not tell: the parameter itself, or `alpha`, `beta`."""

    parameter: str
    before: float | AlphaBeta | None
    after: float | AlphaBeta
    residual: float | None
    n: int
    source: str
    untold: tuple[str, ...] = ()


class Draft:
    """`hardware` as it is by now, what changed, and `keep`: what may not."""

    def __init__(self, base: Hardware, keep: Iterable[str] = ()) -> None:
        self.base = base
        self.hardware = base if base.provenance else replace(base, provenance=Provenance(name=""))
        self.keep = frozenset(keep)
        self.changes: list[Change] = []

    @property
    def provenance(self) -> Provenance:
        """Where the figures come from by now."""
        assert self.hardware.provenance is not None
        return self.hardware.provenance

    def describe(self, **fields: Any) -> None:
        """Give fields of the provenance other values."""
        self.hardware = replace(self.hardware, provenance=replace(self.provenance, **fields))

    def set(
        self, name: str, value: float, residual: float | None, n: int, source: str, *, told: bool = True
    ) -> None:
        """Give a parameter a value, rounded to four digits; a kept one keeps its own. `told`: whether the
        measurements tell it."""
        if name in self.keep:
            return
        field, _, kind = name.partition(".")
        value, before = digits(value), getattr(self.base, field)
        if kind:
            before = getattr(before, kind) if before else None
            known = getattr(self.hardware, field) or Dispatch(decoding=0.0, forward=0.0, training=0.0)
            self.hardware = replace(self.hardware, **{field: replace(known, **{kind: value})})
        else:
            self.hardware = replace(self.hardware, **{field: value})
        self._note(Change(name, before, value, residual, n, source, () if told else (name,)))

    def link(
        self, field: TransferField, tier: Tier, link: AlphaBeta, residual: float | None, n: int, source: str,
        *, untold: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Give a transfer primitive its latency and inverse bandwidth at a tier; `untold` are those of the
        two that the measurements do not tell."""
        name = f"{field}.{tier}"
        if name in self.keep or field in self.keep:
            return
        link = AlphaBeta(alpha=digits(link.alpha), beta=digits(link.beta))
        tiers: Tiers = getattr(self.hardware, field) or self.hardware.collective
        known: Tiers | None = getattr(self.base, field)
        before = known.at(tier) if known else None
        self.hardware = replace(self.hardware, **{field: replace(tiers, **{tier: link})})
        self._note(Change(name, before, link, residual, n, source, untold))

    def _note(self, change: Change) -> None:
        p, source = self.provenance, change.source
        if change.untold:
            what = "it" if change.untold == (change.parameter,) else " and ".join(change.untold)
            source += f", which do not tell {what}"
        sources = p.sources | {change.parameter: source}
        residuals = {k: v for k, v in p.residuals.items() if k != change.parameter}
        if change.residual is not None:
            residuals[change.parameter] = round(change.residual, 4)
        self.describe(sources=sources, residuals=residuals)
        self.changes.append(change)

    def own(self) -> list[str]:
        """Make it the file of another machine than the base's: what was not fitted is said to be the base's,
        and what that says of errors is dropped. The parameters of which that is so."""
        p, lent = self.provenance, self.base.provenance
        measured = {c.parameter for c in self.changes}
        given = [n for n, value in parameters(self.hardware) if value is not None]
        untouched = [n for n in given if n not in measured and not n.startswith("nongemm_reference")]
        whose = lent.name if lent and lent.name else "the base"
        sources = dict(p.sources)
        for parameter in untouched:
            sources[parameter] = f"not measured, that of {whose}: {sources.get(parameter, 'unknown')}"
        residuals = {k: v for k, v in p.residuals.items() if k in measured}
        self.describe(sources=sources, residuals=residuals)
        return untouched

    def findings(self) -> list[Diagnostic]:
        """W940 for every poor fit, W945 for what a fit does not tell, W941 for every value beyond the data
        sheet, W942 for one that it promises to be far better."""
        fits: dict[tuple[object, ...], list[Change]] = defaultdict(list)
        for c in self.changes:
            if c.residual is not None:
                fits[c.residual, c.n, c.source].append(c)
        found = [d for parts in fits.values() for d in _faults(parts)]
        p, lent = self.provenance, self.base.provenance
        whose = f" of {lent.name}" if lent and lent.name else ""
        measured = {c.parameter for c in self.changes}
        for name, most in p.limits.items():
            for parameter, value in _rates(self.hardware, name, measured):
                if value > most * (1 + 1e-9):
                    text = f"`{parameter}` is {value:.4g}, the data sheet{whose} says {most:.4g}"
                    help = "look at units and rows; of another machine, correct `provenance.limits`"
                    found.append(warning("W941", text, help))
                elif value < most / FAR and parameter in measured:
                    text = f"`{parameter}` is {value:.4g}, the data sheet{whose} promises {most:.4g}"
                    help = "look at units; was this machine measured, and was it idle?"
                    found.append(warning("W942", text, help))
        return found


def _faults(changes: list[Change]) -> Iterable[Diagnostic]:
    """What is wrong with one fit, which gave all `changes`."""
    first = changes[0]
    if first.residual is not None and first.residual > POOR:
        off = f"off by {percent(first.residual)} on average over {first.n} measurements"
        names = ", ".join(f"`{c.parameter}`" for c in changes)
        help = "the measurements contradict each other or the formula: look at them, or measure again"
        yield warning("W940", f"the fit of {names} is {off}", help)
    untold, more = [], []
    for c in changes:
        for part in c.untold:
            untold.append(f"`{part}`" if part == c.parameter else f"{part} of `{c.parameter}`")
            more.append(_MORE.get(part, "operators of other sizes"))
    if untold:
        text = f"the {first.n} measurements do not tell {', '.join(untold)}: other values fit as well"
        yield warning("W945", text, f"also measure {'; '.join(dict.fromkeys(more))}")


def judged(findings: Iterable[Diagnostic], *, strict: bool) -> list[Diagnostic]:
    """The findings, as errors where they are to fail: those are told under `-q` too."""
    return [replace(d, severity="error") if strict else d for d in findings]


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{100 * share:.0f} %" if share < 1e3 else f"{100 * share:.1e} %"


def digits(value: float) -> float:
    """Four digits: more would say what no fit knows."""
    return float(f"{value:.4g}")


def warning(code: str, message: str, help: str = "") -> Diagnostic:
    """A finding that fails under `--strict` only."""
    return Diagnostic(code=code, message=message, severity="warning", help=help)


def _rates(hardware: Hardware, limit: str, measured: Container[str]) -> list[tuple[str, float]]:
    """The parameters to which the limit called `limit` applies, as rates.

    In a node what limits messages limits measured collectives too: each GPU sends all bytes of a ring over
    its own links. Where a switch reduces, an all-reduce counts twice the bytes that it sends.
    """
    field, _, tier = limit.partition(".")
    if not tier:
        names = ("peak_flops", "product_flops") if field == "peak_flops" else (field,)
        return [(name, getattr(hardware, name)) for name in names]
    times = {field: 1.0}
    if limit == "point_to_point.intra":
        rings = {"collective": 0.5, "all_gather": 1.0, "reduce_scatter": 1.0}
        times |= {ring: n for ring, n in rings.items() if f"{ring}.{tier}" in measured}
    found = []
    for name, share in times.items():
        tiers: Tiers | None = getattr(hardware, name)
        if tiers and (beta := tiers.at(tier).beta):  # type: ignore[arg-type]
            found.append((f"{name}.{tier}", share / beta))
    return found
