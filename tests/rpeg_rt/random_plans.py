"""Random problems of every algorithm, and random legal plans of them."""

import random
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer
from tokenizers.models import BPE

from calib.hardware import load_hardware
from ir_schema.problem import Optimizer, Placement, Problem
from passes.search.legality import legal
from rpeg_rt.engine import unsupported
from tests.rpeg_rt.plans import from_pairs, problem, shared, without_critic

replace = msgspec.structs.replace
CHARACTERS = "abc0123456789"


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


def random_problem(dice: random.Random, slots: int, preset: str | None = None) -> Problem:
    """Other models, rewards, lengths, versions and updates: of `preset`, or PPO on one or two backbones."""
    together = dice.random() < 0.2 if preset is None else preset == "ppo_shared"
    made = problem(
        reward_model=dice.random() < 0.4,
        fuse=preset in (None, "ppo") and not together and dice.random() < 0.5,
        workload={
            "prompts": 12 if slots % 3 == 0 else 8,
            "rollouts": dice.choice([2, 3] if preset in ("grpo", "rloo") else [1, 2, 3]),
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
        dice.choice(["qk_norm", "qkv_bias"]): dice.random() < 0.8,
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
    if preset in (None, "ppo", "ppo_shared"):
        return shared(made) if together else made
    return random_kin(dice, made, preset)


def random_kin(dice: random.Random, made: Problem, algorithm: str) -> Problem:
    """An algorithm without values, with other hyperparameters, from a problem of PPO."""
    assert made.run is not None
    if algorithm == "dpo":
        run = replace(made.run, algorithm="dpo", temperature=1.0, top_p=1.0, dpo_beta=dice.choice([0.1, 0.5]))
        made = replace(made, workload=replace(made.workload, rollouts=2, length_quantiles=()))
        return from_pairs(replace(made, run=run))
    run = replace(
        made.run,
        algorithm=algorithm,
        kl_coefficient=dice.choice([0.0, 0.05]),
        kl_estimator=dice.choice([None, "k2", "k3"]),
        clip_ratio=dice.choice([0.2, 0.01]),
    )
    if algorithm == "grpo":
        run = replace(run, scale_rewards=dice.choice(["group", "none"]))
    if algorithm == "reinforce":
        run = replace(run, baseline_decay=dice.choice([0.9, 0.5, 0.0]))
    return without_critic(replace(made, run=run))


def random_degrees(dice: random.Random, gpus: int) -> list[int]:
    """Data, pipeline, tensor and context parallelism of as many GPUs: a prime factor goes to any of them."""
    degrees = [1, 1, 1, 1]
    for prime in (2, 3, 5, 7):
        while gpus % prime == 0:
            degrees[dice.randrange(4)] *= prime
            gpus //= prime
    return degrees


def random_placement(dice: random.Random, made: Problem, vertex: str, near: list[Placement]) -> Placement:
    """Any legal placement that the engine executes; sometimes where another vertex is."""
    slots = made.device_space[2]
    (v,) = (v for v in made.graph.vertices if v.name == vertex)
    assert v.model is not None
    while True:
        size = dice.choice([n for n in (1, 2, 2, 3, 4, 4, 6, 8) if n <= slots])
        origin = dice.randrange(slots // size) * size
        other = dice.choice(near) if near and dice.random() < 0.5 else None
        if other is not None:
            origin, size = other.origin[2], other.extent[2]
        dp, pp, tp, cp = random_degrees(dice, size)
        if other is not None and dice.random() < 0.5:
            dp, pp, tp = other.data_parallel, other.pipeline_parallel, other.tensor_parallel
            cp = other.context_parallel
        p = Placement(
            origin=(0, 0, origin),
            extent=(1, 1, size),
            data_parallel=dp,
            pipeline_parallel=pp,
            tensor_parallel=tp,
            microbatches=dice.choice([1, 1, 2, 3, 4]),
            waves=dice.choice([1, 1, 2]) if v.role == "generation" else 1,
            context_parallel=cp,
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
