"""GRPO of one tiny model by this runtime and by TRL's trainer, side by side, on one CPU thread each.

Both start from one checkpoint of random weights and have the same batch, lengths, sampling, KL coefficient,
optimizer and precision, and end responses at the same token. One worker is set against one process.
Both keep activations for the backward pass, as `rpeg-rt` does where memory suffices and TRL on request, and
both recompute them, as TRL does by default and `rpeg-rt` where it does not know that there is memory: under
cost model `paper`. Runs of the systems alternate, so that what else the machine does falls on all alike.

Per step, as medians over the steps of all rounds but the first two of each run: wall time, that in generation
and the rest, CPU time (of all processes of a system; on a busy machine the figure to trust), and tokens of
prompts and responses per second of wall time and of CPU time. It needs Linux.

TRL lives in an interpreter of its own: `python -m venv DIR; DIR/bin/pip install trl torch==2.13.0`, then
`--trl-python DIR/bin/python`.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks.study import HERE, Row, provenance
from rpeg_rt.metrics import StepMetrics
from rpeg_rt.run import Settings, execute
from rpeg_rt.trace import software_versions
from rpegc.cli.group import run as rpegc
from rpegc.table import csv_bytes

PEER = HERE / "peers" / "trl_grpo.py"
MODEL = {"layers": 4, "hidden": 128, "ffn": 352, "attention_heads": 4, "kv_heads": 2}
WORKLOAD = {"prompts": 8, "rollouts": 8, "prompt_length": 32, "response_length": 64}
FIRST = 2
"""Steps of a run that are not counted."""

Step = dict[str, Any]


@dataclass
class System:
    """A system, what TRL is told beside the rest or under which cost model this runtime's plan is made, and
    its steps that count."""

    name: str
    options: dict[str, bool] | None = None
    cost_model: str = "megatron"
    steps: list[Step] = field(default_factory=list)

    def row(self) -> Row:
        """Its figures, of a step."""
        seconds = {name: _median(s[name] for s in self.steps) for name in ("seconds", "generation")}
        return {
            "system": self.name,
            "counted_steps": len(self.steps),
            **seconds,
            "rest": _median(s["seconds"] - s["generation"] for s in self.steps),
            "cpu_seconds": _median(s["cpu_seconds"] for s in self.steps),
            "tokens": round(statistics.mean(s["tokens"] for s in self.steps), 1),
            "tokens_per_s": _median(s["tokens"] / s["seconds"] for s in self.steps),
            "tokens_per_cpu_s": _median(s["tokens"] / s["cpu_seconds"] for s in self.steps),
        }


def _median(values: Iterable[float]) -> float:
    return float(f"{statistics.median(values):.4g}")


def systems() -> list[System]:
    """Those that are compared; None as options is this runtime."""
    return [
        System("rpeg-rt"),
        System("trl", {"gradient_checkpointing": False}),
        System("rpeg-rt, activations recomputed", cost_model="paper"),
        System("trl, activations recomputed", {"gradient_checkpointing": True}),
    ]


def texts() -> list[str]:
    """Prompts of the full length: a character is a token."""
    dice = random.Random(0)
    return ["".join(dice.choices("abcdefgh", k=WORKLOAD["prompt_length"])) for _ in range(256)]


def problem(steps: int) -> str:
    """The problem file of this runtime's part."""
    workload = ", ".join(f"{name} = {value}" for name, value in WORKLOAD.items())
    model = 'arch = "start/config.json", checkpoint = "start"'
    return f"""rpeg 1

graph vs_trl {{
  cluster {{ hardware = "cpu-2core", racks = 1, nodes = 1, gpus = 1 }}
  workload {{ {workload} }}
  model actor : lm {{ {model}, trainable = true }}
  model reference : lm {{ {model} }}
  verifier letters {{ callable = "letters:verify", seconds_per_response = 1e-6 }}
  use grpo {{ actor = actor, reference = reference, reward = letters }}
  run {{
    steps = {steps}
    prompts = "prompts.jsonl"
    kl_coefficient = 0.01
    optimizer = {{ learning_rate = 1e-6, beta2 = 0.999 }}
  }}
}}
"""


VERIFIER = f"""
def verify(prompt, response, record):
    return response.count("a") / {WORKLOAD["response_length"]}
"""


def cpu_seconds() -> float:
    """CPU time that this process and those below it have used so far."""
    below: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        pid = int(path.parent.name)
        below.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = int(fields[11]) + int(fields[12])
    total, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += below.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def ours(plan: Path, steps: int, seed: int) -> list[Step]:
    """Steps of a run of this runtime."""
    found: list[Step] = []
    used = 0.0

    def progress(m: StepMetrics, _: int) -> None:
        nonlocal used
        before, used = used, cpu_seconds()
        told = {"seconds": m.seconds, "generation": m.busy_s["generation"], "cpu_seconds": used - before}
        found.append(told | {"tokens": m.tokens})

    execute(plan, Settings(steps=steps, seed=seed), progress)
    return found


def theirs(python: str, settings: Path) -> tuple[list[Step], dict[str, str]]:
    """Steps of a run of TRL, and versions of its packages. Raises ClickException."""
    found = json.loads(peer(python, settings).splitlines()[-1])
    return found["steps"], found["software"]


def peer(python: str, settings: Path) -> str:
    """What TRL's part prints. Raises ClickException."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, str(PEER), str(settings)], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise click.ClickException(f"TRL failed:\n{done.stderr[-2000:]}")
    return done.stdout


def compare(python: str, steps: int, rounds: int) -> tuple[list[Row], dict[str, str]]:
    """A row for each system, and versions of TRL's packages."""
    compared, software = systems(), {}
    with tempfile.TemporaryDirectory(prefix="rpeg-") as name:
        directory = Path(name)
        settings = directory / "settings.json"
        (directory / "letters.py").write_text(VERIFIER)
        (directory / "prompts.jsonl").write_text("".join(json.dumps({"prompt": t}) + "\n" for t in texts()))
        told = {"model": MODEL, **WORKLOAD, "texts": texts(), "start": str(directory / "start")}
        settings.write_text(json.dumps(told | {"steps": 0}))
        peer(python, settings)
        (directory / "problem.rpeg").write_text(problem(FIRST + steps))
        plans = {s.cost_model: directory / f"{s.cost_model}.exe.json" for s in compared if s.options is None}
        for cost_model, plan in plans.items():
            chosen = ["--cost-model", cost_model, "-q", "-o", str(plan)]
            if rpegc([str(directory / "problem.rpeg"), *chosen]):
                raise click.ClickException("the problem was not compiled")
        for seed in range(rounds):
            for system in compared[seed % len(compared) :] + compared[: seed % len(compared)]:
                if system.options is None:
                    found = ours(plans[system.cost_model], FIRST + steps, seed)
                else:
                    more = {"steps": FIRST + steps, "seed": seed, "options": system.options}
                    settings.write_text(json.dumps(told | more))
                    found, software = theirs(python, settings)
                system.steps += found[FIRST:]
                print(f"round {seed + 1}/{rounds}: {system.name} done", file=sys.stderr, flush=True)
    return [s.row() for s in compared], software


def has_trl(python: str) -> bool:
    """Whether an interpreter has TRL."""
    try:
        done = subprocess.run([python, "-c", "import trl"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


@click.command()
@click.option("--trl-python", default=sys.executable, help="The interpreter that has TRL.  [default: this]")
@click.option("--steps", type=click.IntRange(1), default=8, show_default=True, help="Counted steps of a run.")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Runs of each system.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects, one for each system.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write results.csv and provenance.json into this directory.",
)
def main(trl_python: str, steps: int, rounds: int, as_json: bool, output: Path | None) -> None:
    """Compare the runtime with TRL's GRPO trainer on one CPU thread."""
    if not has_trl(trl_python):
        click.echo(
            f"skipped: {trl_python} has no TRL; install it (pip install trl) there, or name another "
            "interpreter with --trl-python",
            err=True,
        )
        return
    load, started = os.getloadavg(), time.perf_counter()
    rows, software = compare(trl_python, steps, rounds)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        names = tuple(rows[0])
        (output / "results.csv").write_bytes(csv_bytes(names, [[r[n] for n in names] for r in rows]))
        arguments = f"python -m benchmarks.vs_trl --steps {steps} --rounds {rounds}"
        told = provenance(arguments, time.perf_counter() - started, 1)
        loads = [[round(x, 1) for x in some] for some in (load, os.getloadavg())]
        told |= {"load_before_and_after": loads, "software": software_versions(), "peer": software}
        (output / "provenance.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        click.echo(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
