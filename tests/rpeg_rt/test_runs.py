"""Whole runs on real workers: every synchronous plan trains as one plain process does.

In float64, so that no sampled token flips on rounding; parameters are compared in units of learning rate
times steps, the farthest that AdamW can move one.
"""

import json
import random
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ir_schema.problem import Placement, Problem, Workload
from rpeg_rt.run import Settings, execute
from rpeg_rt.verify import verify_file
from tests.reference.ppo import from_problem
from tests.rpeg_rt.plans import (
    VERTICES,
    colocated,
    executable,
    place,
    problem,
    verify,
    write_plan,
    write_prompts,
)

STEPS = 3
SPLIT = ((0.4, 3), (0.75, 6), (1.0, 8))
LAYOUTS = [(d, p, t) for d in (1, 2, 4) for p in (1, 2) for t in (1, 2, 4) if d * p * t <= 4]


def random_plan(seed: int) -> dict[str, Placement]:
    """Any aligned box and any layout for each vertex on its own, over four GPUs."""
    dice = random.Random(seed)
    plan = {}
    for vertex in VERTICES:
        dp, pp, tp = dice.choice(LAYOUTS)
        size = dp * pp * tp
        origin = dice.randrange(4 // size) * size
        mb = 2 if pp > 1 and dice.random() < 0.5 else 1
        plan[vertex] = place(f"{origin}-{origin + size - 1}", dp, pp, tp, mb)
    return plan


DISJOINT = colocated(dp=2) | {
    "ref_inf": place("2"),
    "critic_inf": place("3"),
    "actor_train": place("2-3", tp=2),
    "critic_train": place("2-3", dp=2),
}
OVERLAP = colocated(tp=2) | {
    "critic_inf": place("1-2", dp=2),
    "ref_inf": place("2"),
    "actor_train": place("0-3", dp=2, pp=2, mb=2),
    "critic_train": place("2-3", pp=2),
}
MIXED = colocated(
    actor_gen=place("0-3", dp=4),
    ref_inf=place("0-3", tp=4),
    critic_inf=place("0-3", dp=2, pp=2),
    actor_train=place("0-3", dp=2, tp=2),
    critic_train=place("0-3", pp=2, tp=2, mb=2),
)
CASES: dict[str, tuple[dict[str, object], dict[str, Placement]]] = {
    "colocated, data parallel": ({}, colocated(dp=4)),
    "disjoint": ({}, DISJOINT),
    "partial overlap": ({}, OVERLAP),
    "one allocation, a layout per vertex": ({}, MIXED),
    "split generation": ({"quantiles": SPLIT}, DISJOINT),
    "epochs, minibatches, waves": (
        {"workload": {"epochs": 2, "minibatches": 2}},
        colocated(dp=2, actor_gen=place("0-1", dp=2, waves=2)),
    ),
    "random 1": ({"quantiles": SPLIT}, random_plan(1)),
    "random 2": ({"quantiles": SPLIT}, random_plan(2)),
    "random 3": ({"workload": {"prompts": 8, "rollouts": 1}}, random_plan(3)),
}


@cache
def reference(
    workload: Workload, directory: Path
) -> tuple[list[dict[str, float]], dict[str, dict[str, torch.Tensor]]]:
    """Metrics by step and final weights by model of the plain process."""
    made = problem(workload={f: getattr(workload, f) for f in workload.__struct_fields__})
    plain = from_problem(made, directory, verify)
    metrics = [step.metrics for step in plain.train(STEPS)]
    return metrics, {plain.names[k]: w for k, w in plain.weights.items()}


def unsplit(problem: Problem) -> Workload:
    """The workload without what only a plan sees, so that plans share a reference."""
    return Workload(
        **{
            f: getattr(problem.workload, f)
            for f in ("prompts", "rollouts", "prompt_length", "response_length", "epochs", "minibatches")
        }
    )


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("prompts")
    write_prompts(directory)
    return directory


@pytest.mark.parametrize("name", CASES)
def test_a_synchronous_run_equals_the_plain_process(name: str, tmp_path: Path, prompts: Path) -> None:
    options, plan = CASES[name]
    made = problem(**options)  # type: ignore[arg-type]
    path = write_plan(tmp_path, executable(made, plan))
    trace, metrics = tmp_path / "trace.jsonl", tmp_path / "metrics.jsonl"
    outcome = execute(
        path, Settings(steps=STEPS, trace=trace, metrics=metrics, save=tmp_path), lambda *_: None
    )
    assert outcome.trace_verified
    assert verify_file(trace, path).violations == []

    expected, weights = reference(unsplit(made), prompts)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(STEPS))
    for line, want in zip(lines, expected, strict=True):
        got = line["actor_train"] | {"value_loss": line["critic_train"]["value_loss"]}
        for figure in ("reward", "kl_to_reference", "entropy", "response_tokens"):
            assert got[figure] == pytest.approx(want[figure], abs=1e-8)
        if made.workload.epochs * made.workload.minibatches == 1:
            for figure in ("policy_loss", "value_loss"):
                assert got[figure] == pytest.approx(want[figure], abs=1e-8)
    assert made.run is not None
    farthest = made.run.optimizer.learning_rate * STEPS * made.workload.epochs * made.workload.minibatches
    for model in ("actor", "critic"):
        saved = load_file(tmp_path / f"{model}.safetensors")
        assert saved.keys() == weights[model].keys()
        for tensor, values in saved.items():
            assert torch.allclose(values, weights[model][tensor].detach(), rtol=0, atol=1e-4 * farthest), (
                tensor
            )
