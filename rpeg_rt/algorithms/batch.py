"""Rows of one training operator on one replica, and their deal into minibatches.

Losses are sums over response tokens, or over pairs; the engine divides by the minibatch's number of them over
all replicas, never by a microbatch's or a replica's, which is what makes results independent of the plan.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

AllReduce = Callable[[Tensor], Tensor]
"""Sums a float64 tensor over the data-parallel replicas; the identity where there is one replica."""

Metrics = dict[str, Tensor]
"""Float64 scalars that have been summed over some tokens or sequences and may be added up further."""


def response_mask(tokens: Tensor, prompt_length: int) -> Tensor:
    """[n, L_r] bool: which positions after the prompt hold response tokens (padding is -1)."""
    return tokens[:, prompt_length:] >= 0


@dataclass(frozen=True)
class Columns:
    """This replica's rows of the containers that a training operator reads; None: it does not read it.

    `prompts` [n] holds prompt indices within the step, ascending, `tokens` [n, L_p + L_r], `rewards` [n];
    `logp` (of the version that generated, or for pairs of the one that scored), `logp_ref` and `values` are
    [n, L_r]. `eos` None: responses end at L_r only.
    """

    prompts: Tensor
    tokens: Tensor
    prompt_length: int
    eos: int | None
    logp: Tensor | None = None
    logp_ref: Tensor | None = None
    rewards: Tensor | None = None
    values: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """[n, L_r] bool: the response tokens."""
        return response_mask(self.tokens, self.prompt_length)

    @property
    def prompt_tokens(self) -> Tensor:
        """[n] tokens of the prompts."""
        return (self.tokens[:, : self.prompt_length] >= 0).sum(1)

    @property
    def truncated(self) -> Tensor:
        """[n] bool: which responses ended at L_r without EOS."""
        whole = self.mask.all(1)
        return whole if self.eos is None else whole & (self.tokens[:, -1] != self.eos)


@dataclass(frozen=True)
class TrainBatch:
    """n sequences of the step, with everything a loss needs about them (None: it needs none of it).

    `prompts` [n] is each sequence's prompt index within the step, `tokens` [n, L_p + L_r], `mask` [n, L_r];
    the others are [n, L_r] and 0 beyond the end of the response. `logp` is from the version that generated.
    `paired`: rows 2i and 2i + 1 are a chosen and a rejected response, and the loss is a mean over pairs.
    """

    prompts: Tensor
    tokens: Tensor
    mask: Tensor
    logp: Tensor | None = None
    logp_ref: Tensor | None = None
    values: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    paired: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def together(self) -> int:
        """How many consecutive rows the loss needs at once."""
        return 2 if self.paired else 1

    @property
    def terms(self) -> Tensor:
        """Float64 scalar: of how many tokens, or pairs, the loss is a sum."""
        if self.paired:
            return torch.tensor(len(self) / 2, dtype=torch.float64, device=self.tokens.device)
        return self.mask.sum(dtype=torch.float64)

    def select(self, rows: Tensor | slice) -> "TrainBatch":
        """The batch of the chosen rows (index or boolean tensor, or slice)."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen: dict[str, Any] = {n: c[rows] if isinstance(c, Tensor) else c for n, c in columns.items()}
        return TrainBatch(**chosen)


def minibatches(batch: TrainBatch, count: int, epochs: int) -> Iterator[TrainBatch]:
    """The `epochs` * `count` minibatches of a step, in order.

    Minibatch m holds the prompts p with p mod `count` = m: the same for every plan, and balanced for replicas
    that hold contiguous blocks of prompts. A replica's part may be empty; all replicas yield equally often.
    """
    for _ in range(epochs):
        for m in range(count):
            yield batch if count == 1 else batch.select(batch.prompts % count == m)
