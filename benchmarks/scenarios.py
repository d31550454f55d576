"""The problems of the studies, as functions of the paper's figures (semantics: Evaluation).

All are PPO on GH200 under cost model `paper`, in its decided form: K_eval 8 steps, staleness 1 of actor and
critic, and responses of which half have ended by L_r/4 and 85 % by L_r/2. A size triple is that of actor,
critic and reward in billions of parameters; the reference is of the actor's.

What the paper does not print is assumed, here alone: the constants of the hardware
(`benchmarks/hardware/gh200.json`, which stays as it is so that studies can be repeated), the topologies of
the scaling studies (`TOPOLOGY`), a prompt length of 128 in weak scaling, the size of the reference, and
CodeLlama 34B as the 34B of the LLaMA-2 family.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ir_schema.base import Objective
from ir_schema.problem import Problem, SearchSpace
from rpegc.frontend import load

HERE = Path(__file__).parent
Sizes = tuple[int, int, int]
Topology = tuple[int, int, int]

ARCHITECTURE = {
    7: 'arch = "llama-2-7b"',
    13: 'arch = "llama-2-13b"',
    34: 'arch = "codellama-34b"',
    70: 'arch = "llama-2-70b"',
    175: "layers = 96, hidden = 12288, ffn = 49152, vocabulary = 50257, attention_heads = 96, "
    "gated_ffn = false",
}

TOPOLOGY: dict[int, Topology] = {8: (1, 2, 4), 16: (1, 4, 4), 32: (1, 8, 4), 64: (2, 8, 4), 128: (2, 16, 4)}
"""Racks, nodes per rack and GPUs per node of the weak and the strong scaling study, by number of GPUs."""

REGIMES = ((512, 128), (256, 384), (128, 896))
"""(B, L_r) of the weak scaling study."""

SWEEPS: dict[str, tuple[tuple[int, Sizes], ...]] = {
    "actor": ((8, (7, 7, 7)), (16, (13, 7, 7)), (32, (34, 7, 7)), (64, (70, 7, 7))),
    "critic-reward": ((8, (7, 7, 7)), (16, (7, 13, 13)), (32, (7, 34, 34)), (64, (7, 70, 70))),
    "joint": ((16, (7, 7, 7)), (32, (13, 13, 7)), (64, (34, 34, 13)), (128, (70, 70, 13))),
}
"""(GPUs, sizes) of the weak scaling study: which models grow with the machine."""

STRONG = (8, 16, 32, 64, 128)
"""GPUs of the strong scaling study."""

NOMINAL_BYTES = 96 * 2**30
"""Memory of a GH200 by its name; what its driver offers, and the hardware file holds, is 0.4 % less."""

STABILITY = (64, 128, 256, 512, 1024)
"""GPUs of the stability study (Table X)."""

CONVERGENCE = (256, 512, 1024, 2048)
"""GPUs of the convergence study."""

ABLATION: dict[str, tuple[Topology, Sizes, int, tuple[int, int], float | None]] = {
    "MEM-TIGHT": ((1, 4, 4), (13, 13, 13), 128, (128, 896), 50e9),
    "WIDE": ((1, 32, 4), (7, 7, 7), 1024, (128, 384), None),
    "HETERO": ((1, 8, 4), (34, 7, 7), 512, (128, 128), None),
    "DEEP": ((2, 8, 4), (7, 70, 70), 512, (128, 128), None),
}
"""Topology, sizes, B, (L_p, L_r) and bytes of a GPU (None: the 102 GB of a GH200) of the ablations."""

_SCALING: dict[int, tuple[Topology, Sizes, int]] = {
    64: ((2, 8, 4), (13, 13, 7), 1024),
    128: ((2, 16, 4), (34, 13, 13), 1024),
    256: ((4, 16, 4), (70, 34, 13), 1024),
    512: ((8, 16, 4), (70, 70, 34), 2048),
    1024: ((16, 16, 4), (175, 70, 34), 2048),
    2048: ((32, 16, 4), (70, 70, 70), 2048),
}
_CONVERGENCE: dict[int, tuple[Topology, int]] = {
    256: ((4, 16, 4), 7),
    512: ((8, 16, 4), 13),
    1024: ((16, 16, 4), 34),
    2048: ((32, 16, 4), 70),
}


def ppo(
    name: str,
    topology: Topology,
    sizes: Sizes,
    prompts: int,
    lengths: tuple[int, int],
    *,
    memory_bytes: float | None = None,
) -> Problem:
    """PPO of models of `sizes` on a machine of `topology`, B `prompts` a step, `lengths` (L_p, L_r) [tokens].

    `memory_bytes` of a GPU; None for the whole of a GH200. Raises KeyError for an unknown size.
    """
    racks, nodes, gpus = topology
    actor, critic, reward = (ARCHITECTURE[size] for size in sizes)
    prompt, response = lengths
    text = f"""rpeg 1
graph "{name}" {{
  options {{ cost_model = "paper", steps = 8 }}
  cluster {{ hardware = "hardware/gh200.json", racks = {racks}, nodes = {nodes}, gpus = {gpus} }}
  workload {{
    prompts = {prompts}, rollouts = 1, prompt_length = {prompt}, response_length = {response}
    length_quantiles = [[0.50, {response // 4}], [0.85, {response // 2}], [1.0, {response}]]
  }}
  model actor : lm {{ {actor}, trainable = true, staleness = 1 }}
  model critic : scalar {{ {critic}, trainable = true, staleness = 1 }}
  model reference : lm {{ {actor} }}
  model reward : scalar {{ {reward} }}
  use ppo {{ actor = actor, critic = critic, reference = reference, reward = reward }}
}}
"""
    problem = load(text.encode(), f"{name}.rpeg", HERE).problem
    if memory_bytes is None:
        return problem
    hardware = msgspec.structs.replace(problem.hardware, memory_bytes=memory_bytes)
    return msgspec.structs.replace(problem, hardware=hardware)


def with_objective(problem: Problem, objective: Objective) -> Problem:
    """`problem` searched for `objective`."""
    search = msgspec.structs.replace(problem.search or SearchSpace(), objective=objective)
    return msgspec.structs.replace(problem, search=search)


def scaling(gpus: int) -> Problem:
    """Table X, 64 to 1,024 GPUs; the 2,048 are those of the convergence study. Raises KeyError for others."""
    topology, sizes, prompts = _SCALING[gpus]
    return ppo(f"scaling-{gpus}", topology, sizes, prompts, (128, 384))


def convergence(gpus: int) -> Problem:
    """All models of one size: 7B on 256 GPUs, 13B on 512, 34B on 1,024, 70B on 2,048."""
    topology, size = _CONVERGENCE[gpus]
    return ppo(f"convergence-{gpus}", topology, (size, size, size), 2048, (128, 384))


def strong(gpus: int, memory_bytes: float | None = None) -> Problem:
    """13B models, B 1024, L_p 128, L_r 384, on 8 to 128 GPUs; `memory_bytes` as of `ppo`."""
    sizes = (13, 13, 13)
    return ppo(f"strong-{gpus}", TOPOLOGY[gpus], sizes, 1024, (128, 384), memory_bytes=memory_bytes)


def weak() -> Iterator[tuple[dict[str, object], Problem]]:
    """The 36 cases of weak scaling, each with its labels: sweep, GPUs, sizes, B and L_r."""
    for sweep, points in SWEEPS.items():
        for prompts, response in REGIMES:
            for gpus, sizes in points:
                problem = ppo(
                    f"weak-{sweep}-{gpus}-{response}", TOPOLOGY[gpus], sizes, prompts, (128, response)
                )
                labels = {"sweep": sweep, "gpus": gpus, "sizes": "/".join(map(str, sizes))}
                yield labels | {"prompts": prompts, "response": response}, problem


def ablation(name: str) -> Problem:
    """MEM-TIGHT, WIDE, HETERO or DEEP (Table XI). Raises KeyError for others."""
    topology, sizes, prompts, lengths, memory = ABLATION[name]
    return ppo(name.lower(), topology, sizes, prompts, lengths, memory_bytes=memory)
