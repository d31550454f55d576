"""Does every algorithm learn, and does staleness cost anything?

    python benchmarks/learning/study.py [--algorithm ppo dpo …] [--seeds 0 1 2 3 4] [--small] [--output DIR]

A two-layer model that starts from random weights learns sums (`47+38=` is answered `85`): by rewards for
sampled answers, or (DPO) from pairs of a right and a wrong answer. Every algorithm runs with staleness 0 and
1, with each seed, on two CPU workers. Written are

    algorithms.csv   algorithm, staleness, seed, step, and the reward and share of right answers (DPO: margin
                     and share of pairs preferred rightly) on held-out prompts after that many steps
    algorithms.png   means over the seeds with their standard errors

and what came out is printed. `--small`: one seed and few steps, to see that it works.
"""

import argparse
import csv
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
COLUMNS = ("algorithm", "staleness", "seed", "step", "reward", "correct")
CHARACTERS = "0123456789+="
HELD_OUT = 400
LARGEST = 50
UNSATURATED = 0.95
CLOSE = 0.01


@dataclass(frozen=True)
class Algorithm:
    """What its problem file says beyond what all say, and for how many steps it runs."""

    preset: str
    steps: int
    run: str = ""
    rollouts: int = 4
    minibatches: int = 4


_ACTOR = "optimizer = { learning_rate = 2e-3 }"
_BOTH = """optimizers = {
      actor = { learning_rate = 1e-3, epsilon = 1e-4 }
      critic = { learning_rate = 2e-3, epsilon = 1e-4 }
    }"""
ALGORITHMS = {
    "ppo": Algorithm("ppo", 150, f"kl_coefficient = 0.02\n    {_BOTH}"),
    "ppo_shared": Algorithm("ppo_shared", 150, f"kl_coefficient = 0.02\n    {_ACTOR}"),
    "grpo": Algorithm("grpo", 150, _ACTOR),
    "rloo": Algorithm("rloo", 150, _ACTOR),
    "reinforce": Algorithm("reinforce", 150, _ACTOR),
    "dpo": Algorithm("dpo", 150, _ACTOR, rollouts=2, minibatches=1),
}
SMALL_STEPS = 20


def problem(name: str, staleness: int, steps: int) -> str:
    """The problem file of an algorithm."""
    a = ALGORITHMS[name]
    arch = f'arch = "tiny-small", vocabulary = {len(CHARACTERS) + 1}'
    trained = f"{arch}, trainable = true, staleness = {staleness}"
    start = 'checkpoint = "random:start"'
    reference = f"model reference : lm {{ {arch}, {start} }}"
    judge = (
        "" if name == "dpo" else ('verifier sums { callable = "sums:verify", seconds_per_response = 1e-5 }')
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
        roles.append("reward = sums")
    declared = "\n  ".join(m for m in models if m)
    return f"""rpeg 1

graph learning_{name} {{
  cluster {{ hardware = "cpu-2core", racks = 1, nodes = 1, gpus = 2 }}
  workload {{
    prompts = 128, rollouts = {a.rollouts}, prompt_length = 6, response_length = 3
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
    """Sums below 100 with their answers and pairs, some of them held out; a tokenizer of their characters;
    and the verifier."""
    dice = random.Random(0)
    sums = [(a, b) for a in range(LARGEST) for b in range(LARGEST)]
    dice.shuffle(sums)
    for file, part in (("heldout", sums[:HELD_OUT]), ("train", sums[HELD_OUT:])):
        with (directory / f"{file}.jsonl").open("w") as lines:
            for a, b in part:
                wrong = a + b
                while wrong == a + b:
                    wrong = min(99, max(0, a + b + dice.choice([-20, -10, -2, -1, 1, 2, 10, 20])))
                record = {"prompt": f"{a:02}+{b:02}=", "answer": f"{a + b:02}"}
                record |= {"chosen": record["answer"], "rejected": f"{wrong:02}"}
                lines.write(json.dumps(record) + "\n")
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(CHARACTERS)}, merges=[]))
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    shutil.copy(HERE / "sums.py", directory)


def compiled(name: str, staleness: int, steps: int, directory: Path) -> Path:
    """The plan of an algorithm."""
    source = directory / f"{name}-{staleness}.rpeg"
    source.write_text(problem(name, staleness, steps))
    plan = source.with_suffix(".exe.json")
    subprocess.run([str(BIN / "rpegc"), str(source), "-O1", "-q", "-o", str(plan)], check=True)
    return plan


def examined(plan: Path, seed: int, every: int) -> Iterator[dict]:
    """The held-out evaluations of one run."""
    metrics = plan.with_name(f"{plan.stem}-{seed}.jsonl")
    command = [BIN / "rpeg-rt", plan, "--seed", seed, "--metrics", metrics, "--eval-every", every, "-q"]
    subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL)
    for line in map(json.loads, metrics.read_text().splitlines()):
        if "evaluation" in line:
            yield {f: line["evaluation"][f] for f in ("step", "reward", "correct")}


def measure(row: dict) -> float:
    """What an algorithm is to raise, at most 1: the reward, or with pairs the share preferred rightly."""
    return row["correct"] if row["algorithm"] == "dpo" else row["reward"]


def over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error (0 for one seed)."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.mean(values), error


def at_step(rows: Iterable[dict], name: str, staleness: int, step: int) -> list[float]:
    """The measure of every seed."""
    wanted = (name, staleness, step)
    return [measure(r) for r in rows if (r["algorithm"], r["staleness"], r["step"]) == wanted]


def conclusion(rows: Sequence[dict], name: str) -> str:
    """What an algorithm came to, in a sentence: how far it got, and what staleness cost."""
    last = max(r["step"] for r in rows if r["algorithm"] == name)
    before, _ = over_seeds(at_step(rows, name, 0, 0))
    (fresh, fresh_error), (stale, stale_error) = (over_seeds(at_step(rows, name, s, last)) for s in (0, 1))
    difference, error = stale - fresh, (fresh_error**2 + stale_error**2) ** 0.5
    verdict = (
        f"within {CLOSE:.0%}"
        if abs(difference) <= CLOSE * fresh
        else "within the standard error of the difference"
        if abs(difference) <= error
        else "beyond the standard error of the difference"
    )
    saturated = "" if fresh < UNSATURATED else " (saturated)"
    return (
        f"{name}: held out {before:.3f} before, {fresh:.3f} +- {fresh_error:.3f} after {last} steps"
        f"{saturated}; staleness 1 {stale:.3f} +- {stale_error:.3f}: "
        f"{verdict} ({difference:+.3f} +- {error:.3f})"
    )


def plot(path: Path, rows: Sequence[dict]) -> None:
    """A panel per algorithm: means over the seeds, by staleness."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(r["algorithm"] for r in rows))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure, panels = plt.subplots(lines, columns, figsize=(3.4 * columns, 2.8 * lines), squeeze=False)
    for panel, name in zip(panels.flat, names, strict=False):
        steps = sorted({r["step"] for r in rows if r["algorithm"] == name})
        for staleness in (0, 1):
            points = [over_seeds(at_step(rows, name, staleness, s)) for s in steps]
            means, errors = zip(*points, strict=True)
            panel.errorbar(steps, means, errors, lw=1, capsize=2, label=f"staleness {staleness}")
        kind = "preference accuracy" if name == "dpo" else "reward"
        panel.set(title=name, xlabel="RL step", ylabel=f"held-out {kind}", ylim=(-0.02, 1.02))
    panels.flat[0].legend(fontsize=8)
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithm", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--small", action="store_true", help="one seed and few steps")
    parser.add_argument("--output", type=Path, default=HERE)
    arguments = parser.parse_args()
    seeds = arguments.seeds[:1] if arguments.small else arguments.seeds
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        write_data(directory)
        for name in arguments.algorithm:
            steps = SMALL_STEPS if arguments.small else ALGORITHMS[name].steps
            for staleness in (0, 1):
                plan = compiled(name, staleness, steps, directory)
                for seed in seeds:
                    labels = {"algorithm": name, "staleness": staleness, "seed": seed}
                    rows += [labels | figures for figures in examined(plan, seed, max(1, steps // 10))]
            print(conclusion(rows, name), flush=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (arguments.output / "algorithms.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in r.items()} for r in rows)
    plot(arguments.output / "algorithms.png", rows)


if __name__ == "__main__":
    main()
