"""The published measurements of `calib/data` as operators that the compiler can predict.

A case is one row: a model, an operator, a placement on a machine, and what was measured. Rows that no
operator of a plan expresses are left out, each with its reason. What a table does not print is assumed
here, alone: a GPT model has tied embeddings, biases, layer norms and learned positions, and 51,200 tokens
where no vocabulary is given.
"""

import csv
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, TypeVar

import msgspec

from calib import hardware as files
from ir_schema.hardware import AlphaBeta, Hardware, Tiers
from ir_schema.problem import Workload
from ir_schema.samples import OperatorCase
from rpegc.calibration.operators import NODE, iteration, place
from rpegc.models import load_model

Row = Mapping[str, str]
Part = Literal["calibration", "validation"]
Quantity = Literal["seconds", "seconds per token", "activations", "state"]
C = TypeVar("C")
replace = msgspec.structs.replace
load_hardware = cache(files.load_hardware)


FAR: tuple[Literal["inter", "rack"], ...] = ("inter", "rack")


class LeftOut(Exception):
    """Why a row cannot be predicted."""


@dataclass(frozen=True)
class Case:
    """One measured operator of a set, on a machine.

    `quantity` says what of it was measured: seconds of the whole operator, seconds per generated token where
    requests follow each other, bytes of activations kept for the backward pass, or bytes of weights,
    gradients and optimizer state. Where a table does not print the microbatch, `operators` are those with
    each that divides the batch.
    """

    set: str
    part: Part
    label: str
    hardware: Hardware
    operators: tuple[OperatorCase, ...]
    measured: float
    quantity: Quantity = "seconds"

    @property
    def operator(self) -> OperatorCase:
        """The operator, or the first of those that it may have been."""
        return self.operators[0]


def read(name: str) -> list[Row]:
    """The rows of `calib/data/NAME.csv`."""
    text = (resources.files("calib") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def generation(model: str, sequences: int, prompt: int, response: int, tp: int) -> OperatorCase:
    """One batch through one replica. Experts, each of which an engine slices over the tensor ranks, are
    divided over them instead: there is no layout with slices."""
    spec = load_model(model, "lm")
    return OperatorCase(
        role="generation", model=spec, placement=place((1, 1, tp), 1, tp if spec.experts else 1),
        workload=Workload(prompts=sequences, rollouts=1, prompt_length=prompt, response_length=response),
    )  # fmt: skip


def layout(row: Row) -> str:
    """P_d x P_p x P_t of a row."""
    return f"{row['dp']}x{row['pp']}x{row['tp']}"


def between_nodes(hardware: Hardware, gbps: float, nominal: float = 1600.0) -> Hardware:
    """`hardware` with network cards of `gbps` per node in place of `nominal`, as well used."""
    slower = nominal / gbps

    def tiers(t: Tiers | None) -> Tiers | None:
        if t is None:
            return None
        far = {tier: AlphaBeta(alpha=t.at(tier).alpha, beta=slower * t.at(tier).beta) for tier in FAR}
        return replace(t, **far)

    fields = ("collective", "point_to_point", "all_gather", "reduce_scatter")
    return replace(hardware, **{f: tiers(getattr(hardware, f)) for f in fields})


# The sets --------------------------------------------------------------------------------------------


def vtrain_single(row: Row) -> Case:
    """One node, small models; those with 12 and 24 layers calibrate."""
    part: Part = "calibration" if row["layers"] in ("12", "24") else "validation"
    label = f"{row['layers']} layers {layout(row)} gbs {row['gbs']} mbs {row['mbs']}"
    measured = float(row["iter_time_ms"]) * 1e-3
    return Case(
        "training, one node, vTrain", part, label, load_hardware("a100-80"), (iteration(row),), measured
    )


def vtrain_multi(row: Row) -> Case:
    """64 and 512 GPUs, with four network cards a node instead of eight."""
    if int(row["tp"]) > NODE:
        raise LeftOut("a tensor group over several nodes (legality P1)")
    hardware = between_nodes(load_hardware("a100-80"), float(row["inter_node_gbps"]))
    label = f"{row['params_b']}B {layout(row)} mbs {row['mbs']}"
    measured = float(row["iter_time_ms"]) * 1e-3
    return Case("training, several nodes, vTrain", "validation", label, hardware, (iteration(row),), measured)


def megatron(row: Row) -> Case:
    """The weak-scaling table of Megatron-LM, which counts hardware FLOPs."""
    if not row["gpu"].startswith("A100"):
        raise LeftOut("all communication overlapped; recomputation, microbatch and schedule not printed")
    hidden, layers, length, vocabulary, gbs = (
        int(row[name]) for name in ("hidden", "layers", "seq_len", "vocab", "gbs")
    )
    flops = 96 * gbs * length * layers * hidden**2
    flops *= 1 + length / (6 * hidden) + vocabulary / (16 * layers * hidden)
    measured = flops / (float(row["tflops_per_gpu"]) * 1e12 * int(row["n_gpus"]))
    local = gbs // int(row["dp"])
    tried = tuple(iteration({**row, "mbs": str(m)}) for m in (1, 2, 4, 8, 16) if local % m == 0)
    label = f"{row['model']} {layout(row)}"
    return Case("training, Megatron-LM", "validation", label, load_hardware("a100-80"), tried, measured)


def korthikanti(row: Row) -> Case:
    """Iteration times of `Reducing activation recomputation`, Table 5."""
    if row["act_recompute"] != "full":
        raise LeftOut("selective recomputation, which no layout has")
    if row["vpp"] != "1":
        raise LeftOut("an interleaved pipeline, which no layout has")
    label, measured = f"{row['model']} {layout(row)}", float(row["iter_time_s"])
    hardware = load_hardware("a100-80")
    return Case("training, Korthikanti et al.", "validation", label, hardware, (iteration(row),), measured)


_SHAPES = {
    "megatron-22B": {"hidden": "6144", "layers": "48", "heads": "64"},
    "gpt3-175B": {"hidden": "12288", "layers": "96", "heads": "96"},
    "turing-530B": {"hidden": "20480", "layers": "105", "heads": "128"},
    "megatron-1T": {"hidden": "25600", "layers": "128", "heads": "160"},
}


def memory(row: Row) -> Case:
    """Activations kept under full recomputation (a share of those without, Figures 1 and 7), and the
    parameters' and optimizer's memory (Figure 1)."""
    quantity: Quantity
    if row["fig"] == "fig1" and row["mode"] == "none":
        quantity, gib = "state", float(row["params_opt_GiB"])
    elif row["mode"] == "full" and row["vpp"] == "1":
        rows = [r for r in read("korthikanti_memory") if r["model"] == row["model"] and r["fig"] == "fig1"]
        (base,) = (r for r in rows if r["mode"] == "none")
        quantity, gib = "activations", float(row["act_rel_pct"]) / 100 * float(base["act_GiB"])
    elif row["mode"] == "full":
        raise LeftOut("an interleaved pipeline, which no layout has")
    elif row["fig"] == "fig1":
        raise LeftOut("the state of another row again")
    else:
        raise LeftOut("no recomputation, or a selective one, which no layout has")
    operator = iteration({**row, **_SHAPES[row["model"]], "seq_len": "2048"})
    return Case(
        f"memory, {quantity}", "validation", f"{row['model']} {layout(row)}", load_hardware("a100-80"),
        (operator,), gib * 2**30, quantity,
    )  # fmt: skip


_TENSORRT = {"GPT-J 6B": "gpt-j-6b", "LLaMA 7B": "llama-2-7b", "Mixtral 8x7B": "mixtral-8x7b"}


def tensorrt(row: Row) -> Case:
    """TensorRT-LLM at a fixed batch; none calibrates."""
    if row["precision"] != "FP16":
        raise LeftOut("FP8, whose throughput no hardware file gives")
    batch, tp, prompt, response = (int(row[name]) for name in ("batch", "tp", "isl", "osl"))
    first, value = row["metric"] == "first_token_latency_ms", float(row["value"])
    return Case(
        f"{'first token' if first else 'static batch'}, TensorRT-LLM", "validation",
        f"{row['version']} {row['model']} {batch} x {prompt}+{response} tp {tp}", load_hardware("a100-80"),
        (generation(_TENSORRT[row["model"]], batch, prompt, response, tp),),
        value * 1e-3 if first else batch * response / (value * tp),
    )  # fmt: skip


def serving(row: Row) -> Case:
    """Time per output token of an engine that replaces each finished request by a new one."""
    if row["pp"] not in ("", "1"):
        raise LeftOut("a pipeline of serving engines")
    concurrency, tp, prompt, response = (int(row[name]) for name in ("concurrency", "tp", "isl", "osl"))
    return Case(
        "per token, serving", "validation", f"{concurrency} x {prompt}+{response} tp {tp}",
        load_hardware("h100"), (generation("llama-3.1-8b", concurrency, prompt, response, tp),),
        float(row["tpot_ms"]) * 1e-3, "seconds per token",
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
    """All rows that an operator expresses, and the others, counted by (file, reason)."""
    found: list[Case] = []
    missing: Counter[tuple[str, str]] = Counter()
    for file, make in SETS.items():
        mine, others = expressed(file, make)
        found += mine
        missing += others
    return found, missing


def expressed(file: str, make: Callable[[Row], C]) -> tuple[list[C], Counter[tuple[str, str]]]:
    """What `make` makes of the rows of a file, and the rows that it leaves out, by (file, reason)."""
    found: list[C] = []
    missing: Counter[tuple[str, str]] = Counter()
    for row in read(file):
        try:
            found.append(make(row))
        except LeftOut as exc:
            missing[file, str(exc)] += 1
    return found, missing
