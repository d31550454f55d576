"""The cost model's counts of operations are those of the code."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ir_schema.base import Role
from ir_schema.model import ModelSpec
from ir_schema.problem import Placement, Workload
from ir_schema.samples import OperatorCase
from passes.cost import megatron_dispatch as counted
from passes.cost.megatron_dispatch import Operations
from rpeg_rt.bench.subject import prepare
from rpeg_rt.engine.groups import LayoutGroups
from tests.rpeg_rt.engine.harness import groups_of, launch, layout


class Count(TorchDispatchMode):
    """How many operations reach a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += 1
        return func(*args, **(kwargs or {}))


Run = tuple[int, int, int, str]
"""Layers, microbatches, length of a response, head."""


def operations(role: Role, runs: list[Run]) -> list[int]:
    """How many operations each of `runs` dispatches, in a process of its own."""

    def count(_: int) -> list[int]:
        groups = groups_of([0], layout())
        return [_operations(role, groups, *run) for run in runs]

    return launch(1, count)[0]


def _operations(role: Role, groups: LayoutGroups, layers: int, mb: int, rounds: int, head: str) -> int:
    model = ModelSpec(
        layers=layers, hidden=32, ffn=64, vocabulary=128, head=head, bytes_per_parameter=4,
        attention_heads=4, kv_heads=2,
    )  # fmt: skip
    case = OperatorCase(
        role=role,
        model=model,
        workload=Workload(prompts=8, rollouts=1, prompt_length=4, response_length=rounds),
        placement=Placement(
            origin=(0, 0, 0), extent=(1, 1, 1), data_parallel=1, pipeline_parallel=1, tensor_parallel=1,
            microbatches=mb,
        ),
    )  # fmt: skip
    call = prepare(case, groups)
    call()
    with Count() as count:
        call()
    return count.n


def linear(n: dict[tuple[int, int], int]) -> tuple[int, int, int, int]:
    """(per layer and pass, per pass, per layer, else) of counts by (layers, passes)."""
    layer = (n[4, 2] - n[2, 2] - n[4, 1] + n[2, 1]) // 2
    ends = n[2, 2] - n[2, 1] - 2 * layer
    once = (n[4, 1] - n[2, 1]) // 2 - layer
    return layer, ends, once, n[2, 1] - 2 * once - ends - 2 * layer


def grid(response: int, head: str) -> list[Run]:
    """Runs by which counts are told apart."""
    return [(layers, mb, response, head) for layers in (2, 4) for mb in (1, 2)]


@pytest.mark.parametrize(("role", "told"), [("inference", counted.FORWARD), ("training", counted.TRAINING)])
def test_passes_dispatch_as_many_operations_as_counted(role: Role, told: Operations) -> None:
    runs = grid(4, "lm") + grid(4, "scalar")
    found = dict(zip(runs, operations(role, runs), strict=True))
    for head in ("lm", "scalar"):
        layer, ends, layer_once, once = linear(
            {(n, mb): found[n, mb, 4, head] for n in (2, 4) for mb in (1, 2)}
        )
        assert (layer, ends) == (told.layer, told.ends + (told.vocabulary if head == "lm" else 0))
        # Losses differ between heads, and gradients are not always clipped.
        for layers in (2, 4):
            expected = told.layer_once * layers + told.once
            assert layer_once * layers + once == pytest.approx(expected, rel=0.06, abs=6)


def test_rounds_of_decoding_dispatch_as_many_operations_as_counted() -> None:
    runs = [*grid(2, "lm"), *((n, 1, rounds, "lm") for n in (2, 4) for rounds in (5, 6))]
    found = dict(zip(runs, operations("generation", runs), strict=True))
    each = {n: found[n, 1, 6, "lm"] - found[n, 1, 5, "lm"] for n in (2, 4)}
    layer = (each[4] - each[2]) // 2
    assert layer == counted.DECODE.layer
    assert each[2] - 2 * layer == counted.DECODE.ends - counted._UNIFORM
    first = linear({(n, mb): found[n, mb, 2, "lm"] - mb * each[n] for n in (2, 4) for mb in (1, 2)})
    told = counted.PREFILL
    assert first == (told.layer, told.ends - counted._UNIFORM, told.layer_once, told.once)


def test_counting_sees_what_is_dispatched() -> None:
    with Count() as count:
        torch.ones(2) + 1
    assert count.n == 2
