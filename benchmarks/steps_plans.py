"""The plans whose steps are measured (`benchmarks.steps`): two small problems with several plans each, pinned
in `plan` blocks: placements, layouts, microbatches, waves and staleness on one, two and four workers.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ir_schema.problem import Placement

PROMPT_LENGTH = 16
HORIZON = 16
"""Steps that are predicted together: what is measured are steps in between, so that how the first begins and
the last ends is to count little."""

INFERENCES = ("ref_inf", "reward_inf", "critic_inf")
TRAININGS = ("actor_train", "critic_train")
PPO = ("actor_gen", *INFERENCES, *TRAININGS)
GRPO = ("actor_gen", "ref_inf", "reward_inf", "actor_train")

Plan = dict[str, Placement]


def at(first: int, dp: int = 1, pp: int = 1, tp: int = 1, mb: int = 1, waves: int = 1) -> Placement:
    """An operator on neighbouring workers from `first` on."""
    return Placement(
        origin=(0, 0, first), extent=(1, 1, dp * pp * tp), data_parallel=dp, pipeline_parallel=pp,
        tensor_parallel=tp, microbatches=mb, waves=waves,
    )  # fmt: skip


def everywhere(operators: Iterable[str], placement: Placement, **others: Placement) -> Plan:
    """All operators in one placement, but for `others`."""
    return dict.fromkeys(operators, placement) | others


@dataclass(frozen=True)
class Case:
    """A plan of a problem: on how many workers, and with which staleness."""

    problem: str
    name: str
    workers: int
    plan: Plan
    staleness: int = 0


def _ppo() -> list[Case]:
    """A policy and a critic of the same size, a reference and a reward model."""
    critic = {"critic_inf": at(1), "reward_inf": at(1), "critic_train": at(1)}
    beside = {v: at(2, 2) for v in ("critic_inf", "reward_inf", "critic_train")}
    parts = dict.fromkeys((*INFERENCES, *TRAININGS), at(0, mb=2))
    tensor = dict.fromkeys(TRAININGS, at(0, tp=2))
    later = dict.fromkeys((*INFERENCES, *TRAININGS), at(2, 2))
    plans = (
        ("alone", 1, everywhere(PPO, at(0)), 0),
        ("alone, 2 microbatches", 1, everywhere(PPO, at(0), **parts), 0),
        ("alone, 4 waves", 1, everywhere(PPO, at(0), actor_gen=at(0, waves=4)), 0),
        ("two replicas", 2, everywhere(PPO, at(0, 2)), 0),
        ("two tensor ranks", 2, everywhere(PPO, at(0, tp=2)), 0),
        ("two stages", 2, everywhere(PPO, at(0, pp=2, mb=2)), 0),
        ("replicas generate, tensor ranks train", 2, everywhere(PPO, at(0, 2), **tensor), 0),
        ("critic on its own worker", 2, everywhere(PPO, at(0), **critic), 0),
        ("generation apart, one version behind", 2, everywhere(PPO, at(1), actor_gen=at(0)), 1),
        ("four replicas", 4, everywhere(PPO, at(0, 4)), 0),
        ("two replicas of two tensor ranks", 4, everywhere(PPO, at(0, 2, tp=2)), 0),
        ("two replicas of two stages", 4, everywhere(PPO, at(0, 2, pp=2, mb=2)), 0),
        ("critic on its own two workers", 4, everywhere(PPO, at(0, 2), **beside), 0),
        ("generation on two, one version behind", 4, everywhere(PPO, at(0, 2), **later), 1),
    )  # fmt: skip
    return [Case("ppo", *plan) for plan in plans]


def _grpo() -> list[Case]:
    """A wider policy with its reference and a reward model, and longer responses."""
    plans = (
        ("alone", 1, everywhere(GRPO, at(0)), 0),
        ("two replicas", 2, everywhere(GRPO, at(0, 2)), 0),
        ("two tensor ranks", 2, everywhere(GRPO, at(0, tp=2)), 0),
        ("scores apart", 2, everywhere(GRPO, at(0), ref_inf=at(1), reward_inf=at(1)), 0),
        ("generation apart, one version behind", 2, everywhere(GRPO, at(1), actor_gen=at(0)), 1),
        ("four replicas", 4, everywhere(GRPO, at(0, 4)), 0),
    )  # fmt: skip
    return [Case("grpo", *plan) for plan in plans]


def cases() -> list[Case]:
    """All plans."""
    return [*_ppo(), *_grpo()]


_SMALL = "layers = 2, hidden = 128, ffn = 352, vocabulary = 512, attention_heads = 4, kv_heads = 2"
_WIDE = "layers = 2, hidden = 256, ffn = 768, vocabulary = 1024, attention_heads = 8, kv_heads = 4"
_PROBLEMS = {
    "ppo": f"""
  workload {{ prompts = 64, rollouts = 4, prompt_length = {PROMPT_LENGTH}, response_length = 16 }}
  model actor : lm {{ {_SMALL}, bytes_per_parameter = 4, trainable = true, staleness = STALENESS }}
  model critic : scalar {{ {_SMALL}, bytes_per_parameter = 4, trainable = true }}
  model reference : lm {{ {_SMALL}, bytes_per_parameter = 4 }}
  model judge : scalar {{ {_SMALL}, bytes_per_parameter = 4 }}
  use ppo {{ actor = actor, critic = critic, reference = reference, reward = judge }}""",
    "grpo": f"""
  workload {{ prompts = 32, rollouts = 4, prompt_length = {PROMPT_LENGTH}, response_length = 32 }}
  model actor : lm {{ {_WIDE}, bytes_per_parameter = 4, trainable = true, staleness = STALENESS }}
  model reference : lm {{ {_WIDE}, bytes_per_parameter = 4 }}
  model judge : scalar {{ {_WIDE}, bytes_per_parameter = 4 }}
  use grpo {{ actor = actor, reference = reference, reward = judge }}""",
}


def source(case: Case, hardware: Path) -> str:
    """The case as a problem file."""
    blocks = "".join(f"\n  plan {operator} {{ {_keys(p)} }}" for operator, p in case.plan.items())
    return (
        f"rpeg 1\ngraph {case.problem} {{\n  options {{ steps = {HORIZON} }}\n"
        f"  cluster {{ hardware = {json.dumps(str(hardware))}, racks = 1, nodes = 1, gpus = {case.workers} }}"
        f"{_PROBLEMS[case.problem].replace('STALENESS', str(case.staleness))}"
        f'\n  run {{ prompts = "prompts.jsonl" }}{blocks}\n}}\n'
    )


def _keys(placement: Placement) -> str:
    fields = msgspec.to_builtins(placement)
    return ", ".join(f"{k} = {json.dumps(v)}" for k, v in fields.items())


def write_prompts(path: Path) -> None:
    """Prompts of exactly the length that the problems have, so that nothing is padded."""
    lines = (json.dumps({"prompt": f"{i:0{PROMPT_LENGTH}}"}) for i in range(64))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
