"""The published measurements of `calib/data` as operators that the compiler can predict.

A case is one row: a model, an operator, a placement on a machine, and what was measured. Rows that no
operator of a plan expresses are left out, each with its reason. What a table does not print is assumed
here, alone: a GPT model has tied embeddings, biases, layer norms and learned positions, and 51,200 tokens
where no vocabulary is given.
"""

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from ir_schema.base import Role
from ir_schema.device import DeviceSpace
from ir_schema.model import ModelSpec
from ir_schema.problem import Placement, Workload
from rpegc.models import load_model

Row = Mapping[str, str]
Part = Literal["calibration", "validation"]
NODE = 8
VOCABULARY = 51200


class LeftOut(Exception):
    """Why a row cannot be predicted."""


@dataclass(frozen=True)
class Case:
    """One measured operator.

    `quantity` says what of it was measured: seconds of the whole operator, seconds per generated token
    where requests follow each other, bytes of activations kept for the backward pass, or bytes of weights,
    gradients and optimizer state. `microbatch` is None where the table does not print it. `recompute` says
    whether layers ran forward again in the backward pass.
    """

    set: str
    part: Part
    label: str
    hardware: str
    spec: ModelSpec
    role: Role
    workload: Workload
    layout: tuple[int, int, int]
    microbatch: int | None
    quantity: Literal["seconds", "seconds per token", "activations", "state"]
    measured: float
    recompute: bool = True

    @property
    def gpus(self) -> int:
        """GPUs of the row."""
        return math.prod(self.layout)

    @property
    def space(self) -> DeviceSpace:
        """The smallest machine of eight-GPU nodes that holds them."""
        return (1, -(-self.gpus // NODE), NODE) if self.gpus > NODE else (1, 1, self.gpus)

    def placement(self, microbatch: int) -> Placement:
        """The row's layout with this many sequences in a microbatch."""
        d, p, t = self.layout
        return Placement(
            origin=(0, 0, 0), extent=self.space, data_parallel=d, pipeline_parallel=p, tensor_parallel=t,
            microbatches=self.workload.sequences // (d * microbatch),
        )  # fmt: skip


def read(name: str) -> list[Row]:
    """The rows of `calib/data/NAME.csv`."""
    text = (resources.files("calib") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def gpt(hidden: int, layers: int, heads: int, vocabulary: int, positions: int) -> ModelSpec:
    """A GPT model as Megatron-LM builds it by default."""
    return ModelSpec(
        layers=layers, hidden=hidden, ffn=4 * hidden, vocabulary=vocabulary, head="lm",
        attention_heads=heads, gated_ffn=False, tied_embeddings=True, qkv_bias=True,
        attention_output_bias=True, mlp_bias=True, norm="layernorm", activation="gelu",
        learned_positions=positions,
    )  # fmt: skip


def tokens(sequences: int, prompt: int, response: int) -> Workload:
    """`sequences` of `prompt` given and `response` further tokens."""
    return Workload(prompts=sequences, rollouts=1, prompt_length=prompt, response_length=response)


def whole(sequences: int, length: int) -> Workload:
    """Sequences of `length` tokens whose logits are all computed (but the first token's)."""
    return tokens(sequences, 1, length - 1)


def _integers(row: Row, *names: str) -> list[int]:
    return [int(float(row[name])) for name in names]


# The sets --------------------------------------------------------------------------------------------


def vtrain_single(row: Row) -> Case:
    """One node, small models; those with 12 and 24 layers calibrate."""
    gbs, mbs, hidden, heads, layers, length = _integers(
        row, "gbs", "mbs", "hidden", "heads", "layers", "seq_len"
    )
    dp, pp, tp = _integers(row, "dp", "pp", "tp")
    part: Part = "calibration" if layers in (12, 24) else "validation"
    return Case(
        "vTrain, one node", part, f"{layers} layers {dp}x{pp}x{tp} gbs {gbs} mbs {mbs}", "a100-80",
        gpt(hidden, layers, heads, VOCABULARY, length), "training", whole(gbs, length), (dp, pp, tp), mbs,
        "seconds", float(row["iter_time_ms"]) * 1e-3,
    )  # fmt: skip


def vtrain_multi(row: Row) -> Case:
    """64 and 512 GPUs; none calibrates."""
    gbs, mbs, hidden, heads, layers, length = _integers(
        row, "gbs", "mbs", "hidden", "heads", "layers", "seq_len"
    )
    dp, pp, tp = _integers(row, "dp", "pp", "tp")
    if tp > NODE:
        raise LeftOut("a tensor group over several nodes (legality P1)")
    return Case(
        "vTrain, several nodes", "validation", f"{row['params_b']}B {dp}x{pp}x{tp} mbs {mbs}", "a100-80",
        gpt(hidden, layers, heads, VOCABULARY, length), "training", whole(gbs, length), (dp, pp, tp), mbs,
        "seconds", float(row["iter_time_ms"]) * 1e-3,
    )  # fmt: skip


def megatron(row: Row) -> Case:
    """The weak-scaling tables of Megatron-LM, of which A100 rows count hardware and H100 rows model FLOPs."""
    hidden, heads, layers, length, vocabulary, gbs = _integers(
        row, "hidden", "heads", "layers", "seq_len", "vocab", "gbs"
    )
    dp, pp, tp = _integers(row, "dp", "pp", "tp")
    a100 = row["gpu"].startswith("A100")
    passes, head = (96, 16) if a100 else (72, 12)
    flops = passes * gbs * length * layers * hidden**2
    flops *= 1 + length / (6 * hidden) + vocabulary / (head * layers * hidden)
    return Case(
        "Megatron-LM on A100" if a100 else "Megatron-Core on H100", "validation", f"{row['model']} {dp}x{pp}x{tp}",
        "a100-80" if a100 else "h100", gpt(hidden, layers, heads, vocabulary, length), "training",
        whole(gbs, length), (dp, pp, tp), None, "seconds",
        flops / (float(row["tflops_per_gpu"]) * 1e12 * dp * pp * tp), recompute=a100,
    )  # fmt: skip


def korthikanti(row: Row) -> Case:
    """Iteration times of `Reducing activation recomputation`, Table 5."""
    if row["act_recompute"] != "full":
        raise LeftOut("selective recomputation, which no layout has")
    if row["vpp"] != "1":
        raise LeftOut("an interleaved pipeline, which no layout has")
    hidden, heads, layers, length, gbs, mbs = _integers(
        row, "hidden", "heads", "layers", "seq_len", "gbs", "mbs"
    )
    dp, pp, tp = _integers(row, "dp", "pp", "tp")
    return Case(
        "Korthikanti et al., time", "validation", f"{row['model']} {dp}x{pp}x{tp}", "a100-80",
        gpt(hidden, layers, heads, VOCABULARY, length), "training", whole(gbs, length), (dp, pp, tp), mbs,
        "seconds", float(row["iter_time_s"]),
    )  # fmt: skip


_MEMORY = {
    "megatron-22B": (6144, 48, 64),
    "gpt3-175B": (12288, 96, 96),
    "turing-530B": (20480, 105, 128),
    "megatron-1T": (25600, 128, 160),
}


def memory(row: Row) -> Case:
    """Activations kept under full recomputation (a share of those without, Figures 1 and 7), and the
    parameters' and optimizer's memory (Figure 1)."""
    hidden, layers, heads = _MEMORY[row["model"]]
    dp, pp, tp, gbs, mbs = _integers(row, "dp", "pp", "tp", "gbs", "mbs")
    if row["fig"] == "fig1" and row["mode"] == "none":
        quantity, measured = "state", float(row["params_opt_GiB"]) * 2**30
    elif row["mode"] == "full":
        if row["vpp"] != "1":
            raise LeftOut("an interleaved pipeline, which no layout has")
        (base,) = (r for r in read("korthikanti_memory") if r["model"] == row["model"] and r["fig"] == "fig1"
                   and r["mode"] == "none")  # fmt: skip
        quantity = "activations"
        measured = float(row["act_rel_pct"]) / 100 * float(base["act_GiB"]) * 2**30
    elif row["fig"] == "fig1":
        raise LeftOut("the state of another row again, and selective recomputation, which no layout has")
    else:
        raise LeftOut("no recomputation, or a selective one, which no layout has")
    return Case(
        f"Korthikanti et al., {quantity}", "validation", f"{row['model']} {dp}x{pp}x{tp}", "a100-80",
        gpt(hidden, layers, heads, VOCABULARY, 2048), "training", whole(gbs, 2048), (dp, pp, tp), mbs,
        quantity, measured,
    )  # fmt: skip


_TENSORRT = {"GPT-J 6B": "gpt-j-6b", "LLaMA 7B": "llama-2-7b", "Mixtral 8x7B": "mixtral-8x7b"}


def tensorrt(row: Row) -> Case:
    """TensorRT-LLM at a fixed batch; LLaMA 7B calibrates."""
    if row["precision"] != "FP16":
        raise LeftOut("FP8, whose throughput no hardware file gives")
    batch, tp, prompt, response = _integers(row, "batch", "tp", "isl", "osl")
    first = row["metric"] == "first_token_latency_ms"
    value = float(row["value"])
    spec = load_model(_TENSORRT[row["model"]], "lm")
    if row["model"].startswith("Mixtral"):
        # Tensor parallelism of the experts, which every engine of that time used: each rank holds a slice.
        assert spec.experts is not None
    return Case(
        "TensorRT-LLM on A100, first token" if first else "TensorRT-LLM on A100, batch",
        "calibration" if row["model"].startswith("LLaMA") else "validation",
        f"{row['version']} {row['model']} {batch} x {prompt}+{response} tp {tp}", "a100-80", spec,
        "generation", tokens(batch, prompt, response), (1, 1, tp), batch, "seconds",
        value * 1e-3 if first else batch * response / (value * tp),
    )  # fmt: skip


def serving(row: Row) -> Case:
    """Time per output token of an engine that replaces each finished request by a new one."""
    concurrency, prompt, response, tp = _integers(row, "concurrency", "isl", "osl", "tp")
    if int(row["pp"] or 1) != 1:
        raise LeftOut("a pipeline of serving engines")
    if "Llama-3.1-8B" not in row["model"]:
        raise LeftOut(f"no architecture of {row['model']}")
    return Case(
        "serving on H100, per token", "validation", f"{concurrency} x {prompt}+{response} tp {tp}", "h100",
        load_model("llama-3.1-8b", "lm"), "generation", tokens(concurrency, prompt, response), (1, 1, tp),
        concurrency, "seconds per token", float(row["tpot_ms"]) * 1e-3,
    )  # fmt: skip


def fsdp(row: Row) -> Case:
    """Sharded data parallelism."""
    raise LeftOut("fully sharded data parallelism, with or without selective recomputation")


def fastertransformer(row: Row) -> Case:
    """FasterTransformer on a 40 GB A100."""
    raise LeftOut("a model whose architecture is not given, on a GPU without a hardware file")


SETS: dict[str, Callable[[Row], Case]] = {
    "vtrain_train_single_a100": vtrain_single,
    "vtrain_train_multi_a100": vtrain_multi,
    "megatron_lm_tables": megatron,
    "korthikanti_iter_time_a100": korthikanti,
    "korthikanti_memory": memory,
    "trtllm_static_batch_inference": tensorrt,
    "serving_aiconfigurator_silicon_bf16": serving,
    "torchtitan_fms_training": fsdp,
    "fastertransformer_13b": fastertransformer,
}


def cases() -> tuple[list[Case], Counter[tuple[str, str]]]:
    """All rows that can be predicted, and the others, counted by (file, reason)."""
    found: list[Case] = []
    missing: Counter[tuple[str, str]] = Counter()
    for file, make in SETS.items():
        for row in read(file):
            try:
                found.append(make(row))
            except LeftOut as exc:
                missing[file, str(exc)] += 1
    return found, missing
