"""Hyperparameters of a run: their ranges, and which algorithm has which."""

import math
from collections.abc import Iterator

from ir_schema.base import Record
from ir_schema.diagnostics import Diagnostic, error
from ir_schema.problem import Problem, RunConfig

Range = tuple[float, float, str]
"""The least and the largest value, and which of the two are possible themselves: `[]`, `(]`, `[)`, `()`."""

RUN: dict[str, Range] = {
    "steps": (1, math.inf, "[)"),
    "seed": (0, 2**63, "[)"),
    "temperature": (0, math.inf, "()"),
    "top_p": (0, 1, "(]"),
    "kl_coefficient": (0, math.inf, "[)"),
    "discount": (0, 1, "[]"),
    "gae_lambda": (0, 1, "[]"),
    "baseline_decay": (0, 1, "[)"),
    "clip_ratio": (0, math.inf, "()"),
    "value_clip": (0, math.inf, "()"),
    "dpo_beta": (0, math.inf, "()"),
}
_SAMPLING = ("ppo", "grpo", "rloo", "reinforce")
OF_ALGORITHM: dict[str, tuple[str, ...]] = {
    "temperature": _SAMPLING,
    "top_p": _SAMPLING,
    "kl_coefficient": _SAMPLING,
    "kl_estimator": _SAMPLING,
    "clip_ratio": _SAMPLING,
    "discount": ("ppo",),
    "gae_lambda": ("ppo",),
    "value_clip": ("ppo",),
    "scale_rewards": ("grpo",),
    "baseline_decay": ("reinforce",),
    "dpo_beta": ("dpo",),
    "long_responses": ("dpo",),
}
"""The algorithms that have a hyperparameter; all have those that are not listed."""

OPTIMIZER: dict[str, Range] = {
    "learning_rate": (0, math.inf, "[)"),
    "beta1": (0, 1, "[)"),
    "beta2": (0, 1, "[)"),
    "epsilon": (0, math.inf, "()"),
    "weight_decay": (0, math.inf, "[)"),
    "max_gradient_norm": (0, math.inf, "()"),
    "warmup_steps": (0, math.inf, "[)"),
}


def _in_ranges(values: Record, ranges: dict[str, Range], path: str) -> Iterator[Diagnostic]:
    for field, (least, most, ends) in ranges.items():
        x = getattr(values, field)
        if least < x < most or (x == least and ends[0] == "[") or (x == most and ends[1] == "]"):
            continue
        low = f"{'at least' if ends[0] == '[' else 'above'} {least}"
        high = "" if most == math.inf else f" and {'at most' if ends[1] == ']' else 'below'} {most}"
        yield error("E305", f"`{path}.{field}` is {x}", f"{path}.{field}", help=f"it is {low}{high}")


def check_run(problem: Problem) -> Iterator[Diagnostic]:
    """E305 hyperparameters that no run can have, E306 an optimizer without a model to train, E308 what the
    algorithm does not have."""
    run = problem.run
    if run is None:
        return
    yield from _check_algorithm(run, problem.workload.rollouts)
    yield from _in_ranges(run, RUN, "run")
    yield from _in_ranges(run.optimizer, OPTIMIZER, "run.optimizer")
    for m, optimizer in run.optimizers.items():
        yield from _in_ranges(optimizer, OPTIMIZER, f"run.optimizers.{m}")
        if m in problem.models and m not in problem.graph.trainable:
            yield error(
                "E306",
                f"`{m}` has an optimizer, but is frozen",
                f"run.optimizers.{m}",
                help=f"remove it, or train `{m}`",
            )


def _check_algorithm(run: RunConfig, rollouts: int) -> Iterator[Diagnostic]:
    """E308: hyperparameters and numbers of rollouts that the algorithm does not have."""
    method, defaults = run.algorithm, RunConfig()
    for field, algorithms in OF_ALGORITHM.items():
        if method not in algorithms and getattr(run, field) != getattr(defaults, field):
            yield error(
                "E308",
                f"`run.{field}` means nothing to algorithm {method}",
                f"run.{field}",
                "run.algorithm",
                help=f"remove it; it belongs to {', '.join(algorithms)}",
            )
    if method == "grpo" and run.kl_estimator == "k1":
        yield error(
            "E308",
            "`run.kl_estimator` k1 does nothing in the loss of grpo: its gradient is zero on average",
            "run.kl_estimator",
            help="use k3, or k2",
        )
    if (method in ("grpo", "rloo") and rollouts < 2) or (method == "dpo" and rollouts != 2):
        needs = "pairs" if method == "dpo" else "groups of at least 2 responses"
        yield error(
            "E308",
            f"algorithm {method} learns from {needs}, but `workload.rollouts` is {rollouts}",
            "workload.rollouts",
            "run.algorithm",
            help="write `rollouts = 2`" if method == "dpo" else "raise `rollouts`",
        )
