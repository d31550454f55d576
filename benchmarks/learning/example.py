"""Does the shipped example learn? Five seeds of it, on real workers, with held-out prompts.

    python benchmarks/learning/example.py [--seeds 0 1 2 3 4] [--steps N]

compiles `examples/ppo_tiny.rpeg`, runs it once per seed and writes beside this script

    curves.csv     seed, step, mean reward of the step's responses, tokens per response, KL to the reference
    heldout.csv    seed, and the reward and share of correct answers on held-out prompts before and after
    learning.png   both

and prints how many standard errors (over the seeds) the held-out reward has gained.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
CURVE = ("seed", "step", "reward", "response_tokens", "kl_to_reference")
HELD_OUT = ("seed", "reward_before", "reward_after", "correct_before", "correct_after")


def run_seed(plan: Path, seed: int, steps: int | None) -> tuple[list[dict], dict]:
    """Curve and held-out figures of one run."""
    metrics = plan.with_name(f"metrics{seed}.jsonl")
    command = [
        BIN / "rpeg-rt",
        plan,
        "--data",
        EXAMPLES,
        "--seed",
        str(seed),
        "--metrics",
        metrics,
        "--json",
        "-q",
    ]
    if steps is not None:
        command += ["--steps", str(steps)]
    done = subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, text=True)
    before, after = json.loads(done.stdout)["evaluations"]
    curve = []
    for line in map(json.loads, metrics.read_text().splitlines()):
        if "evaluation" in line:
            continue
        figures = line["vertices"]["actor_train"]
        curve.append({"seed": seed, "step": line["step"] + 1} | {n: figures[n] for n in CURVE[2:]})
    held_out = {"seed": seed}
    for figure in ("reward", "correct"):
        held_out |= {f"{figure}_before": before[figure], f"{figure}_after": after[figure]}
    return curve, held_out


def write_csv(path: Path, columns: tuple[str, ...], rows: list[dict]) -> None:
    """Rows as CSV, numbers to four decimals."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )


def standard_errors(held_out: list[dict]) -> tuple[float, float]:
    """Mean gain of the held-out reward and its standard error over the seeds."""
    gains = [row["reward_after"] - row["reward_before"] for row in held_out]
    return statistics.mean(gains), statistics.stdev(gains) / len(gains) ** 0.5


def best_constant() -> float:
    """The greatest mean held-out reward of always giving one answer."""
    sys.path.insert(0, str(EXAMPLES))
    from arithmetic_verifier import verify

    path = EXAMPLES / "data" / "arithmetic_heldout.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    answers = {r["answer"] for r in records}
    return max(statistics.mean(verify(r["prompt"], a, r) for r in records) for a in answers)


def plot(path: Path, curves: list[dict], held_out: list[dict], constant: float) -> None:
    """Reward over steps by seed, with held-out points at both ends."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    last = max(row["step"] for row in curves)
    for i, ends in enumerate(held_out):
        mine = [row for row in curves if row["seed"] == ends["seed"]]
        colour = f"C{i}"
        axes.plot(
            [r["step"] for r in mine],
            [r["reward"] for r in mine],
            color=colour,
            lw=1,
            label=f"seed {ends['seed']}",
        )
        axes.plot([0, last], [ends["reward_before"], ends["reward_after"]], "o", color=colour, ms=5)
    axes.axhline(constant, color="grey", ls="--", lw=1, label="best constant answer")
    axes.set(
        xlabel="RL step",
        ylabel="mean reward",
        ylim=(-0.02, 1.02),
        title="Lines: training prompts. Points: held-out prompts",
    )
    axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, help="RL steps (default: those of the example)")
    arguments = parser.parse_args()
    curves: list[dict] = []
    held_out: list[dict] = []
    with tempfile.TemporaryDirectory() as directory:
        plan = Path(directory) / "plan.exe.json"
        subprocess.run(
            [str(BIN / "rpegc"), str(EXAMPLES / "ppo_tiny.rpeg"), "-O2", "-o", str(plan)], check=True
        )
        for seed in arguments.seeds:
            curve, ends = run_seed(plan, seed, arguments.steps)
            curves += curve
            held_out.append(ends)
            print(
                f"seed {seed}: held-out reward {ends['reward_before']:.3f} before, "
                f"{ends['reward_after']:.3f} after; {ends['correct_after']:.1%} right",
                flush=True,
            )
    constant = best_constant()
    write_csv(HERE / "curves.csv", CURVE, curves)
    write_csv(HERE / "heldout.csv", HELD_OUT, held_out)
    plot(HERE / "learning.png", curves, held_out, constant)
    print(f"best constant answer: {constant:.3f}")
    if len(held_out) > 1:
        gain, error = standard_errors(held_out)
        ratio = f"{gain / error:.0f} standard errors" if error else "without spread"
        print(f"gain {gain:.3f} +- {error:.3f} over {len(held_out)} seeds: {ratio}")


if __name__ == "__main__":
    main()
