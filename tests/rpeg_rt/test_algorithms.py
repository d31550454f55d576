"""Every algorithm under random legal plans on real workers, against one plain process.

Synchronous runs give its figures and parameters; asynchronous ones those of a process that serves with the
versions of the plan. In float64; parameters are compared in units of learning rate times optimizer steps.
"""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from ir_schema.envelope import pretty
from ir_schema.problem import PartialPlacement, Placement, Problem
from rpeg_rt.checkpoints import saved_name
from rpeg_rt.checkpoints.config import family_of
from rpeg_rt.load import load_plan
from rpeg_rt.run import Settings, execute
from rpegc.cli.group import run as rpegc
from tests.reference.process import Process
from tests.reference.runs import from_problem
from tests.rpeg_rt.plans import verify, write_prompts
from tests.rpeg_rt.random_plans import random_plan, random_problem, with_experts, write_tokenizer

PRESETS = ("ppo", "ppo_shared", "grpo", "rloo", "reinforce", "dpo")
QUICK = {"ppo": (7,), "ppo_shared": (3,), "grpo": (2,), "rloo": (3,), "reinforce": (2,), "dpo": (3,)}
SLOW = range(10, 18)
CASES = [(preset, seed) for preset, seeds in QUICK.items() for seed in seeds]
CASES += [
    pytest.param(preset, seed, marks=pytest.mark.slow)  # type: ignore[misc]
    for preset in PRESETS
    for seed in SLOW
]


EXPERTS = [
    pytest.param(preset, seed, marks=[] if (preset, seed) == ("rloo", 3) else pytest.mark.slow)
    for preset in PRESETS
    for seed in range(1, 7)
]


def write_problem(directory: Path, made: Problem, plan: dict[str, Placement]) -> Path:
    """Data and the compiled plan."""
    directory.mkdir(exist_ok=True)
    write_prompts(directory, count=15)
    write_tokenizer(directory)
    partial = {v: msgspec.convert(msgspec.to_builtins(p), PartialPlacement) for v, p in plan.items()}
    (directory / "problem.json").write_bytes(pretty(msgspec.structs.replace(made, plan=partial)))
    path = directory / "plan.exe.json"
    assert rpegc([str(directory / "problem.json"), "--search", "none", "-q", "-o", str(path)]) == 0
    return path


def served_behind(path: Path) -> dict[str, int]:
    """How many versions the plan's serving operators lag behind, by model."""
    executable = load_plan(path).executable
    training = {v.name for v in executable.problem.graph.vertices if v.role == "training"}
    behind: dict[str, set[int]] = {}
    for node in executable.template:
        if node.kind == "Op" and node.vertex not in training and not node.members:
            for model, offset in node.reads.items():
                behind.setdefault(model, set()).add(-offset)
    return {model: lag for model, lags in behind.items() for lag in [max(lags)] if len(lags) == 1}


def outcome(
    path: Path, trace: Path | None = None
) -> tuple[list[dict[str, Any]], dict[str, dict[str, torch.Tensor]]]:
    """Metrics by step and final weights by model of a run whose trace is verified."""
    metrics = path.parent / "metrics.jsonl"
    assert execute(
        path, Settings(metrics=metrics, save=path.parent, trace=trace), lambda *_: None
    ).trace_verified
    trained = load_plan(path).executable.problem.graph.trainable
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return lines, {m: load_file(path.parent / m / "model.safetensors") for m in trained}


def figures(line: dict[str, Any]) -> dict[str, float]:
    """What the training operators of a step told; the actor's where both have a name."""
    told = sorted(line["vertices"].items(), reverse=True)
    return {name: value for _, found in told for name, value in found.items()}


def compare(lines: list[dict[str, Any]], weights: dict[str, dict[str, torch.Tensor]], plain: Process) -> None:
    """A run against the plain process, which is run here."""
    w, graph = plain.workload, plain.problem.graph
    assert [line["step"] for line in lines] == list(range(len(lines)))
    for k, (line, want) in enumerate(zip(lines, plain.train(len(lines)), strict=True)):
        got, present = figures(line), want.tokens >= 0
        wanted = {n.removeprefix("_"): x for n, x in want.metrics.items() if n != "kl"}
        wanted["prompt_tokens"] = float(present[:, : w.prompt_length].sum(1).double().mean())
        if plain.run.algorithm != "dpo":
            wanted["reward_std"] = float(want.rewards.std(correction=0))
        assert {n: got[n] for n in wanted} == pytest.approx(wanted, rel=1e-7, abs=1e-7)
        assert line["tokens"] == pytest.approx(int(present.sum()))
        assert line["tokens_per_second"] == pytest.approx(line["tokens"] / line["seconds"])
        assert line["staleness"] == {m: min(k, plain.behind.get(m, 0)) for m in graph.trainable}
    spent = {kind: seconds for line in lines for kind, seconds in line["busy_s"].items() if seconds > 0}
    assert spent.keys() - {"Comm", "Reshard"} == {
        "host" if v.model is None else v.role for v in graph.vertices
    }
    updates = len(lines) * w.epochs * w.minibatches
    for model, tensors in weights.items():
        farthest = plain.settings(model).learning_rate * updates
        family, _ = family_of(plain.specs[model])
        assert family is not None
        wanted_tensors = {saved_name(n, family): t.detach() for n, t in plain.weights[model].items()}
        assert tensors.keys() == wanted_tensors.keys()
        for name, values in tensors.items():
            assert torch.allclose(values, wanted_tensors[name], rtol=0, atol=1e-4 * farthest), name


@pytest.mark.parametrize(("preset", "seed"), CASES)
def test_any_plan_equals_the_plain_process(preset: str, seed: int, tmp_path: Path) -> None:
    dice = random.Random(f"{preset} {seed}")
    made = random_problem(dice, dice.choice([2, 3, 4, 6, 8] if seed >= min(SLOW) else [2, 3]), preset)
    held_to_the_plain_process(made, random_plan(dice, made), tmp_path)


@pytest.mark.parametrize(("preset", "seed"), EXPERTS)
def test_any_plan_of_experts_equals_the_plain_process(preset: str, seed: int, tmp_path: Path) -> None:
    dice = random.Random(f"experts {preset} {seed}")
    made = with_experts(dice, random_problem(dice, dice.choice([2, 3, 4, 6, 8]), preset))
    roles = {v.name: v.role for v in made.graph.vertices}
    spread: set[str] = set()
    while not {"training"} <= spread >= {"generation"} & set(roles.values()):
        plan = random_plan(dice, made)
        spread = {roles[v] for v, p in plan.items() if p.expert_parallel > 1}
    held_to_the_plain_process(made, plan, tmp_path)


def held_to_the_plain_process(made: Problem, plan: dict[str, Placement], tmp_path: Path) -> None:
    path = write_problem(tmp_path, made, plan)
    behind = served_behind(path)
    assert behind == {m: made.graph.staleness.get(m, 0) for m in behind}
    compare(*outcome(path), from_problem(made, tmp_path, verify, behind))


def test_the_same_plan_and_seed_give_the_same_bits(tmp_path: Path) -> None:
    dice = random.Random(5)
    made = random_problem(dice, 2, "grpo")
    plan = random_plan(dice, made)
    runs: list[Any] = [outcome(write_problem(tmp_path / name, made, plan)) for name in ("one", "two")]
    assert [figures(line) for line in runs[0][0]] == [figures(line) for line in runs[1][0]]
    for model, tensors in runs[0][1].items():
        assert all(torch.equal(values, runs[1][1][model][name]) for name, values in tensors.items())
