"""Fits that replace parameters of a draft: one transfer primitive at one tier, and what only whole operators
show, everything else being as it is by then. Both say how long things took, wherever that comes from.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from calib.fits import named, transfer
from calib.fitting import Array, fit
from ir_schema.base import Role, Tier
from ir_schema.diagnostics import Diagnostic
from ir_schema.hardware import AlphaBeta, Dispatch, Hardware, Measured
from ir_schema.samples import OperatorCase, TransferSample
from rpegc.calibration.draft import Draft, TransferField, digits, replace, warning
from rpegc.calibration.operators import predict
from rpegc.calibration.samples import typical
from rpegc.calibration.sanity import sweep_faults

ROLES: tuple[Role, ...] = ("generation", "inference", "training")
_ROUNDS = 15


class Curve(NamedTuple):
    """One fit as it is drawn: what was measured [s] and what the fitted formula says, over `size`."""

    name: str
    axis: str
    size: Array
    measured: Array
    fitted: Array

    @property
    def spread(self) -> float:
        """Root mean square of ln(measured / fitted)."""
        return digits(float(np.sqrt(np.mean(np.log(self.measured / self.fitted) ** 2))))


class Fitted(NamedTuple):
    """The curves of a fit and what is wrong with it."""

    curves: list[Curve]
    findings: list[Diagnostic]


def missed(what: str, why: Exception | None = None) -> Diagnostic:
    """Something was not measured, or cannot be fitted."""
    said = f"{what} cannot be fitted ({why})" if why else f"the samples have no {what}"
    help = "`rpeg-calib run` measures all that it can reach"
    return warning("W943", f"{said}: what they would tell is as in the base", help)


def fit_transfers(
    draft: Draft, field: TransferField, tier: Tier, found: Sequence[TransferSample], *, gpu: bool
) -> Fitted:
    """alpha and beta of one primitive at one tier; of groups all of whose members have a processor, if there
    are any, for what sharing processors costs is a parameter of its own."""
    if not gpu:
        found = [s for s in found if s.per_node <= draft.hardware.node_processors] or found
    what = f"{found[0].primitive.replace('_', '-')} at tier {tier}"
    group = np.array([s.participants for s in found], float)
    nbytes = np.array([s.nbytes for s in found], float)
    seconds = np.array([typical(s.seconds) for s in found])
    findings: list[Diagnostic] = []
    for p in np.unique(group):
        mine = group == p
        findings += sweep_faults(f"{what} among {p:g}", nbytes[mine], seconds[mine])
    rounds = {"collective": 2.0, "point_to_point": 0.0}.get(field, 1.0)
    steps = rounds * (group - 1) if rounds else np.ones(len(group))
    moved = rounds * (group - 1) / group * nbytes if rounds else nbytes
    try:
        fitted = transfer(group, steps, moved, seconds)
    except (ValueError, np.linalg.LinAlgError) as exc:
        return Fitted([], [*findings, missed(what, exc)])
    link = AlphaBeta(alpha=fitted.values["alpha"], beta=fitted.values["beta"])
    source = f"bandwidth of the largest transfers, then the latency fitted: {fitted.n} of {what}"
    draft.link(field, tier, link, fitted.residual, fitted.n, source, untold=fitted.untold)
    curves = []
    for p in np.unique(group):
        mine = group == p
        told = steps[mine] * link.alpha + moved[mine] * link.beta
        curves.append(Curve(f"{field}-{tier}-{p:g}", "bytes", nbytes[mine], seconds[mine], told))
    return Fitted(curves, findings)


def fit_operators(
    draft: Draft, cases: Sequence[OperatorCase], measured: Array, start: Mapping[str, float]
) -> Fitted:
    """The parameters in `start`, sought from there, with which operators take as long as they did."""
    sought = {name: value for name, value in start.items() if name not in draft.keep}
    if not sought:
        return Fitted([], [])
    base = draft.hardware

    def told(x: Array) -> Array:
        hardware = _with(base, dict(zip(sought, map(float, x), strict=True)))
        return np.array([predict(case, hardware).seconds for case in cases])

    try:
        fitted = named(tuple(sought), fit(told, measured, tuple(sought.values()), rounds=_ROUNDS))
    except (ValueError, np.linalg.LinAlgError) as exc:
        return Fitted([], [missed("operators", exc)])
    source = f"fit to {fitted.n} operators, all other parameters as they are here"
    for parameter, value in fitted.values.items():
        is_told = parameter not in fitted.untold
        draft.set(parameter, value, fitted.residual, fitted.n, source, told=is_told)
    roles, finally_told = np.array([c.role for c in cases]), told(np.array(list(fitted.values.values())))
    curves = []
    for role in ROLES:
        mine = roles == role
        if mine.any():
            seconds = measured[mine]
            curves.append(Curve(f"operators-{role}", "measured", seconds, seconds, finally_told[mine]))
    return Fitted(curves, [])


def spread_of(curves: Sequence[Curve]) -> dict[Measured, float]:
    """How far whole operators are off, by role."""
    named = {c.name: c for c in curves}
    return {role: named[f"operators-{role}"].spread for role in ROLES if f"operators-{role}" in named}


def _with(hardware: Hardware, values: Mapping[str, float]) -> Hardware:
    """`hardware` with other values of parameters that are fitted to operators."""
    kinds = {n.partition(".")[2]: v for n, v in values.items() if n.startswith("dispatch.")}
    rest = {n: v for n, v in values.items() if not n.startswith("dispatch.")}
    known = hardware.dispatch or Dispatch(decoding=0.0, forward=0.0, training=0.0)
    return replace(hardware, dispatch=replace(known, **kinds), **rest)
