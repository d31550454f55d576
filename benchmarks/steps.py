"""Whole steps: predicted beside measured step time of plans that differ, and which of two plans is faster.

`python -m benchmarks.steps HARDWARE` compiles small PPO and GRPO problems with the given hardware file, each
with several plans pinned in `plan` blocks: placements, layouts, microbatches, waves and staleness on one, two
and four workers. It runs every plan with the runtime and takes the median time of its later steps. Pairs are
those of plans of one problem, for between these a search chooses. Whatever else runs on the machine spoils
it.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.study import HERE, Row, provenance
from calib.hardware import load_hardware
from calib.statistics import agreement
from ir_schema.problem import Placement
from rpeg_rt.load import load_plan
from rpeg_rt.metrics import StepMetrics
from rpeg_rt.run import Settings, execute
from rpeg_rt.trace import software_versions
from rpegc.calibration.validation_report import scatter_band
from rpegc.cli.group import run as rpegc
from rpegc.plots import check_plot, write_plot
from rpegc.table import csv_bytes, table

NAME = "steps"
WARM = 2
"""Steps before those that are counted: memory is allocated and connections are made."""
PROMPT_LENGTH = 16
COLUMNS = ("problem", "plan", "workers", "steps", "predicted_s", "measured_s", "least_s", "greatest_s")

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


def source(case: Case, hardware: Path, steps: int) -> str:
    """The case as a problem file."""
    blocks = "".join(f"\n  plan {operator} {{ {_keys(p)} }}" for operator, p in case.plan.items())
    return (
        f"rpeg 1\ngraph {case.problem} {{\n  options {{ steps = {steps} }}\n"
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


def measure(case: Case, hardware: Path, steps: int, directory: Path) -> Row:
    """Compile the case, run it, and put the two step times beside each other."""
    problem, plan = directory / "problem.rpeg", directory / "plan.exe.json"
    problem.write_text(source(case, hardware, steps), encoding="utf-8")
    if rpegc([str(problem), "--search", "none", "-q", "-o", str(plan)]):
        raise click.ClickException(f"plan `{case.name}` of `{case.problem}` cannot be compiled")
    finished: list[StepMetrics] = []
    execute(plan, Settings(steps=steps, data=directory), lambda metrics, _: finished.append(metrics))
    ends = [m.time_s for m in finished]
    times = [after - before for before, after in pairwise(ends)][WARM - 1 :]
    return {
        "problem": case.problem,
        "plan": case.name,
        "workers": case.workers,
        "steps": len(times),
        "predicted_s": load_plan(plan).executable.prediction.score.step_time_s,
        "measured_s": statistics.median(times),
        "least_s": min(times),
        "greatest_s": max(times),
    }


def summary(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """By problem, and for all: plans, mean relative error, rank correlation, and the share of its pairs whose
    faster plan is predicted right."""
    told: list[tuple[object, ...]] = []
    right = pairs = 0.0
    for problem in dict.fromkeys(r["problem"] for r in rows):
        mine = [r for r in rows if r["problem"] == problem]
        a = agreement([r["measured_s"] for r in mine], [r["predicted_s"] for r in mine])
        count = len(mine) * (len(mine) - 1) / 2
        right, pairs = right + a.ordered * count, pairs + count
        told.append((problem, a.n, f"{100 * a.mape:.1f} %", f"{a.spearman:.3f}", f"{100 * a.ordered:.1f} %"))
    whole = agreement([r["measured_s"] for r in rows], [r["predicted_s"] for r in rows])
    share = f"{100 * right / pairs:.1f} %"
    told.append(("all", whole.n, f"{100 * whole.mape:.1f} %", f"{whole.spearman:.3f}", share))
    return told


HEADER = ("problem", "plans", "MAPE", "rho", "faster plan predicted")


def draw(rows: Sequence[Row], figure: Any) -> None:
    """Predicted over measured step time."""
    axis = figure.subplots()
    markers = {1: "o", 2: "s", 4: "^"}
    for i, problem in enumerate(dict.fromkeys(r["problem"] for r in rows)):
        for workers, marker in markers.items():
            mine = [r for r in rows if r["problem"] == problem and r["workers"] == workers]
            axis.scatter(
                [r["measured_s"] for r in mine], [r["predicted_s"] for r in mine], marker=marker, s=30,
                color=f"C{i}", alpha=0.8, label=f"{problem}, {workers} worker{'s' * (workers > 1)}",
            )  # fmt: skip
    scatter_band(axis, [r["measured_s"] for r in rows])
    axis.set(xlabel="measured: step [s]", ylabel="predicted")
    axis.legend(fontsize=8)


@click.command(help=__doc__)
@click.argument("hardware", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--steps", type=click.IntRange(WARM + 1), default=8, show_default=True, help="Steps of a run.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=HERE / "results" / NAME,
    help="Folder of the results.  [default: benchmarks/results/steps]",
)  # fmt: skip
def main(hardware: Path, steps: int, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    check_plot(str(output / "scatter.png"))
    load, started, rows = os.getloadavg(), time.perf_counter(), []
    with tempfile.TemporaryDirectory(prefix="rpeg-") as directory:
        write_prompts(Path(directory) / "prompts.jsonl")
        for i, case in enumerate(cases(), start=1):
            row = measure(case, hardware.resolve(), steps, Path(directory))
            rows.append(row)
            told = f"{1e3 * row['measured_s']:.0f} ms, predicted {1e3 * row['predicted_s']:.0f} ms"
            print(f"{i}/{len(cases())} {case.problem}: {case.name}: {told}", file=sys.stderr, flush=True)
    lines = [[f"{v:.6g}" if isinstance(v := r[c], float) else v for c in COLUMNS] for r in rows]
    (output / "results.csv").write_bytes(csv_bytes(COLUMNS, lines))
    write_plot(str(output / "scatter.png"), partial(draw, rows), inches=(7.0, 5.5))
    p = load_hardware(str(hardware.resolve())).provenance
    told = provenance(
        f"python -m benchmarks.{NAME} {hardware} --steps {steps}", time.perf_counter() - started, 1
    )
    told |= {"load": [round(x, 1) for x in load], "software": software_versions()}
    told |= {
        "hardware": p.name if p else "",
        "summary": [dict(zip(HEADER, r, strict=True)) for r in summary(rows)],
    }
    (output / "provenance.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    print(table(HEADER, summary(rows), right=range(1, len(HEADER))))


if __name__ == "__main__":
    main()
