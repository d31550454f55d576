"""How far predictions of single operators are off what was measured of them, and whether that is enough.

Three predictors are compared: the compiler's, one that knows an operator's work alone (seconds in proportion
to operations of a GPU, bytes to its share of parameters) and a constant. The two baselines are as good as
they can be: their one figure is fitted to the very operators that they are compared with.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from calib.statistics import Agreement, agreement, bands, best_scale
from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.hardware import Hardware
from ir_schema.samples import OperatorCase, OperatorSample
from passes.cost import parameters
from rpegc.calibration.operators import predict
from rpegc.calibration.samples import model_id, typical
from rpegc.failure import suggestion, usage_error
from rpegc.table import duration, size

Quantity = Literal["time", "memory"]
QUANTITIES: tuple[Quantity, ...] = ("time", "memory")

BAND = 4.0
"""Within parts of a factor of four, agreement says more than that large operators take longer."""

AIMS: Mapping[str, float] = {
    "operators": 60,
    "time.mape": 0.15,
    "time.spearman": 0.99,
    "time.ordered": 0.95,
    "memory.mape": 0.10,
}
"""What a calibration should reach, by default: how many operators at least, mean relative errors at most, the
others at least."""


STATISTICS = ("operators", *(f"{q}.{s}" for q in QUANTITIES for s in ("mape", "spearman", "ordered")))
"""What can be aimed at."""


class Outcome(NamedTuple):
    """An operator with what was measured and what is predicted: seconds, and bytes of live tensors."""

    case: OperatorCase
    measured: Mapping[Quantity, float]
    predicted: Mapping[Quantity, float]


class Part(NamedTuple):
    """Agreement of the three predictors on some operators: all, those of a role, or those of a size."""

    quantity: Quantity
    name: str
    ours: Agreement
    work: Agreement
    constant: Agreement


class Aim(NamedTuple):
    """What was reached of something that was aimed at."""

    name: str
    aim: float
    reached: float

    @property
    def met(self) -> bool:
        """Whether it was reached; what cannot be told was not."""
        return self.reached <= self.aim if self.name.endswith("mape") else self.reached >= self.aim


def chosen_aims(given: Sequence[str]) -> dict[str, float]:
    """`AIMS` with others, `NAME=VALUE`, in their place. Raises UsageFailure E932."""
    aims = dict(AIMS)
    for text in given:
        name, _, value = text.partition("=")
        if name not in STATISTICS:
            raise usage_error(
                "E932", f"`--aim {text}`: there is no such aim", help=suggestion(name, STATISTICS)
            )
        try:
            aims[name] = float(value)
        except ValueError:
            raise usage_error(
                "E932", f"`--aim {text}` is not NAME=VALUE", help="--aim time.mape=0.2"
            ) from None
    return aims


def outcomes(samples: Sequence[OperatorSample], hardware: Hardware) -> list[Outcome]:
    """All samples with their predictions.

    Raises DiagnosticError E951 without operators; E952 if parameters of `hardware` were fitted to operators
    of a model among them.
    """
    if not samples:
        raise DiagnosticError(
            [
                error(
                    "E951", "the sample file has no operators", help="`rpeg-rt bench operators` measures some"
                )
            ]
        )
    known = set(hardware.provenance.models) if hardware.provenance else set()
    seen = [i for i, s in enumerate(samples) if model_id(s.case.model) in known]
    if seen:
        told = f"operators[{seen[0]}]" + (f" and {len(seen) - 1} more" if len(seen) > 1 else "")
        help = "validate with other models; `rpeg-rt bench operators` has some by default"
        message = f"{told}: the hardware file was calibrated with operators of the same model"
        raise DiagnosticError([error("E952", message, help=help)])
    found = []
    for sample in samples:
        p = predict(sample.case, hardware)
        measured: dict[Quantity, float] = {"time": typical(sample.seconds), "memory": sample.tensor_bytes}
        found.append(Outcome(sample.case, measured, {"time": p.seconds, "memory": p.nbytes}))
    return found


def operations(case: OperatorCase) -> float:
    """Floating-point operations of a GPU, counted with one figure a model: 2 N a token, 8 N in training."""
    each = (8 if case.role == "training" else 2) * parameters.active(case.model)
    return each * case.workload.sequences * case.workload.total_length / case.placement.layout.gpus


def share_of_parameters(case: OperatorCase) -> float:
    """Parameters of the model for each of the operator's GPUs."""
    return parameters.total(case.model) / case.placement.layout.gpus


WORK: Mapping[Quantity, Callable[[OperatorCase], float]] = {
    "time": operations,
    "memory": share_of_parameters,
}


def compare(found: Sequence[Outcome]) -> list[Part]:
    """Agreement in time and in memory: of all operators, within each role, and within each band of size."""
    parts = []
    for quantity in QUANTITIES:
        measured = [o.measured[quantity] for o in found]
        work = [WORK[quantity](o.case) for o in found]
        ones = [1.0] * len(found)
        scale, constant = best_scale(measured, work), best_scale(measured, ones)
        predictors = (
            [o.predicted[quantity] for o in found], [scale * w for w in work], [constant] * len(found),
        )  # fmt: skip

        def part(name: str, members: Sequence[int]) -> Part:
            truth = [measured[i] for i in members]  # noqa: B023
            said = [agreement(truth, [p[i] for i in members]) for p in predictors]  # noqa: B023
            return Part(quantity, name, *said)  # noqa: B023

        parts.append(part("all", range(len(found))))
        for role in dict.fromkeys(o.case.role for o in found):
            parts.append(part(role, [i for i, o in enumerate(found) if o.case.role == role]))
        told = duration if quantity == "time" else size
        for members in bands(measured, BAND):
            low, high = told(measured[members[0]]), told(measured[members[-1]])
            parts.append(part(f"{low} to {high}", members))
    return parts


def reached(parts: Sequence[Part], aims: Mapping[str, float]) -> list[Aim]:
    """What all operators together reach of `aims` (named as in `AIMS`)."""
    whole = {p.quantity: p.ours for p in parts if p.name == "all"}

    def value(name: str) -> float:
        if name == "operators":
            return whole["time"].n
        quantity, _, statistic = name.partition(".")
        return float(getattr(whole[quantity], statistic))  # type: ignore[index]

    return [Aim(name, aim, value(name)) for name, aim in aims.items()]
