"""The task of the learning study, by algorithm: naming the largest of three digits (`473=` is answered `7`).

Problem files, prompts and pairs, and what can be had without reading the prompts.
"""

import hashlib
import json
import random
import shutil
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE

from benchmarks.learning.example import EXAMPLES

CHARACTERS = "0123456789="
VERIFIER = "arithmetic_verifier"
HELD_OUT = 300
NEAR = 2


@dataclass(frozen=True)
class Algorithm:
    """What its problem file says beyond what all say, and for how many steps it runs."""

    preset: str
    steps: int
    run: str = ""
    rollouts: int = 4
    minibatches: int = 2


_ACTOR = "optimizer = { learning_rate = 2e-3 }"
_BOTH = """optimizers = {
      actor = { learning_rate = 1e-3, epsilon = 1e-4 }
      critic = { learning_rate = 2e-3, epsilon = 1e-4 }
    }"""
ALGORITHMS = {
    "ppo": Algorithm("ppo", 100, f"kl_coefficient = 0.12\n    {_BOTH}"),
    "ppo_shared": Algorithm("ppo_shared", 60, f"kl_coefficient = 0.12\n    {_ACTOR}"),
    "grpo": Algorithm("grpo", 200, f"kl_coefficient = 0.12\n    {_ACTOR}", minibatches=1),
    "rloo": Algorithm("rloo", 60, f"kl_coefficient = 0.12\n    {_ACTOR}"),
    "reinforce": Algorithm("reinforce", 100, f"kl_coefficient = 0.12\n    {_ACTOR}"),
    "dpo": Algorithm("dpo", 30, "optimizer = { learning_rate = 3e-5 }", rollouts=2, minibatches=1),
}


def problem(name: str, staleness: int, steps: int) -> str:
    """The problem file of an algorithm."""
    a = ALGORITHMS[name]
    arch = f'arch = "tiny-small", vocabulary = {len(CHARACTERS) + 1}'
    trained = f"{arch}, trainable = true, staleness = {staleness}"
    start = 'checkpoint = "random:start"'
    reference = f"model reference : lm {{ {arch}, {start} }}"
    judge = (
        ""
        if name == "dpo"
        else f'verifier digits {{ callable = "{VERIFIER}:verify", seconds_per_response = 1e-5 }}'
    )
    models = [f"model actor : lm {{ {trained}, {start} }}", reference, judge]
    roles = ["actor = actor", "reference = reference"]
    if name == "ppo":
        models.append(f"model critic : scalar {{ {trained} }}")
        roles.append("critic = critic")
    if name == "ppo_shared":
        models = [f"model actor : both {{ {trained}, {start} }}", reference, judge]
        roles = ["actor_critic = actor", "reference = reference"]
    if judge:
        roles.append("reward = digits")
    declared = "\n  ".join(m for m in models if m)
    return f"""rpeg 1

graph learning_{name} {{
  cluster {{ hardware = "cpu-2core", racks = 1, nodes = 1, gpus = 1 }}
  workload {{
    prompts = 64, rollouts = {a.rollouts}, prompt_length = 4, response_length = 2
    minibatches = {a.minibatches}
  }}
  {declared}
  use {a.preset} {{ {", ".join(roles)} }}
  run {{
    steps = {steps}
    prompts = "train.jsonl"
    eval_prompts = "heldout.jsonl"
    tokenizer = "tokenizer.json"
    {a.run}
  }}
}}
"""


def write_data(directory: Path) -> None:
    """All triples of digits with their answers and pairs, some of them held out; a tokenizer of their
    characters; and the verifier.

    What is rejected is wrong by `NEAR` at most, and about as frequent as it is right elsewhere (it is the
    answer of a random triple), so that little can be learned from the answers without the prompts.
    """
    dice = random.Random(0)
    triples = [f"{i:03}" for i in range(1000)]
    dice.shuffle(triples)
    for file, part in (("heldout", triples[:HELD_OUT]), ("train", triples[HELD_OUT:])):
        with (directory / f"{file}.jsonl").open("w") as lines:
            for digits in part:
                wrong = answer = max(digits)
                while not 0 < abs(int(wrong) - int(answer)) <= NEAR:
                    wrong = max(dice.choice(triples))
                record = {"prompt": f"{digits}=", "answer": answer, "chosen": answer, "rejected": wrong}
                lines.write(json.dumps(record) + "\n")
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(CHARACTERS)}, merges=[]))
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    shutil.copy(EXAMPLES / f"{VERIFIER}.py", directory)


def settings(name: str, staleness: int, steps: int, directory: Path) -> str:
    """What tells a run of these settings from others: a digest of its problem, prompts and verifier."""
    digest = hashlib.sha256(problem(name, staleness, steps).encode())
    for file in ("heldout.jsonl", "train.jsonl", "tokenizer.json", f"{VERIFIER}.py"):
        digest.update((directory / file).read_bytes())
    return digest.hexdigest()[:12]


def records(directory: Path, file: str) -> list[dict]:
    """The prompts of `file`, as `write_data` wrote them."""
    lines = (directory / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def blind(name: str, directory: Path) -> float:
    """What can be had on held-out prompts without reading them: the reward of the best constant answer, or
    (DPO) the share preferred rightly by which of two answers is chosen oftener in training."""
    held_out = records(directory, "heldout")
    if name != "dpo":
        answers = Counter(r["answer"] for r in held_out)
        return max(answers.values()) / len(held_out)
    pairs = Counter((r["chosen"], r["rejected"]) for r in records(directory, "train"))
    margins = [pairs[c, w] - pairs[w, c] for c, w in ((r["chosen"], r["rejected"]) for r in held_out)]
    return statistics.mean((m > 0) + 0.5 * (m == 0) for m in margins)
