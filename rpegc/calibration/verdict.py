"""What a calibration is worth, in plain words."""

from collections.abc import Sequence

import numpy as np

from calib.hardware import hardware_names, load_hardware
from calib.statistics import agreement
from ir_schema.hardware import Hardware
from ir_schema.samples import Environment, Samples
from rpegc.calibration.draft import replace
from rpegc.calibration.machine import Calibrated
from rpegc.calibration.parts import Curve

_GOOD, _USABLE = 0.15, 0.25
"""Mean relative errors of the operators up to which a file is called good, or usable."""


def default_base(environment: Environment) -> str:
    """The shipped file that lends what samples do not tell: of the GPU whose name the accelerator's has in
    it, the longest one; without a GPU, of processors."""
    if environment.accelerator is None:
        return "cpu-2core"
    return max(_named(environment), key=len, default="h100")


def lent(environment: Environment) -> Hardware:
    """That file. Of another GPU than the one that was measured, its data sheet is no limit."""
    hardware = load_hardware(default_base(environment))
    if environment.accelerator is None or _named(environment):
        return hardware
    assert hardware.provenance is not None
    return replace(hardware, provenance=replace(hardware.provenance, limits={}))


def _named(environment: Environment) -> list[str]:
    """Shipped files of GPUs whose name the accelerator's has in it."""
    said = (environment.accelerator or "").lower()
    return [n for n in hardware_names() if n.split("-")[0] in said and not n.startswith("cpu")]


def verdict(samples: Samples, base: Hardware, result: Calibrated) -> str:
    """Where it was measured, how well operators are told, what was out of reach, and what to make of it."""
    lines = [result.hardware.provenance.notes if result.hardware.provenance else ""]
    error = None
    curves = [c for c in result.curves if c.name.startswith("operators-")]
    if curves:
        measured, told = (np.concatenate(values) for values in _both(curves))
        a = agreement(measured, told)
        error = a.mape
        lines.append(
            f"the {a.n} operators it was fitted to are told within {100 * a.mape:.1f} % on average, "
            f"{100 * a.ordered:.1f} % of their pairs in order; `rpeg-calib validate` examines it with others"
        )
    called = base.provenance.name if base.provenance else "the base"
    if result.untouched:
        lines.append(f"not measured, taken from {called}: {', '.join(result.untouched)}")
    lines.append("verdict: " + _judgement(error, len(result.findings), alone=not samples.transfers))
    return "\n".join(lines)


def _both(curves: Sequence[Curve]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [c.measured for c in curves], [c.fitted for c in curves]


def _judgement(error: float | None, findings: int, *, alone: bool) -> str:
    doubts = f"; see the {findings} findings above" if findings else ""
    if error is None:
        return f"not to be planned with: operators could not be fitted{doubts}"
    if error > _USABLE:
        return f"not to be planned with: operators take {100 * error:.0f} % more or less than it says{doubts}"
    if error > _GOOD or findings:
        return f"to be used with care{doubts or ': measure again when the machine is quiet'}"
    return "good for one worker; communication was not measured" if alone else "good"
