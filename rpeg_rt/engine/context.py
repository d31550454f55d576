"""Context parallelism: which part of its sequences a rank has, and how it sees the rest of them.

Every sequence of a microbatch, padded to 2 P_c equal chunks, is dealt in zigzag: rank r has chunks r and
2 P_c - 1 - r, so that causal attention costs all ranks the same. A layer gathers keys and values of the whole
sequence; everything else works on a rank's own positions. Losses are formed of whole rows on every rank of
the group, from results gathered by `everywhere`.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Share(NamedTuple):
    """The part of each sequence that context rank `rank` of `ranks` has."""

    rank: int = 0
    ranks: int = 1

    def blocks(self, length: int) -> tuple[range, ...]:
        """The positions of the part, in ascending order of blocks of one size, in sequences of `length`; some
        may lie beyond it."""
        if self.ranks == 1:
            return (range(length),)
        chunk = -(-length // (2 * self.ranks))
        numbers = (self.rank, 2 * self.ranks - 1 - self.rank)
        return tuple(range(n * chunk, (n + 1) * chunk) for n in numbers)

    def padded(self, length: int) -> int:
        """The length to which sequences of `length` are padded."""
        return Share(0, self.ranks).blocks(length)[-1].stop


class _Sequence(torch.autograd.Function):
    """The whole of a tensor [s, ...] whose positions are dealt over a group; gradients are summed over it."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: Any) -> Tensor:
        ctx.group = group
        ranks = group.size()
        parts = mine.new_empty(ranks * mine.size(0), *mine.shape[1:])
        dist.all_gather_into_tensor(parts, mine.contiguous(), group=group)
        early, late = parts.view(ranks, 2, -1, *mine.shape[1:]).unbind(1)
        return torch.cat([early, late.flip(0)]).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (whole,) = gradients
        ranks = ctx.group.size()
        early, late = whole.view(2, ranks, -1, *whole.shape[1:]).unbind(0)
        parts = torch.stack([early, late.flip(0)], dim=1).flatten(0, 2)
        mine = whole.new_empty(parts.size(0) // ranks, *parts.shape[1:])
        dist.reduce_scatter_tensor(mine, parts, group=ctx.group)
        return mine, None


def whole_sequence(mine: Tensor, group: Any) -> Tensor:
    """All positions of a tensor [s, ...] of which this rank has its share, in order; differentiable."""
    if group.size() == 1:
        return mine
    result: Tensor = _Sequence.apply(mine, group)  # type: ignore[no-untyped-call]
    return result


class _Everywhere(torch.autograd.Function):
    """Sum over a group of what its ranks have; the gradient is what each makes of the sum by itself."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: Any) -> Tensor:
        total = mine.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def everywhere(mine: Tensor, group: Any) -> Tensor:
    """On all ranks of the group, the results of which each has some and 0 for the others. Differentiable
    where every rank forms the same loss of them: its gradient then reaches each result where it was computed.
    """
    if group.size() == 1:
        return mine
    result: Tensor = _Everywhere.apply(mine, group)  # type: ignore[no-untyped-call]
    return result
