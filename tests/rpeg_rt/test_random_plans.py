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
from tokenizers import Tokenizer
from tokenizers.models import BPE

from calib.hardware import load_hardware
from ir_schema.envelope import pretty
from ir_schema.problem import Optimizer, PartialPlacement, Placement, Problem
from passes.search.legality import legal
from rpeg_rt.engine import unsupported
from rpeg_rt.run import Settings, execute
from rpegc.cli.group import run as rpegc
from tests.rpeg_rt.plans import problem, shared, write_prompts

replace = msgspec.structs.replace
CHARACTERS = "abc0123456789"
QUICK = range(4)
SLOW = range(4, 40)


def seeds() -> list[Any]:
    asked = os.environ.get("RPEG_RANDOM_PLANS")
    if asked:
        return list(range(*map(int, asked.split(":"))))
    return [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow) for seed in SLOW)]


def write_tokenizer(directory: Path) -> None:
    """One token per character and one that ends a response: with so few, responses of every length occur."""
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(CHARACTERS)}, merges=[]))
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(directory / "tokenizer.json"))


def random_lengths(dice: random.Random) -> dict[str, Any]:
    """Longest response, and 3 to 5 quantiles or none."""
    longest, phases = dice.choice([6, 12, 24]), dice.choice([0, 0, 3, 4, 5])
    cuts = [*sorted(dice.sample(range(1, longest), phases - 1)), longest] if phases else []
    fractions = [*sorted(dice.sample(range(1, 20), phases - 1)), 20] if phases else []
    quantiles = tuple((f / 20, t) for f, t in zip(fractions, cuts, strict=True))
    return {"response_length": longest, "length_quantiles": quantiles}


def random_problem(dice: random.Random, slots: int) -> Problem:
    """PPO with other models, rewards, lengths, versions and updates."""
    together = dice.random() < 0.2
    made = problem(
        reward_model=dice.random() < 0.4,
        fuse=not together and dice.random() < 0.5,
        workload={
            "prompts": 12 if slots % 3 == 0 else 8,
            "rollouts": dice.choice([1, 2, 3]),
            "epochs": dice.choice([1, 1, 2]),
            "minibatches": dice.choice([1, 1, 2, 3 if slots % 3 == 0 else 4]),
            **random_lengths(dice),
        },
        run={
            "steps": dice.choice([2, 3]),
            "seed": dice.randrange(100),
            "tokenizer": "tokenizer.json",
            "temperature": dice.choice([1.0, 0.8, 1.3]),
            "top_p": dice.choice([1.0, 1.0, 0.9]),
            "optimizer": Optimizer(learning_rate=1e-3, warmup_steps=dice.choice([0, 3]), weight_decay=0.01),
        },
        device_space=(1, 1, slots),
    )
    heads = 12 if slots % 3 == 0 else 8
    changes: dict[str, Any] = {
        "hidden": 2 * heads,
        "ffn": 24,
        "vocabulary": len(CHARACTERS) + 1 + dice.choice([0, 3]),
        "attention_heads": heads,
        "kv_heads": dice.choice([None, 1, 2, heads // 2]),
        "head_dim": dice.choice([None, 4]),
        "max_positions": 64,
        "qk_norm": dice.random() < 0.4,
        "qkv_bias": dice.random() < 0.4,
    }
    tied, depth = dice.random() < 0.4, {"critic": dice.choice([2, 4])}
    common = dice.choice([2, 4])
    models = {
        name: replace(
            spec, **changes, layers=depth.get(name, common), tied_embeddings=tied and spec.head == "lm"
        )
        for name, spec in made.models.items()
    }
    made = replace(
        made,
        models=models,
        options=replace(made.options, cost_model="megatron", split=dice.choice(["auto", "auto", "never"])),
        hardware=load_hardware("h100"),
        graph=replace(made.graph, staleness={m: dice.choice([0, 0, 0, 1, 2]) for m in made.graph.trainable}),
    )
    return shared(made) if together else made


def random_placement(dice: random.Random, made: Problem, vertex: str, near: list[Placement]) -> Placement:
    """Any legal placement that the engine executes; sometimes where another vertex is."""
    slots = made.device_space[2]
    (v,) = (v for v in made.graph.vertices if v.name == vertex)
    assert v.model is not None
    while True:
        dp, pp, tp = (dice.choice([1, 1, 2, 3, 4, 6, 8]) for _ in range(3))
        size = dp * pp * tp
        origin = dice.randrange(slots)
        if near and dice.random() < 0.5:
            other = dice.choice(near)
            origin, size = other.origin[2], other.extent[2]
            if dice.random() < 0.5:
                dp, pp, tp = other.data_parallel, other.pipeline_parallel, other.tensor_parallel
        if dp * pp * tp != size or origin + size > slots:
            continue
        p = Placement(
            origin=(0, 0, origin),
            extent=(1, 1, size),
            data_parallel=dp,
            pipeline_parallel=pp,
            tensor_parallel=tp,
            microbatches=dice.choice([1, 1, 2, 3, 4]),
            waves=dice.choice([1, 1, 2]) if v.role == "generation" else 1,
        )
        if not legal(made, v, p) and not unsupported(made.models[v.model], p.layout, made.workload):
            return p


def random_plan(dice: random.Random, made: Problem) -> dict[str, Placement]:
    plan: dict[str, Placement] = {}
    for v in made.graph.vertices:
        if v.model is not None:
            plan[v.name] = random_placement(dice, made, v.name, list(plan.values()))
    if made.options.fuse is not None:
        first, second = made.options.fuse
        (v,) = (v for v in made.graph.vertices if v.name == second)
        for mb in (plan[second].microbatches, plan[first].microbatches):
            together = replace(plan[first], microbatches=mb)
            if not legal(made, v, together):
                plan[second] = together
                break
    return plan


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
    return [json.loads(line) for line in metrics.read_text().splitlines()], weights


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
            if isinstance(figures, dict):
                assert b[vertex] == pytest.approx(figures, rel=1e-7, abs=1e-7), vertex
    assert made.run is not None
    updates = len(steps) * made.workload.epochs * made.workload.minibatches
    farthest = made.run.optimizer.learning_rate * updates
    for model, tensors in weights.items():
        assert tensors.keys() == other_weights[model].keys()
        for name, values in tensors.items():
            assert torch.allclose(values, other_weights[model][name], rtol=0, atol=1e-4 * farthest), name
