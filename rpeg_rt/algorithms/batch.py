"""Rows of one training operator on one replica, and their deal into minibatches.

Losses are sums over response tokens; the engine divides by the minibatch's token count over all replicas,
never by a microbatch's or a replica's, which is what makes results independent of the plan.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

AllReduce = Callable[[Tensor], Tensor]
"""Sums a float64 tensor over the data-parallel replicas; the identity where there is one replica."""

Metrics = dict[str, Tensor]
"""Float64 scalars that have been summed over some tokens or sequences and may be added up further."""


def response_mask(tokens: Tensor, prompt_length: int) -> Tensor:
    """[n, L_r] bool: which positions after the prompt hold response tokens (padding is -1)."""
    return tokens[:, prompt_length:] >= 0


def truncated(tokens: Tensor, prompt_length: int, eos: int | None) -> Tensor:
    """[n] bool: which responses ended at L_r without EOS (None: nothing is one)."""
    whole = response_mask(tokens, prompt_length).all(1)
    return whole if eos is None else whole & (tokens[:, -1] != eos)


@dataclass(frozen=True)
class TrainBatch:
    """n sequences of the step, with everything a loss needs about them.

    `prompts` [n] is each sequence's prompt index within the step, `tokens` [n, L_p + L_r], `mask` [n, L_r];
    the others are [n, L_r] and 0 beyond the end of the response. `logp` (from the version that generated)
    is None for an operator that does not read it.
    """

    prompts: Tensor
    tokens: Tensor
    mask: Tensor
    logp: Tensor | None
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, rows: Tensor | slice) -> "TrainBatch":
        """The batch of the chosen rows (index or boolean tensor, or slice)."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen: dict[str, Any] = {name: None if c is None else c[rows] for name, c in columns.items()}
        return TrainBatch(**chosen)


def minibatches(batch: TrainBatch, count: int, epochs: int) -> Iterator[TrainBatch]:
    """The `epochs` * `count` minibatches of a step, in order.

    Minibatch m holds the prompts p with p mod `count` = m: the same for every plan, and balanced for replicas
    that hold contiguous blocks of prompts. A replica's part may be empty; all replicas yield equally often.
    """
    for _ in range(epochs):
        for m in range(count):
            yield batch if count == 1 else batch.select(batch.prompts % count == m)
