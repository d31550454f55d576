"""Hardware files, and what changes in them, as people read them."""

from collections.abc import Sequence
from typing import NamedTuple

from calib.hardware import Value, parameters
from ir_schema.hardware import AlphaBeta, Hardware
from rpegc.calibration.draft import Change
from rpegc.failure import suggestion, usage_error
from rpegc.table import duration, size, table

UNITS = {
    "peak_flops": "flops",
    "product_flops": "flops",
    "memory_bandwidth": "bytes/s",
    "memory_bytes": "bytes",
    "nongemm_seconds": "seconds",
    "kernel_seconds": "seconds",
    "startup_seconds": "seconds",
    "launch_seconds": "seconds",
    "wakeup_seconds": "seconds",
    "dispatch.decoding": "seconds",
    "dispatch.forward": "seconds",
    "dispatch.training": "seconds",
}


class Difference(NamedTuple):
    """A parameter that two files give different values; None where a file does not give it."""

    parameter: str
    before: Value
    after: Value


def check_kept(hardware: Hardware, keep: Sequence[str]) -> None:
    """Raise UsageFailure E932 if one of the parameters to be kept does not exist."""
    known = [name for name, _ in parameters(hardware)]
    for parameter in keep:
        if parameter not in known:
            help = suggestion(parameter, known)
            raise usage_error("E932", f"`--keep {parameter}`: there is no such parameter", help=help)


def differences(before: Hardware, after: Hardware) -> list[Difference]:
    """The parameters that are not the same."""
    both = zip(parameters(before), parameters(after), strict=True)
    return [Difference(name, a, b) for (name, a), (_, b) in both if a != b]


def show(hardware: Hardware) -> str:
    """All parameters with their residuals, then where each comes from."""
    p = hardware.provenance
    sources, residuals = (p.sources, p.residuals) if p else ({}, {})
    rows = []
    for name, value in parameters(hardware):
        if value is not None:
            off = residuals.get(name)
            rows.append((name, told(name, value), "" if off is None else f"{100 * off:.1f} %"))
    lines = []
    if p is not None:
        kind = "nominal: nobody has calibrated the machine at hand" if p.nominal else "calibrated"
        lines += [f"{p.name} ({kind})", ""]
    lines.append(table(("parameter", "value", "residual"), rows, right=(2,)))
    for source, names in _by_source(sources).items():
        lines += ["", ", ".join(names), f"    {source}"]
    if p is not None and p.notes:
        lines += ["", p.notes]
    return "\n".join(lines)


def _by_source(sources: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, source in sources.items():
        found.setdefault(source, []).append(name)
    return found


def show_differences(found: Sequence[Difference]) -> str:
    """What differs, with the factor between the values."""
    if not found:
        return "no parameter differs"
    rows = [(d.parameter, told(d.parameter, d.before), told(d.parameter, d.after), _factor(d)) for d in found]
    return table(("parameter", "before", "after", "factor"), rows, right=(3,))


def show_changes(changes: Sequence[Change]) -> str:
    """What a fit found."""
    rows = [
        (
            c.parameter,
            told(c.parameter, c.before),
            told(c.parameter, c.after),
            "derived" if c.residual is None else f"{100 * c.residual:.1f} %",
            c.n or "",
        )
        for c in changes
    ]
    return table(("parameter", "before", "now", "residual", "n"), rows, right=(3, 4))


def told(parameter: str, value: Value) -> str:
    """A value with its unit."""
    if value is None:
        return "-"
    if isinstance(value, AlphaBeta):
        rate = f"{1e-9 / value.beta:.4g} GB/s" if value.beta else "free"
        return f"{duration(value.alpha)} + {rate}"
    match UNITS.get(parameter):
        case "flops":
            return f"{value * 1e-12:.4g} TFLOP/s"
        case "bytes/s":
            return f"{value * 1e-9:.4g} GB/s"
        case "bytes":
            return size(value)
        case "seconds":
            return duration(value)
    return f"{value:.4g}"


def _factor(d: Difference) -> str:
    if isinstance(d.before, AlphaBeta) and isinstance(d.after, AlphaBeta):
        pairs = ((d.before.alpha, d.after.alpha), (d.before.beta, d.after.beta))
        return " ".join(f"{b / a:.3g}" if a else "-" for a, b in pairs)
    if isinstance(d.before, float) and isinstance(d.after, float) and d.before:
        return f"{d.after / d.before:.3g}"
    return "-"
