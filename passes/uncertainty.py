"""How far a predicted step time may be off, and whether two plans differ by more than that.

The hardware file says how far the cost model's predictions were off where they were measured. These errors
are carried through the schedule by Monte Carlo: every draw multiplies the durations of the nodes by
log-normal factors and computes all start times anew, in the plan's order of placement. What is run in one
role, layout and microbatch size has one error, however often it runs and in whichever plan; other errors are
independent, as published iterations show (`docs/calibration.md`). So the step times of two plans that are
drawn alike differ only by what the plans do differently.

Draws repeat: those of an error follow from its name. What users state (a verifier's time) counts as exact.
"""

import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ir_schema.base import Record, Role
from ir_schema.device import joint_tier
from ir_schema.hardware import Hardware
from ir_schema.problem import Placement, Problem
from ir_schema.stages import CostedNode, Scheduled
from passes.schedule import resources

COVERAGE = 0.9
"""Probability of an interval, from its lower to its upper tail of equal size."""
DRAWS = 1000

NETWORK_PARTS = ("tp", "cp", "ep", "pp", "dp")
"""Parts of an operator's time that are communication (`docs/cost-megatron.md`)."""
COLLECTIVES = ("collective", "all_gather", "reduce_scatter")

_ROLES: tuple[Role, ...] = ("generation", "inference", "training")

Draws = NDArray[np.float64]
_POINTS: Draws = np.array([statistics.NormalDist().inv_cdf((i + 0.5) / DRAWS) for i in range(DRAWS)])
Relation = Literal["faster", "slower", "indistinguishable"]


class Uncertainty(Record, frozen=True, kw_only=True):
    """The interval [s] that contains a plan's measured step time with probability `coverage`, as far as the
    hardware file knows its errors; None where it does not know them, and `note` says which. Where there is an
    interval, `note` says what of the plan counts as exact, if anything does."""

    coverage: float = COVERAGE
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Spread:
    """Standard deviations of ln(measured / predicted); None where nothing was measured.

    `roles` are those of whole operators. An operator of another role is off by what its `kernels` and its
    communication (`network`) are off. `transfers` are those between operators.
    """

    roles: Mapping[Role, float]
    kernels: float | None
    network: float | None
    transfers: float | None

    def operator(self, role: Role, parts: Mapping[str, float]) -> float | None:
        """That of an operator whose time consists of `parts` [s]."""
        if role in self.roles:
            return self.roles[role]
        total = sum(parts.values())
        if self.kernels is None or not total:
            return self.kernels
        network = sum(parts.get(name, 0.0) for name in NETWORK_PARTS)
        return math.hypot(self.kernels * (total - network), (self.network or 0.0) * network) / total


def spread_of(hardware: Hardware) -> Spread:
    """What the provenance of `hardware` says: `spread` where it has one, else what follows from residuals.

    The residual of `launch_seconds` is one of whole training iterations, that of `product_flops` (else
    `peak_flops`) of kernels. Of the residuals of collectives, and of messages, the largest counts: that of a
    tier which nobody measured is not smaller.
    """
    provenance = hardware.provenance
    spread = {} if provenance is None else provenance.spread
    residuals = {} if provenance is None else provenance.residuals

    def largest(*names: str) -> float | None:
        found = [r for name, r in residuals.items() if name.split(".")[0] in names]
        return deviation(max(found)) if found else None

    roles: dict[Role, float] = {r: spread[r] for r in _ROLES if r in spread}
    if "training" not in roles and "launch_seconds" in residuals:
        roles["training"] = deviation(residuals["launch_seconds"])
    return Spread(
        roles=roles,
        kernels=largest("product_flops" if hardware.product_flops else "peak_flops"),
        network=largest(*COLLECTIVES),
        transfers=spread.get("transfers", largest("point_to_point")),
    )


def deviation(residual: float) -> float:
    """Standard deviation of a normal error whose mean absolute value is `residual`."""
    return residual * math.sqrt(math.pi / 2)


def uncertainty(scheduled: Scheduled) -> Uncertainty:
    """How far the step time of `scheduled` may be off. The interval contains the prediction."""
    note = unknown(scheduled.configuration.problem)
    if note:
        return Uncertainty(note=note)
    low, high = _middle(_step_times(scheduled), scheduled.step_time_s)
    return Uncertainty(step_time_low_s=low, step_time_high_s=high, note=_exact(scheduled))


def difference(plan: Scheduled, other: Scheduled) -> tuple[float, float] | None:
    """The interval [s] of `other`'s step time minus `plan`'s, errors that both share cancelling; None where
    that of either is not known."""
    if unknown(plan.configuration.problem) or unknown(other.configuration.problem):
        return None
    return _middle(_step_times(other) - _step_times(plan), other.step_time_s - plan.step_time_s)


def relation(plan: Scheduled, other: Scheduled) -> Relation | None:
    """What `plan` is beside `other`, as far as errors allow to say; None where they are not known."""
    interval = difference(plan, other)
    if interval is None:
        return None
    low, high = interval
    return "faster" if low > 0 else "slower" if high < 0 else "indistinguishable"


def unknown(problem: Problem) -> str:
    """Why step times of plans of `problem` have no interval; empty if they have one."""
    if problem.options.cost_model != "megatron":
        return f"no interval: errors are those of model `megatron`, not of `{problem.options.cost_model}`"
    spread = spread_of(problem.hardware)
    roles = {v.role for v in problem.graph.vertices if v.model is not None}
    missing = [r for r in _ROLES if r in roles and r not in spread.roles] if spread.kernels is None else []
    if not missing:
        return ""
    return f"no interval: hardware file `{_name(problem.hardware)}` has no errors of {', '.join(missing)}"


def _exact(scheduled: Scheduled) -> str:
    """What of the plan has no error in the hardware file."""
    spread = spread_of(scheduled.configuration.problem.hardware)
    if spread.transfers is None and any(n.kind != "Op" and n.time_ns for n in scheduled.nodes):
        return "transfers between operators count as exact"
    return ""


def _name(hardware: Hardware) -> str:
    return "unnamed" if hardware.provenance is None else hardware.provenance.name


def _middle(draws: Draws, predicted: float) -> tuple[float, float]:
    """The middle `COVERAGE` of `draws`, stretched to what was predicted."""
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(draws, (tail, 1 - tail)).tolist()
    return min(low, predicted), max(high, predicted)


def _step_times(scheduled: Scheduled) -> Draws:
    """Step times [s] of `DRAWS` draws: every node starts after its predecessors and after what was placed
    before it on any of its GPUs. Where processors that workers share decide, draws are in proportion."""
    nodes = scheduled.nodes
    problem, plan = scheduled.configuration.problem, scheduled.configuration.plan
    errors = _Errors(problem, plan)
    reserved = resources([n.allocation for n in nodes])
    start = np.zeros(DRAWS)
    available = [start] * (1 + max((a for atoms in reserved for a in atoms), default=-1))
    finish = [start] * len(nodes)
    for x in scheduled.placement_order:
        node = nodes[x]
        awaited = [*(finish[p] for p in node.predecessors), *(available[a] for a in reserved[x])]
        begin = reduce(np.maximum, {id(a): a for a in awaited}.values(), start)
        finish[x] = begin + np.rint(node.time_ns * errors.factors(node))
        for a in reserved[x]:
            available[a] = finish[x]
    makespan: Draws = reduce(np.maximum, finish, start)
    last = max((n.finish_ns for n in nodes), default=0)
    crowd = scheduled.makespan_ns / last if last else 1.0
    return crowd * makespan * 1e-9 / problem.options.steps


class _Errors:
    """The factors by which the nodes of a plan may take longer than predicted."""

    def __init__(self, problem: Problem, plan: Mapping[str, Placement]) -> None:
        self.problem = problem
        self.plan = plan
        self.spread = spread_of(problem.hardware)
        self.roles = {v.name: v.role for v in problem.graph.vertices}
        self.machine = _name(problem.hardware)

    def factors(self, node: CostedNode) -> Draws:
        """Those of `node`, one a draw."""
        name, spread = self._operator(node) if node.kind == "Op" else self._transfer(node)
        return np.exp(spread * normal(f"{self.machine} {name}")) if spread else np.ones(DRAWS)

    def _operator(self, node: CostedNode) -> tuple[str, float | None]:
        """Name and spread of the error of an operator; a fused pair has one layout, and that of the first."""
        vertex = node.members[0] if node.members else node.vertex
        placement = self.plan.get(vertex)
        if placement is None:
            return "host", None
        role = self.roles[vertex]
        parts = placement.data_parallel * placement.microbatches * placement.waves
        if role == "training":
            parts *= self.problem.workload.minibatches
        layout = "-".join(map(str, msgspec.structs.astuple(placement.layout)))
        name = f"{role} {layout} {self.problem.workload.sequences / parts:.6g}"
        return name, self.spread.operator(role, node.parts_s)

    def _transfer(self, node: CostedNode) -> tuple[str, float | None]:
        """Transfers of one kind over one tier of the network share their error."""
        source, target = node.source_allocation, node.allocation
        ends = [a for a in (source, target) if a is not None]
        tier = joint_tier(ends[0], ends[-1]) if ends else "host"
        return f"{node.kind} {tier}", self.spread.transfers


@lru_cache(maxsize=1024)
def normal(name: str) -> Draws:
    """`DRAWS` draws of a standard normal that follow from `name` alone: one of each of as many equally likely
    ranges (a Latin hypercube sample), in an order of its own for every name."""
    rng = random.Random(name)
    keys = [rng.random() for _ in range(DRAWS)]
    order = sorted(range(DRAWS), key=keys.__getitem__)
    return _POINTS[order]
