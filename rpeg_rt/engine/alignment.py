"""Token rows as a forward pass wants them: left-aligned, with the places whose outputs count.

A row of [n, L_p + L_r] holds its tokens contiguously around column L_p. Moved to column 0, a token's
position is its index in its sequence whatever else is in the batch, and causal attention alone keeps
padding (now behind) out of sight.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Aligned:
    """A microbatch of b left-aligned sequences of at most s tokens, T of them response tokens.

    `ids` int64 [b, s] (0 where padded); `mask` bool [b, L_r], the response tokens in the row form;
    `predicting` int64 [T], for each of them in row-major order the index into hidden states [s * b]
    of the position before it; `targets` int64 [T], their ids; `last` int64 [b], the index into
    [s * b] of each sequence's last token.
    """

    ids: Tensor
    mask: Tensor
    predicting: Tensor
    targets: Tensor
    last: Tensor

    def expand(self, per_token: Tensor) -> Tensor:
        """[T] values to [b, L_r], 0 elsewhere; differentiable."""
        empty = torch.zeros(self.mask.shape, dtype=per_token.dtype, device=per_token.device)
        return empty.masked_scatter(self.mask, per_token)


def by_length(tokens: Tensor, together: int = 1) -> Tensor:
    """The order of token rows from the shortest sequence to the longest: microbatches of neighbours in it
    have the least padding. Every `together` consecutive rows stay so, by their longest."""
    order = (tokens >= 0).sum(1).view(-1, together).amax(1).argsort(stable=True)
    return (order[:, None] * together + torch.arange(together, device=tokens.device)).flatten()


def align(tokens: Tensor, prompt_length: int) -> Aligned:
    """Left-align token rows; without any, one token in their place whose outputs do not count, so that a pass
    through the model remains one. Raises ValueError for a sequence without prompt tokens."""
    if not len(tokens):
        ids = torch.zeros(1, 1, dtype=torch.int64, device=tokens.device)
        nothing = ids.new_empty(0)
        return Aligned(ids, tokens[:, prompt_length:] >= 0, nothing, nothing, nothing)
    rows = tokens.long()
    present = rows >= 0
    prompts, lengths = present[:, :prompt_length].sum(1), present.sum(1)
    if bool((prompts == 0).any()):
        raise ValueError("a sequence without prompt tokens: nothing predicts its first response token")
    column = torch.arange(int(lengths.max()), device=rows.device)
    source = (prompt_length - prompts)[:, None] + column
    inside = column < lengths[:, None]
    ids = rows.gather(1, source.clamp(max=rows.size(1) - 1)).masked_fill(~inside, 0)
    mask = present[:, prompt_length:]
    row, token = mask.nonzero(as_tuple=True)
    return Aligned(
        ids=ids,
        mask=mask,
        predicting=(prompts[row] - 1 + token) * len(rows) + row,
        targets=rows[row, prompt_length + token],
        last=(lengths - 1) * len(rows) + torch.arange(len(rows), device=rows.device),
    )
