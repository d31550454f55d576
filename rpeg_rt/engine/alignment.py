"""Token rows as a forward pass wants them: left-aligned, with the places whose outputs count.

A row of [n, L_p + L_r] holds its tokens contiguously around column L_p. Moved to column 0, a token's
position is its index in its sequence whatever else is in the batch, and causal attention alone keeps
padding (now behind) out of sight. Under context parallelism a rank has some of the columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rpeg_rt.engine.context import Share

_WHOLE = Share()


@dataclass(frozen=True)
class Aligned:
    """A rank's share of a microbatch of b left-aligned sequences: s columns, which predict T response tokens
    and in which E sequences end.

    `ids` int64 [b, s] (0 where padded); `mask` bool [b, L_r], the T response tokens in the row form;
    `predicting` int64 [T], for each of them in row-major order the index into hidden states [s * b]
    of the position before it; `targets` int64 [T], their ids; `ending` bool [b], the E sequences; `last`
    int64 [E], the index into [s * b] of the last token of each.
    """

    ids: Tensor
    mask: Tensor
    predicting: Tensor
    targets: Tensor
    ending: Tensor
    last: Tensor

    def expand(self, per_token: Tensor) -> Tensor:
        """[T] values to [b, L_r], 0 elsewhere; differentiable."""
        return _spread(per_token, self.mask)

    def expand_last(self, per_sequence: Tensor) -> Tensor:
        """[E] values to [b], 0 elsewhere; differentiable."""
        return _spread(per_sequence, self.ending)


def _spread(values: Tensor, places: Tensor) -> Tensor:
    empty = torch.zeros(places.shape, dtype=values.dtype, device=values.device)
    return empty.masked_scatter(places, values)


def by_length(tokens: Tensor, together: int = 1) -> Tensor:
    """The order of token rows from the shortest sequence to the longest: microbatches of neighbours in it
    have the least padding. Every `together` consecutive rows stay so, by their longest."""
    order = (tokens >= 0).sum(1).view(-1, together).amax(1).argsort(stable=True)
    return (order[:, None] * together + torch.arange(together, device=tokens.device)).flatten()


def align(tokens: Tensor, prompt_length: int, share: Share = _WHOLE) -> Aligned:
    """Left-align token rows. Raises ValueError for a sequence without prompt tokens."""
    rows = tokens.long()
    present = rows >= 0
    prompts, lengths = present[:, :prompt_length].sum(1), present.sum(1)
    if bool((prompts == 0).any()):
        raise ValueError("a sequence without prompt tokens: nothing predicts its first response token")
    longest = int(lengths.max())
    columns = [torch.arange(b.start, b.stop, device=rows.device) for b in share.blocks(longest)]
    column = torch.cat(columns)
    index = torch.full((share.padded(longest),), -1, device=rows.device)
    index[column] = torch.arange(len(column), device=rows.device)  # -1: another rank has the position
    source = (prompt_length - prompts)[:, None] + column
    inside = column < lengths[:, None]
    ids = rows.gather(1, source.clamp(max=rows.size(1) - 1)).masked_fill(~inside, 0)
    row, token = present[:, prompt_length:].nonzero(as_tuple=True)
    mask = torch.zeros_like(present[:, prompt_length:])
    predicting = index[prompts[row] - 1 + token]
    here = predicting >= 0
    row, token, predicting = row[here], token[here], predicting[here]
    mask[row, token] = True
    last = index[lengths - 1]
    ending = last >= 0
    (ended,) = ending.nonzero(as_tuple=True)
    return Aligned(
        ids=ids,
        mask=mask,
        predicting=predicting * len(rows) + row,
        targets=rows[row, prompt_length + token],
        ending=ending,
        last=last[ended] * len(rows) + ended,
    )
