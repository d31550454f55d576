"""Moving tensors between workers: rows of containers and fragments of weights, over Gloo or NCCL.

One message per pair of ranks and call; all receives and sends are posted before any is waited for, so a
call cannot deadlock as long as every rank runs the calls it takes part in, in one common order.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rpeg_rt.engine.engine import Shard
from rpeg_rt.engine.routing import Fragment


def exchange(sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int = 0) -> int:
    """Send tensors to and fill tensors from other ranks (by global rank); returns the bytes sent."""
    raise NotImplementedError


def move_fragments(
    fragments: Sequence[Fragment],
    source: Sequence[Shard] | None,
    destination: Sequence[Shard] | None,
    dtype: torch.dtype,
    tag: int = 0,
) -> int:
    """Carry out this rank's part of a route; `source` / `destination` are None where it holds neither.

    Fragments of a rank for itself are copied locally. Returns the bytes that this rank sent to others.
    """
    raise NotImplementedError
