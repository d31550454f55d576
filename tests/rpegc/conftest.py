"""Problems that the driver's tests share."""

from pathlib import Path

import msgspec
import pytest

from ir_schema.hardware import Provenance
from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration

CASES = Path(__file__).parents[1] / "cases"


def case_problem(path: Path) -> Problem:
    """The problem of a worked case, without the expected numbers."""
    case = msgspec.json.decode(path.read_bytes())
    del case["fields"], case["expected"]
    return msgspec.convert(case, Problem)


def configured(problem: Problem) -> Configuration:
    """The problem under the complete plan that it carries."""
    plan = {name: msgspec.convert(msgspec.to_builtins(p), Placement) for name, p in problem.plan.items()}
    return Configuration(problem=msgspec.structs.replace(problem, plan={}, search=None), plan=plan)


def measured(problem: Problem, spread: float) -> Problem:
    """The problem under cost model `megatron` on a machine where all predictions are off by `spread`."""
    everything = dict.fromkeys(("generation", "inference", "training", "transfers"), spread)
    hardware = msgspec.structs.replace(
        problem.hardware, provenance=Provenance(name="here", spread=everything)
    )
    options = msgspec.structs.replace(problem.options, cost_model="megatron")
    return msgspec.structs.replace(problem, hardware=hardware, options=options)


@pytest.fixture(scope="session")
def problem() -> Problem:
    return case_problem(CASES / "decided" / "01-ppo-sync-colocated-one-layout.json")
