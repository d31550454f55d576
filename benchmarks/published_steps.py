"""The published step times of `calib/data/rl_steps.csv` as whole plans that the compiler can predict.

A step is GRPO of one policy: responses are generated, scored once more by the policy and once by its
reference, and trained on. The table says which GPUs do what in which layout. What it does not print is
assumed here, alone:

- every prompt has `PROMPT` tokens, and responses are distributed with the greatest entropy that their printed
  mean and longest length allow, which is exponential up to the longest;
- sequences are packed into microbatches of the longest sequence's tokens, as their recipes say, of which as
  many count as the nearest divisor of the batch;
- steps that train on responses of the step before generate on half of the GPUs, as their recipes say;
- GB200 are B200, all in one NVLink domain.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import msgspec

from benchmarks.published_rows import LeftOut, Part, Row, expressed
from benchmarks.study import HERE
from ir_schema.device import DeviceSpace, size
from ir_schema.model import ModelSpec
from ir_schema.problem import PartialPlacement
from ir_schema.stages import Configuration
from passes.cost import parameters
from passes.search import take
from rpegc.frontend import load

PROMPT = 160
"""Tokens of a question of OpenMathInstruct-2 with its instruction and the chat's marks: an estimate."""
STEPS = 64
"""Enough of them that filling a pipeline of steps does not count."""
MODELS = {"LLAMA3.1_8B": "llama-3.1-8b", "Qwen3-32B": "qwen3-32b", "Qwen3-30B-A3B": "qwen3-30b-a3b"}
QUANTILES = 16
"""Into how many equal parts the responses' lengths are cut."""


@dataclass(frozen=True)
class Step:
    """One measured step [s] and the plan that was measured. `work` are its operations per GPU: for each
    parameter and token 2 in a forward pass, of which there are three, and 8 in training."""

    set: str
    part: Part
    label: str
    configuration: Configuration
    measured: float
    work: float
    quantity: Literal["seconds"] = "seconds"


def quantiles(mean: float, longest: int) -> list[tuple[float, int]]:
    """Breakpoints of the distribution of greatest entropy on [0, `longest`] with this mean: its density is
    proportional to exp(-rate x). Raises ValueError for a mean that no such distribution has."""
    if not 0 < mean < longest:
        raise ValueError(f"lengths up to {longest} cannot have the mean {mean}")

    def at(rate: float, f: float) -> float:
        """The length that a share f < 1 of the responses does not exceed, as a share of the longest."""
        return f if abs(rate) < 1e-6 else -math.log1p(f * math.expm1(-rate)) / rate

    def centre(rate: float) -> float:
        return 0.5 - rate / 12 if abs(rate) < 1e-3 else 1 / rate - 1 / math.expm1(rate)

    low, high = -500.0, 500.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if centre(middle) * longest > mean else (low, middle)
    shares = (*(i / QUANTILES for i in range(1, QUANTILES)), 0.98)
    lengths = [*((f, round(longest * at(low, f))) for f in shares), (1.0, longest)]
    return [x for x, before in zip(lengths, [(0.0, 0), *lengths], strict=False) if x[1] > before[1]]


def step(row: Row) -> Step:
    """A row of the table. Raises LeftOut."""
    if row["precision"] != "BF16":
        raise LeftOut("FP8, whose throughput no hardware file gives")
    if row["model"] not in MODELS:
        raise LeftOut("stages with unequal numbers of layers, which no layout has")
    if int(row["ep"]) > 1 < int(row["pp"]) and row["gpu"] == "H100":
        raise LeftOut("experts of a pipeline spread over one node: in a plan its ranks lie apart")
    gpus, node, lag, longest, mean, prompts, rollouts, batch = (
        int(row[name])
        for name in (
            "n_gpus", "gpus_per_node", "lag", "max_length", "mean_length", "prompts", "rollouts", "train_gbs",
        )
    )  # fmt: skip
    hardware, space = ("h100", (1, gpus // node, node)) if row["gpu"] == "H100" else ("b200", (1, 1, gpus))
    minibatches = prompts * rollouts // batch
    responses = quantiles(mean - PROMPT, longest - PROMPT)
    text = f"""rpeg 1
graph step {{
  options {{ steps = {STEPS}, split = never }}
  cluster {{ hardware = "{hardware}", racks = 1, nodes = {space[1]}, gpus = {space[2]} }}
  workload {{
    prompts = {prompts}, rollouts = {rollouts}, prompt_length = {PROMPT}, minibatches = {minibatches}
    response_length = {longest - PROMPT}, length_quantiles = {[list(x) for x in responses]}
  }}
  model actor : lm {{ arch = "{MODELS[row["model"]]}", trainable = true, staleness = {lag} }}
  model reference : lm {{ arch = "{MODELS[row["model"]]}" }}
{_GRAPH}"""
    problem = load(text.encode(), "step.rpeg", HERE).problem
    plan = _plan(row, space, problem.models["actor"], minibatches)
    configuration = take(msgspec.structs.replace(problem, plan=plan))
    label = f"{row['framework']} {row['model']} {gpus} {row['gpu']}, {lag} behind"
    work = 14 * parameters.active(problem.models["actor"]) * prompts * rollouts * mean / gpus
    return Step("RL step, NeMo RL", "validation", label, configuration, float(row["step_s"]), work)


def steps() -> tuple[list[Step], Counter[tuple[str, str]]]:
    """All rows that a plan expresses, and the others, counted by (file, reason)."""
    return expressed("rl_steps", step)


_GRAPH = """
  container W { elements = parameters(actor), bytes_each = 2, weights_of = actor }
  container W_reference { elements = parameters(reference), bytes_each = 2, weights_of = reference }
  container X { elements = prompts * prompt_length, bytes_each = 4 }
  container Y { elements = prompts * rollouts * (prompt_length + response_length), bytes_each = 4 }
  container logp { elements = prompts * rollouts * response_length, bytes_each = 4 }
  container logp_reference { elements = prompts * rollouts * response_length, bytes_each = 4 }

  op generate : generation { model = actor, reads = [W, X], writes = [Y] }
  op score : inference { model = actor, reads = [W, Y], writes = [logp] }
  op score_reference : inference { model = reference, reads = [W_reference, Y], writes = [logp_reference] }
  op train : training { model = actor, reads = [W, Y, logp, logp_reference], writes = [W] }

  data generate -> score : Y
  data generate -> score_reference : Y
  data score -> train : logp
  data score_reference -> train : logp_reference
  publish train -> generate : W
  publish train -> score : W
  input X, W_reference
}
"""


def _plan(row: Row, space: DeviceSpace, model: ModelSpec, minibatches: int) -> dict[str, PartialPlacement]:
    """Where the operators of `_GRAPH` run: all on all GPUs, or generation on the first half of them."""
    degree, dp = int(row["gen_tp"]), int(row["dp"])
    half = int(row["lag"]) > 0
    extent = (1, space[1], space[2])
    if half:
        extent = (1, space[1] // 2, space[2]) if space[1] > 1 else (1, 1, space[2] // 2)
    behind = (0, extent[1], 0) if space[1] > 1 else (0, 0, extent[2])
    batch = int(row["train_gbs"]) // dp
    divisors = [m for m in range(1, batch + 1) if batch % m == 0]
    packs = batch * int(row["mean_length"]) / (int(row["max_length"]) * int(row["train_mbs"]))
    training = PartialPlacement(
        origin=behind if half else (0, 0, 0), extent=extent, data_parallel=dp,
        pipeline_parallel=int(row["pp"]), tensor_parallel=int(row["tp"]), context_parallel=int(row["cp"]),
        expert_parallel=int(row["ep"]), microbatches=min(divisors, key=lambda m: abs(m - packs)),
    )  # fmt: skip
    scoring = msgspec.structs.replace(training, microbatches=minibatches * (training.microbatches or 1))
    generating = PartialPlacement(
        origin=(0, 0, 0), extent=extent, data_parallel=size(extent) // degree, pipeline_parallel=1,
        tensor_parallel=degree, microbatches=1, context_parallel=1,
        expert_parallel=degree if model.experts else 1, waves=1,
    )  # fmt: skip
    return {"generate": generating, "score": scoring, "score_reference": scoring, "train": training}
