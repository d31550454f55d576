"""How much layers keep for the backward pass: all that it needs where there is room, their input alone else.

A layer that keeps its input alone runs a second time in the backward pass, with the same bits. What a layer
would keep is bounded from its shapes, and the room is what a plan leaves of a GPU's memory, so ranks that
compute a layer together decide alike.
"""

import torch

from ir_schema.model import ModelSpec
from rpeg_rt.engine.attention import Attention
from rpeg_rt.engine.groups import LayoutGroups


class Room:
    """Bytes for what layers keep beside their input, and how many of them are taken."""

    def __init__(self, size: int = 0) -> None:
        self.size, self.taken = size, 0

    def take(self, size: int) -> bool:
        """Take `size` bytes if they are there."""
        fits = self.taken + size <= self.size
        if fits:
            self.taken += size
        return fits

    def give_back(self, size: int) -> None:
        """What `size` bytes were taken for is no longer needed."""
        self.taken -= size


def kept_elements(spec: ModelSpec, groups: LayoutGroups, kind: Attention, length: int) -> int:
    """At most so many elements, of the wider of the weights' type and float32, a dense layer on one rank
    keeps per position that it has of a sequence of `length`, beside its input."""
    tensor = groups.layout.tensor_parallel
    query = spec.attention_heads * spec.head_width // tensor
    gathered = max(1, spec.query_groups // tensor) * spec.head_width
    feed_forward = spec.ffn // tensor
    # Two norms: input, normalised, scaled. Attention: packed, then turned and laid out anew, and its result
    # twice. Feed-forward: both projections, the activation and the product.
    norms = 6 * spec.hidden
    attention = 5 * query + 5 * gathered * groups.layout.context_parallel + 2 * spec.attention_heads
    if spec.qk_norm:
        norms += 3 * (query + gathered)
    if spec.post_norms:
        norms += 6 * spec.hidden
    if kind.softcap is not None or kind.window is not None:
        # Scores are written out: as they are, squashed, hidden, and as probabilities.
        attention += 5 * (spec.attention_heads // tensor) * length + 2 * query
    return norms + attention + 5 * feed_forward + spec.hidden


def kept_bytes(
    spec: ModelSpec, groups: LayoutGroups, kind: Attention, shape: torch.Size, dtype: torch.dtype
) -> int:
    """At most so many bytes a dense layer keeps of hidden states of `shape` [s, b, h] beside them."""
    here, batch = shape[0], shape[1]
    wide = torch.promote_types(dtype, torch.float32).itemsize
    return here * batch * wide * kept_elements(spec, groups, kind, here * groups.layout.context_parallel)
