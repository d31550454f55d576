"""Finding and reading hardware files.

A hardware file is the JSON form of `ir_schema.hardware.Hardware`. The common machines ship with the
package as `calib/hardware/NAME.json` and are marked nominal: nobody has calibrated the machine at hand.
Invariant: whatever is returned is physically possible (positive, finite); everything else is a diagnostic.
"""

import difflib
import math
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import msgspec

from ir_schema.base import TIERS
from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.hardware import AlphaBeta, Dispatch, Hardware, Tiers

TRANSFERS = ("collective", "point_to_point", "all_gather", "reduce_scatter")
"""Fields that hold a latency and an inverse bandwidth by tier."""

Value = float | AlphaBeta | None
"""Of a parameter, alpha and beta of a tier being one; None: not given."""

_POSITIVE = ("peak_flops", "memory_bandwidth", "memory_bytes")
_NOT_NEGATIVE = (
    "gamma_M",
    "gamma_K",
    "nongemm_seconds",
    "kernel_seconds",
    "product_flops",
    "startup_seconds",
    "launch_seconds",
    "score_bytes",
    "node_processors",
    "contention",
    "message_work",
    "wakeup_seconds",
)


def hardware_names() -> list[str]:
    """Names of the machines that ship with the package, sorted."""
    folder = resources.files("calib") / "hardware"
    return sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json"))


def load_hardware(name_or_path: str, directory: Path | None = None) -> Hardware:
    """The hardware called `name_or_path`: a shipped name, or a JSON file relative to `directory` (default:
    the working directory). A spelling with a slash or ending in `.json` is a path.

    Raises DiagnosticError E310 (no such machine or file) or E311 (malformed or impossible).
    """
    if "/" in name_or_path or name_or_path.endswith(".json"):
        path = (directory or Path()) / name_or_path
        try:
            return decode_hardware(path.read_bytes(), name_or_path)
        except OSError as exc:
            reason = exc.strerror or type(exc).__name__
            raise DiagnosticError(
                [error("E310", f"cannot read hardware file `{name_or_path}`: {reason}", "hardware")]
            ) from exc
    names = hardware_names()
    if name_or_path in names:
        data = (resources.files("calib") / "hardware" / f"{name_or_path}.json").read_bytes()
        return decode_hardware(data, name_or_path)
    near = difflib.get_close_matches(name_or_path.lower(), names, n=1)
    guess = f"did you mean `{near[0]}`? " if near else ""
    raise DiagnosticError(
        [
            error(
                "E310",
                f"unknown hardware `{name_or_path}`",
                "hardware",
                help=f"{guess}shipped: {', '.join(names)}; or give a hardware file (`./mine.json`)",
            )
        ]
    )


def decode_hardware(data: bytes, name: str) -> Hardware:
    """The hardware written in `data` (JSON); `name` is how messages call it.

    Raises DiagnosticError E311, with one finding for every impossible value.
    """
    try:
        hardware = msgspec.json.decode(data, type=Hardware)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise DiagnosticError(
            [error("E311", f"malformed hardware file `{name}`: {exc}", "hardware")]
        ) from exc
    problems = impossible_values(hardware)
    if problems:
        raise DiagnosticError(
            error("E311", f"impossible value in hardware `{name}`: {text}", f"hardware.{path}")
            for path, text in problems
        )
    return hardware


def encode_hardware(hardware: Hardware) -> bytes:
    """The file of `hardware`, JSON."""
    return msgspec.json.format(msgspec.json.encode(hardware)) + b"\n"


def parameters(hardware: Hardware) -> Iterator[tuple[str, Value]]:
    """Every parameter of the file with its value, alpha and beta of a tier being one."""
    for name in hardware.__struct_fields__:
        value = getattr(hardware, name)
        if name in TRANSFERS:
            for tier in TIERS:
                yield f"{name}.{tier}", value.at(tier) if value is not None else None
        elif name == "nongemm_reference":
            yield f"{name}.sequences", value.sequences
            yield f"{name}.tokens", value.tokens
        elif name == "dispatch":
            for kind in Dispatch.__struct_fields__:
                yield f"{name}.{kind}", None if value is None else getattr(value, kind)
        elif name != "provenance":
            yield name, value


def impossible_values(hardware: Hardware) -> list[tuple[str, str]]:
    """(path inside the hardware, what is wrong) for every value that no machine can have."""
    found: list[tuple[str, str]] = []

    def check(path: str, value: float, *, zero: bool) -> None:
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            found.append((path, f"{path} = {value!r} must be {'non-negative' if zero else 'positive'}"))

    for field in _POSITIVE:
        check(field, getattr(hardware, field), zero=False)
    for field in _NOT_NEGATIVE:
        check(field, getattr(hardware, field), zero=True)
    if hardware.dispatch is not None:
        for kind in hardware.dispatch.__struct_fields__:
            check(f"dispatch.{kind}", getattr(hardware.dispatch, kind), zero=True)
    check("nongemm_reference.sequences", hardware.nongemm_reference.sequences, zero=False)
    check("nongemm_reference.tokens", hardware.nongemm_reference.tokens, zero=False)
    if not 0 <= hardware.runtime_reserve < 1:
        found.append(("runtime_reserve", f"runtime_reserve = {hardware.runtime_reserve!r} must be in [0, 1)"))
    for field in TRANSFERS:
        tiers: Tiers | None = getattr(hardware, field)
        if tiers is None:
            continue
        for tier in TIERS:
            check(f"{field}.{tier}.alpha", tiers.at(tier).alpha, zero=True)
            check(f"{field}.{tier}.beta", tiers.at(tier).beta, zero=True)
    if hardware.provenance is not None:
        for name, residual in hardware.provenance.residuals.items():
            check(f"provenance.residuals.{name}", residual, zero=True)
        for what, spread in hardware.provenance.spread.items():
            check(f"provenance.spread.{what}", spread, zero=True)
    return found
