"""The plain process of a problem."""

from collections.abc import Mapping
from pathlib import Path

from ir_schema.problem import Problem
from tests.reference.dpo import DPO
from tests.reference.group import GRPO, REINFORCE, RLOO
from tests.reference.ppo import PPO
from tests.reference.process import Process, Verify

ALGORITHMS: dict[str, type[Process]] = {
    "ppo": PPO,
    "grpo": GRPO,
    "rloo": RLOO,
    "reinforce": REINFORCE,
    "dpo": DPO,
}


def from_problem(
    problem: Problem, directory: Path, verify: Verify | None, behind: Mapping[str, int] | None = None
) -> Process:
    """The run that `problem` describes, with its staleness or `behind`."""
    assert problem.run is not None
    return ALGORITHMS[problem.run.algorithm](problem, directory, verify, behind)
