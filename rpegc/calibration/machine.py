"""A hardware file from the samples of a machine (`rpeg-rt bench machine`).

Kernels, memory and communication are fitted by themselves. What only whole operators show, the time that the
framework takes for an operation, what scores move, and what messages take longer among workers that compute,
is fitted to all operators at once, everything else being as measured. Times are medians of repetitions.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from calib.fits import products
from calib.fitting import Array
from ir_schema.base import TIERS
from ir_schema.diagnostics import Diagnostic
from ir_schema.hardware import Hardware, Measured, NonGemmReference, Provenance
from ir_schema.samples import CopySample, LayerSample, ProductSample, Samples
from rpegc.calibration.draft import Change, Draft, TransferField, digits, replace, warning
from rpegc.calibration.operators import forward_flops
from rpegc.calibration.parts import ROLES, Curve, Fitted, fit_operators, fit_transfers, missed, spread_of
from rpegc.calibration.samples import model_id, typical
from rpegc.calibration.sanity import contradictions, disturbances, sweep_faults

FIELDS: dict[str, TransferField] = {
    "all_reduce": "collective",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "point_to_point": "point_to_point",
}
_ALONE = {
    "dispatch.decoding": 1e-5,
    "dispatch.forward": 2e-5,
    "dispatch.training": 2e-5,
    "score_bytes": 30.0,
}
"""What operators of any number of workers show, and from where it is sought;"""
_TOGETHER = {"wakeup_seconds": 5e-4}
"""what those of several show,"""
_SHARING = {"contention": 0.1, "message_work": 0.5}
"""and what they show where they share processors."""

_Kernel = TypeVar("_Kernel", ProductSample, CopySample, LayerSample)


class Calibrated(NamedTuple):
    """A measured hardware file, what changed against the base, which of its parameters nobody measured, what
    is wrong, and the fits."""

    hardware: Hardware
    changes: list[Change]
    untouched: list[str]
    findings: list[Diagnostic]
    curves: list[Curve]


def calibrate(samples: Samples, base: Hardware, name: str) -> Calibrated:
    """`base` with all that `samples` measure, called `name`. Never raises: what cannot be fitted stays as it
    was, and is a finding."""
    work = _Machine(samples, base, name)
    steps = (work.kernels, work.memory, work.node, work.layers, work.transfers, work.operators)
    for step in steps:
        step()
    return work.result()


class _Machine:
    def __init__(self, samples: Samples, base: Hardware, name: str) -> None:
        self.samples, self.base, self.name = samples, base, name
        self.draft = Draft(base)
        self.draft.hardware = _described(samples, base, name)
        self.findings: list[Diagnostic] = []
        self.curves: list[Curve] = []
        self.spread: dict[Measured, float] = {}
        self.gpu = samples.environment.accelerator is not None

    # Kernels -----------------------------------------------------------------------------------------

    def kernels(self) -> None:
        """F of products, gamma_M, gamma_K, the start-up of a kernel; BW_mem; c_ng."""
        self._products(_alone(self.samples.products))
        if copies := _alone(self.samples.copies):
            rates = [c.nbytes / typical(c.seconds) for c in copies]
            off = np.concatenate([np.abs(np.array(c.seconds) / typical(c.seconds) - 1) for c in copies])
            source = f"median of {len(off)} copies of {copies[0].nbytes} bytes, read and written"
            rate, usual = float(np.median(rates)), float(np.median(off))
            self.draft.set("memory_bandwidth", rate, usual, len(off), source)
        else:
            self.missed("copies")
        if rests := _alone(self.samples.layers):
            rest = rests[0]
            shape = NonGemmReference(sequences=float(rest.sequences), tokens=float(rest.tokens))
            self.draft.hardware = replace(self.draft.hardware, nongemm_reference=shape)
            source = (
                f"median of {len(rest.seconds)} runs of a layer's norms and residual sums, {rest.sequences} "
                f"sequences of {rest.tokens} tokens at hidden {rest.hidden}"
            )
            self.draft.set("nongemm_seconds", typical(rest.seconds), None, len(rest.seconds), source)
        else:
            self.missed("norms and residual sums of a layer")

    def _products(self, found: Sequence[ProductSample]) -> None:
        if not found:
            self.missed("matrix products")
            return
        rows, columns, inner, width = (
            np.array([getattr(p, side) for p in found], float)
            for side in ("rows", "columns", "inner", "width")
        )
        seconds = np.array([typical(p.seconds) for p in found])
        self.findings += sweep_faults("matrix products", rows * columns * inner, seconds)
        try:
            fitted = products(rows, columns, inner, width, seconds)
        except (ValueError, np.linalg.LinAlgError) as exc:
            self.missed("matrix products", exc)
            return
        source = f"fit to {fitted.n} matrix products of {_workers(found[0].workers)}"
        for parameter in ("product_flops", "gamma_M", "gamma_K", "startup_seconds"):
            self.draft.set(
                parameter, fitted.values[parameter], fitted.residual, fitted.n, source,
                told=parameter not in fitted.untold,
            )  # fmt: skip
        self.curves += _product_curves(rows, columns, inner, seconds, fitted.values, width)
        for parameter in ("kernel_seconds", "launch_seconds"):
            self.draft.set(parameter, 0.0, None, 0, "what an operation takes is in dispatch")

    # Memory and processors ---------------------------------------------------------------------------

    def memory(self) -> None:
        """M_GPU, and eps_rt: the most that a process occupied beyond the tensors of an operator."""
        memory = self.samples.memory
        if memory is None:
            self.missed("memory")
            return
        beyond = [
            o.process_bytes - o.tensor_bytes for o in self.samples.operators if o.process_bytes is not None
        ]
        held = max([memory.idle_bytes, *beyond])
        if held >= memory.total_bytes:
            text = f"a process occupied {held} bytes beyond tensors, a worker has {memory.total_bytes}"
            help = "look at units, or measure with fewer workers; both figures are as in the base"
            self.findings.append(warning("W942", text, help))
            return
        self.draft.set("memory_bytes", memory.total_bytes, None, 1, "what the system says, in equal parts")
        source = (
            f"{memory.idle_bytes} bytes of a process without a model, and at most {held} beyond the live "
            f"tensors of {len(beyond)} operators"
        )
        self.draft.set("runtime_reserve", held / memory.total_bytes, None, 1 + len(beyond), source)

    def node(self) -> None:
        """The processors that workers share."""
        environment = self.samples.environment
        if self.gpu:
            self.draft.set("node_processors", 0.0, None, 0, "GPUs compute by themselves")
            return
        shared = environment.processors / environment.threads
        self.draft.set("node_processors", shared, None, 1, "of a node, by the threads of a worker")

    def layers(self) -> None:
        """F_peak: a transformer's forward at the largest shape that was measured."""
        forwards = [
            o for o in self.samples.operators
            if o.case.role == "inference" and o.case.placement.layout.gpus == 1
        ]  # fmt: skip
        if not forwards:
            self.missed("forward pass on one worker")
            return
        largest = max(forwards, key=lambda o: forward_flops(o.case))
        h, case = self.draft.hardware, largest.case
        rows = case.workload.sequences * case.workload.total_length / case.placement.microbatches
        saturated = (1 + h.gamma_M / rows) * (1 + h.gamma_K / case.model.hidden)
        source = (
            f"a forward pass of {case.model.layers} layers of hidden size {case.model.hidden} over "
            f"{case.workload.sequences} sequences of {case.workload.total_length} tokens, median of "
            f"{len(largest.seconds)}"
        )
        reached = forward_flops(case) / typical(largest.seconds)
        self.draft.set("peak_flops", reached * saturated, None, len(largest.seconds), source)

    # Communication -----------------------------------------------------------------------------------

    def transfers(self) -> None:
        """alpha and beta by primitive and tier."""
        workers = self.samples.environment.workers
        reached = {s.tier for s in self.samples.transfers}
        if max(workers) > 1:
            reached.add("intra")
        if len(workers) > 1 and reached <= {"intra"}:
            self.missed("communication between nodes")
        for primitive, field in FIELDS.items():
            for tier in TIERS:
                found = [s for s in self.samples.transfers if (s.primitive, s.tier) == (primitive, tier)]
                if found:
                    self.take(fit_transfers(self.draft, field, tier, found, gpu=self.gpu))
                elif tier in reached:
                    self.missed(f"{primitive.replace('_', '-')} at tier {tier}")

    # Operators ---------------------------------------------------------------------------------------

    def operators(self) -> None:
        """What only operators show, all at once."""
        found = self.samples.operators
        roles = {o.case.role for o in found}
        absent = [role for role in ROLES if role not in roles]
        if absent:
            self.missed(f"operators of role {', '.join(absent)}")
            return
        start = dict(_ALONE)
        if len({o.case.placement.layout.gpus for o in found}) > 1:
            start |= _TOGETHER | ({} if self.gpu else _SHARING)
        for parameter in (_TOGETHER | _SHARING).keys() - start.keys():
            self.draft.set(parameter, 0.0, None, 0, "no operator of this machine shows any")
        seconds = np.array([typical(o.seconds) for o in found])
        fitted = fit_operators(self.draft, [o.case for o in found], seconds, start)
        self.take(fitted)
        self.spread = spread_of(fitted.curves)

    # Result ------------------------------------------------------------------------------------------

    def take(self, fitted: Fitted) -> None:
        """Keep the curves and findings of a fit."""
        self.curves += fitted.curves
        self.findings += fitted.findings

    def missed(self, what: str, why: Exception | None = None) -> None:
        """Something was not measured, or cannot be fitted."""
        self.findings.append(missed(what, why))

    def result(self) -> Calibrated:
        """Everything together."""
        untouched = self.draft.own()
        self.draft.describe(spread=self.spread)
        hardware, changes = self.draft.hardware, self.draft.changes
        findings = [
            *self.findings, *self.draft.findings(), *contradictions(hardware, changes),
            *disturbances(self.samples, hardware),
        ]  # fmt: skip
        return Calibrated(hardware, changes, untouched, findings, self.curves)


def _described(samples: Samples, base: Hardware, name: str) -> Hardware:
    """`base` with a provenance that says where and how samples were taken."""
    e = samples.environment
    what = e.accelerator or f"{e.processor}, {e.processors} processors a node"
    software = ", ".join(f"{k} {v}" for k, v in sorted(e.software.items()))
    load = "" if e.load is None else f"; {e.load:g} processes were running before"
    notes = (
        f"measured {e.started} on {', '.join(e.machines)} ({what}) with {'+'.join(map(str, e.workers))} "
        f"workers of {e.threads} threads, {e.backend}{load}; {software}"
    )
    provenance = replace(
        base.provenance or Provenance(name=""),
        name=name,
        nominal=False,
        medians=_medians(samples),
        models=tuple(sorted({model_id(o.case.model) for o in samples.operators})),
        notes=notes,
    )
    return replace(base, provenance=provenance)


def _medians(samples: Samples) -> dict[str, float]:
    """Seconds by what was done, for who wants to fit otherwise."""
    told: dict[str, float] = {}
    for p in samples.products:
        told[f"product {p.rows}x{p.inner}x{p.columns}, {p.workers} at once"] = digits(typical(p.seconds))
    for c in samples.copies:
        told[f"copy {c.nbytes}, {c.workers} at once"] = digits(typical(c.seconds))
    for r in samples.layers:
        told[f"norms and sums, {r.workers} at once"] = digits(typical(r.seconds))
    for t in samples.transfers:
        told[f"{t.primitive} {t.tier} {t.nbytes} among {t.participants}"] = digits(typical(t.seconds))
    return told


def _alone(samples: Sequence[_Kernel]) -> list[_Kernel]:
    """Those of the fewest workers at once: they share least."""
    fewest = min((s.workers for s in samples), default=1)
    return [s for s in samples if s.workers == fewest]


def _workers(count: int) -> str:
    return "one worker" if count == 1 else f"{count} workers at once"


def _product_curves(
    rows: Array, columns: Array, inner: Array, seconds: Array, values: dict[str, float], width: Array
) -> list[Curve]:
    narrow = np.minimum(columns, inner)
    arithmetic = 2 * rows * columns * inner / values["product_flops"]
    arithmetic = arithmetic * (1 + values["gamma_M"] / rows) * (1 + values["gamma_K"] / narrow)
    traffic = width * (rows * columns + columns * inner + rows * inner) / values["memory_bandwidth"]
    told = values["startup_seconds"] + np.maximum(arithmetic, traffic)
    widest, most = narrow == narrow.max(), rows == rows.max()
    return [
        Curve("products-rows", "rows", rows[widest], seconds[widest], told[widest]),
        Curve("products-width", "width", narrow[most], seconds[most], told[most]),
    ]
