"""The only module that imports Megatron-Core; importing it makes Megatron usable here.

Megatron's modules name `torch.cuda` and "cuda" devices directly. Where there is no GPU, the name `torch`
inside megatron.core's modules is bound to a facade whose factories place "cuda" tensors on the CPU and whose
`cuda` does nothing; torch itself stays as it is, so the rest of the process sees no difference. With a
GPU nothing is replaced. Only modules that have been imported can be patched, hence all imports here.
"""

import contextlib
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

# Asked for by tensor-parallel linear layers on GPUs so that communication starts before computation.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Optional accelerator packages that are not installed.
    import megatron.core.optimizer
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel import (
        ColumnParallelLinear,
        RowParallelLinear,
        VocabParallelEmbedding,
        mappings,
        set_tensor_model_parallel_attributes,
    )
    from megatron.core.transformer import TransformerConfig, attention
    from megatron.core.transformer.mlp import MLP
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlock, TransformerBlockSubmodules
    from megatron.core.transformer.transformer_layer import TransformerLayer

__all__ = [
    "MLP",
    "ColumnParallelLinear",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "MegatronModule",
    "ModuleSpec",
    "OptimizerConfig",
    "ProcessGroupCollection",
    "RowParallelLinear",
    "TransformerBlock",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "TransformerLayer",
    "VocabParallelEmbedding",
    "attention",
    "device",
    "finalize_model_grads",
    "get_gpt_layer_local_spec",
    "get_megatron_optimizer",
    "mappings",
    "optimizer_construction",
    "set_tensor_model_parallel_attributes",
]

logging.getLogger("megatron").setLevel(logging.ERROR)
for _message in (
    "The .grad attribute of a Tensor that is not a leaf",  # the distributed optimizer's own shards
    ".*reduce_scatter_tensor. is deprecated",
    ".*all_gather_into_tensor. is deprecated",
    "full scope is deprecated",
):
    warnings.filterwarnings("ignore", message=_message)

_FACTORIES = ("empty", "zeros", "ones", "full", "tensor", "arange")
_TYPES = {torch.bfloat16: "torch.cuda.BFloat16Tensor"}


def device() -> torch.device:
    """Where this worker's tensors live: its current GPU, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


class _Facade(types.ModuleType):
    """A module that answers some names itself and everything else from the module it stands for."""

    def __init__(self, real: Any, overrides: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(overrides)
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_real"], name)
        self.__dict__[name] = value
        return value


class _NoStream:
    def wait_stream(self, *_: Any) -> None:
        """Nothing runs asynchronously."""

    def synchronize(self) -> None:
        """Nothing runs asynchronously."""


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        where = kwargs.get("device")
        if where is not None and torch.device(where).type == "cuda":
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return make


def _install() -> None:
    cuda = _Facade(
        torch.cuda,
        {
            "current_device": lambda: torch.device("cpu"),
            "synchronize": lambda *_: None,
            "empty_cache": lambda: None,
            "current_stream": lambda *_: _NoStream(),
            "default_stream": lambda *_: _NoStream(),
            "Stream": lambda *_, **__: _NoStream(),
            "stream": lambda *_: contextlib.nullcontext(),
        },
    )
    facade = _Facade(torch, {"cuda": cuda, **{n: _on_cpu(getattr(torch, n)) for n in _FACTORIES}})
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and getattr(module, "torch", None) is torch:
            module.torch = facade  # type: ignore[attr-defined]


if not torch.cuda.is_available():
    _install()


@contextlib.contextmanager
def optimizer_construction(
    parameters: Iterable[torch.nn.Parameter], group: dist.ProcessGroup
) -> Iterator[None]:
    """Two things Megatron's optimizers take for granted while they are constructed.

    They choose the master copy of a parameter by the spelling of its CUDA type, which does not exist for
    parameters on CPU or in float64: those are told to call themselves single precision, which makes the
    optimizer work on them in place. And they gather parameter groups over the world group, which hangs
    when only some ranks own the model: the world is the model's ranks (`group`).
    """
    parameters = list(parameters)
    for p in parameters:
        spelling = _TYPES.get(p.dtype, "torch.cuda.FloatTensor")
        p.type = lambda spelling=spelling: spelling  # type: ignore[method-assign,assignment]
    optimizer: Any = megatron.core.optimizer
    real = optimizer.torch
    distributed = _Facade(
        dist,
        {
            "get_world_size": lambda: dist.get_world_size(group),
            "all_gather_object": lambda out, obj: dist.all_gather_object(out, obj, group=group),
        },
    )
    optimizer.torch = _Facade(real, {"distributed": distributed})
    try:
        yield
    finally:
        optimizer.torch = real
        for p in parameters:
            del p.type
