"""The cost model's counts of operations are those of the code."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ir_schema.base import Role
from ir_schema.model import ModelSpec
from ir_schema.problem import Layout, Placement, Workload
from ir_schema.samples import OperatorCase
from passes.cost import megatron_dispatch as counted
from passes.cost.megatron_dispatch import Operations
from rpeg_rt.bench.subject import prepare
from rpeg_rt.engine.groups import LayoutGroups, make_layout


class Count(TorchDispatchMode):
    """How many operations reach a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def alone() -> Any:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    layout = Layout(data_parallel=1, pipeline_parallel=1, tensor_parallel=1)
    yield make_layout([0], layout)
    dist.destroy_process_group()


def operations(role: Role, groups: LayoutGroups, layers: int, mb: int, rounds: int, head: str) -> int:
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


@pytest.mark.parametrize(("role", "told"), [("inference", counted.FORWARD), ("training", counted.TRAINING)])
def test_passes_dispatch_as_many_operations_as_counted(role: Role, told: Operations, alone: Any) -> None:
    for head in ("lm", "scalar"):
        found = linear({(n, mb): operations(role, alone, n, mb, 4, head) for n in (2, 4) for mb in (1, 2)})
        ends = told.ends + (told.vocabulary if head == "lm" else 0)
        assert found[:2] == (told.layer, ends)
        # Losses differ between heads, and gradients are not always clipped.
        for layers in (2, 4):
            once = told.layer_once * layers + told.once
            assert found[2] * layers + found[3] == pytest.approx(once, rel=0.06, abs=6)


def test_rounds_of_decoding_dispatch_as_many_operations_as_counted(alone: Any) -> None:
    def each(layers: int) -> int:
        return operations("generation", alone, layers, 1, 6, "lm") - operations(
            "generation", alone, layers, 1, 5, "lm"
        )

    layer = (each(4) - each(2)) // 2
    assert layer == counted.DECODE.layer
    assert each(2) - 2 * layer == counted.DECODE.ends - counted._UNIFORM
    first = linear({(n, mb): operations("generation", alone, n, mb, 2, "lm") - mb * each(n)
                    for n in (2, 4) for mb in (1, 2)})  # fmt: skip
    told = counted.PREFILL
    assert first == (told.layer, told.ends - counted._UNIFORM, told.layer_once, told.once)


def test_counting_sees_what_is_dispatched() -> None:
    with Count() as count:
        torch.ones(2) + 1
    assert count.n == 2
