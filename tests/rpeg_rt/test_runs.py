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
from rpeg_rt.checkpoints import saved_name
from rpeg_rt.run import Settings, execute
from rpeg_rt.verify import verify_file
from tests.reference.runs import from_problem
from tests.rpeg_rt.plans import (
    VERTICES,
    colocated,
    executable,
    place,
    problem,
    shared,
    trained,
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
    "sequences split where they are not generated": (
        {"cost_model": "megatron"},
        colocated(
            actor_gen=place("0-3", dp=2, tp=2),
            ref_inf=place("1-2", cp=2),
            critic_inf=place("0-3", dp=2, cp=2),
            actor_train=place("0-3", pp=2, cp=2, mb=2),
            critic_train=place("0-3", cp=4),
        ),
    ),
    "fused, one stage": (
        {"fuse": True, "workload": {"epochs": 2, "minibatches": 2}},
        colocated(dp=2) | trained("0-1", dp=2, mb=(2, 3)),
    ),
    "fused, served by what is trained": (
        {"fuse": True},
        colocated(dp=2, pp=2) | trained("0-3", dp=2, pp=2, mb=(4, 4)),
    ),
    "fused, the critic's stages reversed": (
        {"fuse": True},
        colocated(dp=2, critic_inf=place("0-1", pp=2)) | trained("0-1", pp=2, mb=(2, 4)),
    ),
    "random 1": ({"quantiles": SPLIT}, random_plan(1)),
    "random 2": ({"quantiles": SPLIT}, random_plan(2)),
    "random 3": ({"workload": {"prompts": 8, "rollouts": 1}}, random_plan(3)),
}


STALE: dict[str, tuple[int, dict[str, Placement]]] = {
    "one behind, disjoint": (1, DISJOINT),
    "one behind, on the training allocation": (1, colocated(dp=2) | {"critic_train": place("0-1", tp=2)}),
    "two behind, mixed": (2, MIXED | {"critic_train": place("2-3", tp=2)}),
}


@cache
def reference(
    workload: Workload, directory: Path, steps: int, behind: int = 0
) -> tuple[list[dict[str, float]], dict[str, dict[str, torch.Tensor]]]:
    """Metrics by step and final weights by model of the plain process."""
    made = problem(workload={f: getattr(workload, f) for f in workload.__struct_fields__}, staleness=behind)
    plain = from_problem(made, directory, verify)
    return [step.metrics for step in plain.train(steps)], plain.weights


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


def check(
    made: Problem, plan: dict[str, Placement], directory: Path, prompts: Path, steps: int, behind: int = 0
) -> None:
    """Run `made` under `plan`, verify the trace, and compare figures and weights with the plain process."""
    path = write_plan(directory, executable(made, plan))
    trace, metrics = directory / "trace.jsonl", directory / "metrics.jsonl"
    settings = Settings(steps=steps, trace=trace, metrics=metrics, save=directory)
    assert execute(path, settings, lambda *_: None).trace_verified
    assert verify_file(trace, path).violations == []

    expected, weights = reference(unsplit(made), prompts, steps, behind)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(steps))
    updates = made.workload.epochs * made.workload.minibatches
    for line, want in zip(lines, expected, strict=True):
        got = line["vertices"]["actor_train"] | {"value_loss": line["vertices"]["critic_train"]["value_loss"]}
        figures = ["reward", "kl_to_reference", "entropy", "response_tokens", "truncated"]
        for figure in figures + (["policy_loss", "value_loss"] if updates == 1 else []):
            assert got[figure] == pytest.approx(want[figure], abs=1e-8), figure
    assert made.run is not None
    farthest = made.run.optimizer.learning_rate * steps * updates
    for model in ("actor", "critic"):
        saved = load_file(directory / model / "model.safetensors")
        wanted = {saved_name(tensor, "llama"): values for tensor, values in weights[model].items()}
        assert saved.keys() == wanted.keys()
        for tensor, values in saved.items():
            assert torch.allclose(values, wanted[tensor].detach(), rtol=0, atol=1e-4 * farthest), tensor


COVERED = ("colocated, data parallel", "disjoint", "fused, served by what is trained", "random 1", "random 3")
"""Cases whose parts others have, too."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in COVERED else ()) for n in CASES]
)
def test_a_synchronous_run_equals_the_plain_process(name: str, tmp_path: Path, prompts: Path) -> None:
    options, plan = CASES[name]
    check(problem(**options), plan, tmp_path, prompts, STEPS)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STALE)
def test_an_asynchronous_run_equals_the_plain_process_with_its_versions(
    name: str, tmp_path: Path, prompts: Path
) -> None:
    behind, plan = STALE[name]
    check(problem(staleness=behind), plan, tmp_path, prompts, STEPS + behind, behind)


def figures(directory: Path, made: Problem, plan: dict[str, Placement]) -> list[dict[str, dict[str, float]]]:
    """What each step of a run reports, by vertex."""
    directory.mkdir()
    metrics = directory / "metrics.jsonl"
    path = write_plan(directory, executable(made, plan))
    execute(path, Settings(steps=STEPS, metrics=metrics), lambda *_: None)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["vertices"] for line in lines]


def test_rewards_from_a_model_do_not_depend_on_the_plan(tmp_path: Path) -> None:
    made = problem(reward_model=True, quantiles=SPLIT)
    one = figures(tmp_path / "one", made, colocated())
    other = figures(tmp_path / "other", made, DISJOINT | {"reward_inf": place("2-3", tp=2)})
    assert len({step["actor_train"]["reward"] for step in one}) == STEPS
    for a, b in zip(one, other, strict=True):
        for vertex in ("actor_train", "critic_train"):
            assert a[vertex] == pytest.approx(b[vertex], abs=1e-9)


def test_one_backbone_for_actor_and_critic(tmp_path: Path) -> None:
    made = shared(problem())
    names = [v.name for v in made.graph.vertices]
    one = figures(tmp_path / "one", made, {n: place("0") for n in names})
    plan = {n: place("0-1", dp=2) for n in names} | {
        "actor_train": place("0-3", dp=2, tp=2),
        "critic_inf": place("2-3", pp=2),
    }
    other = figures(tmp_path / "other", made, plan)
    for a, b in zip(one, other, strict=True):
        assert {"policy_loss", "value_loss"} <= a["actor_train"].keys()
        assert a["actor_train"] == pytest.approx(b["actor_train"], abs=1e-9)
