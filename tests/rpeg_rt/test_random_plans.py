"""Random problems under random legal plans, from the problem file through the compiler to a verified run.

For one problem all plans give the same rewards, and the same parameters up to the order of sums. The
yardstick is the plan that puts everything on one GPU. RPEG_RANDOM_PLANS=first:last asks for other seeds.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from ir_schema.envelope import pretty
from ir_schema.problem import PartialPlacement, Placement, Problem
from rpeg_rt.run import Settings, execute
from rpegc.cli.group import run as rpegc
from tests.rpeg_rt.plans import write_prompts
from tests.rpeg_rt.random_plans import random_plan, random_problem, write_tokenizer

replace = msgspec.structs.replace
QUICK = range(2)
SLOW = range(2, 40)


def seeds() -> list[Any]:
    asked = os.environ.get("RPEG_RANDOM_PLANS")
    if asked:
        return list(range(*map(int, asked.split(":"))))
    return [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow) for seed in SLOW)]


def outcome(directory: Path, made: Problem, plan: dict[str, Placement]) -> tuple[list[dict[str, Any]], Any]:
    """Compile the written plan, run it, check its trace; figures by step and final weights."""
    directory.mkdir()
    write_prompts(directory, count=15)
    write_tokenizer(directory)
    partial = {v: msgspec.convert(msgspec.to_builtins(p), PartialPlacement) for v, p in plan.items()}
    (directory / "problem.json").write_bytes(pretty(replace(made, plan=partial)))
    path = directory / "plan.exe.json"
    assert rpegc([str(directory / "problem.json"), "--search", "none", "-q", "-o", str(path)]) == 0
    metrics = directory / "metrics.jsonl"
    execute(path, Settings(metrics=metrics, save=directory), lambda *_: None)
    weights = {m: load_file(directory / m / "model.safetensors") for m in made.graph.trainable}
    return [json.loads(line)["vertices"] for line in metrics.read_text().splitlines()], weights


@pytest.mark.parametrize("seed", seeds())
def test_any_plan_gives_what_one_gpu_gives(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    made = random_problem(dice, dice.choice([2, 3, 4, 6, 8]))
    alone = Placement(
        origin=(0, 0, 0), extent=(1, 1, 1), data_parallel=1, pipeline_parallel=1, tensor_parallel=1,
        microbatches=1,
    )  # fmt: skip
    placed = [v.name for v in made.graph.vertices if v.model is not None]
    steps, weights = outcome(tmp_path / "one", made, dict.fromkeys(placed, alone))
    other_steps, other_weights = outcome(tmp_path / "other", made, random_plan(dice, made))
    for a, b in zip(steps, other_steps, strict=True):
        for vertex, figures in a.items():
            assert b[vertex] == pytest.approx(figures, rel=1e-7, abs=1e-7), vertex
    assert made.run is not None
    updates = len(steps) * made.workload.epochs * made.workload.minibatches
    farthest = made.run.optimizer.learning_rate * updates
    for model, tensors in weights.items():
        assert tensors.keys() == other_weights[model].keys()
        for name, values in tensors.items():
            assert torch.allclose(values, other_weights[model][name], rtol=0, atol=1e-4 * farthest), name
