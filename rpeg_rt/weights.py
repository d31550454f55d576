"""Weights in and out of a worker's engines: where they start, and where they are left."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from ir_schema.model import ModelSpec
from rpeg_rt.checkpoints import canonical_name
from rpeg_rt.checkpoints.directory import read_tensors, writable_checkpoint
from rpeg_rt.engine.engine import Shard
from rpeg_rt.files import synchronise
from rpeg_rt.initial import initial_label, initial_tensor


def starting_weights(
    spec: ModelSpec, model: str, seed: int, checkpoint: str | None
) -> Callable[[str, tuple[int, ...]], Tensor]:
    """The canonical tensors that `model` starts from, by name and shape.

    Those of the directory `checkpoint` are views of its files: what is not looked at is not read. Others, and
    a scalar head that the checkpoint has not, are random.
    """
    tensors = {} if checkpoint is None else read_tensors(Path(checkpoint))
    saved = {canonical_name(name): tensor for name, tensor in tensors.items()}
    label = initial_label(spec, model) or model

    def canonical(name: str, shape: tuple[int, ...]) -> Tensor:
        stored = saved.get(name)
        if stored is None:
            return torch.from_numpy(initial_tensor(seed, label, name, shape, spec.unit_offset_norm))
        values = torch.from_numpy(stored.mapped())
        return values.view(torch.bfloat16) if stored.dtype == "BF16" else values

    return canonical


def write_shards(shards: Iterable[Shard], directory: Path) -> None:
    """Write an engine's shards into the laid-out checkpoint in `directory`; they are on the disk when this
    returns."""
    tensors = {canonical_name(name): values for name, values in writable_checkpoint(directory).items()}
    for shard in shards:
        values = shard.tensor.detach().cpu().contiguous()
        bits = values.view(torch.uint16) if values.dtype == torch.bfloat16 else values
        tensors[shard.name][shard.slices] = bits.numpy()
    for path in directory.glob("*.safetensors"):
        synchronise(path)
