"""What a training operator computes from its rows: the learning semantics of each RL algorithm.

Pure torch functions of local rows; whatever spans data-parallel replicas goes through the sum that the caller
injects, so that results do not depend on the plan.
"""

from typing import Protocol

from torch import Tensor

from ir_schema.problem import RunConfig, Workload
from rpeg_rt.algorithms.batch import AllReduce, Columns, Metrics, TrainBatch
from rpeg_rt.algorithms.dpo import DPO
from rpeg_rt.algorithms.group import PolicyGradient
from rpeg_rt.algorithms.ppo import PPO


class Learner(Protocol):
    """An algorithm at one training operator; it lasts from step to step and may remember: what it does is in
    `memory`, equal on all workers, and whoever fills that makes it remember."""

    memory: dict[str, float]

    def prepare(self, rows: Columns, all_reduce: AllReduce) -> tuple[TrainBatch, dict[str, float]]:
        """Once a step, before its optimizer steps: the batch, and metrics over all replicas. Collective."""

    def loss(self, logp: Tensor | None, values: Tensor | None, part: TrainBatch) -> tuple[Tensor, Metrics]:
        """What is minimised, summed over the rows of `part`, given the outputs [n, L_r] of the model being
        trained (None for a head that it has not), and other sums."""


def make_learner(run: RunConfig, workload: Workload, *, policy: bool, value: bool) -> Learner:
    """The run's algorithm for an operator that trains a `policy`, a `value` function, or both."""
    if run.algorithm == "dpo":
        return DPO(run)
    if run.algorithm == "ppo":
        return PPO(run, policy=policy, value=value)
    return PolicyGradient(run, workload.rollouts)
