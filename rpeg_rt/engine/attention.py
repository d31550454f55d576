"""How one layer attends: the scale of its scores, their softcap, its window and its positions.

The same functions serve the modules that train and score, and the decoder.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ir_schema.model import ModelSpec, RopeScaling
from rpeg_rt.engine.shim import device

_YARN_TURNS = (32.0, 1.0)


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention of one layer.

    Scores are multiplied by `scale`, then squashed to c * tanh(x / c) by a `softcap` c. A position sees the
    `window` latest ones, itself among them (None: all).

    `angles` [positions, d_h] are the rotation angles, those of both halves of a head.
    """

    scale: float
    softcap: float | None
    window: int | None
    angles: Tensor

    def causal(self, query: Tensor, key: Tensor, value: Tensor, first: int = 0) -> Tensor:
        """Query [b, heads, s, d_h] of positions `first` onward over key and value
        [b, kv heads, first + s, d_h] of all positions: [b, heads, s, d_h]."""
        length = first + query.size(2)
        windowed = self.window is not None and self.window < length
        if self.softcap is None and not windowed and first == 0:
            return F.scaled_dot_product_attention(
                query,
                key,
                value,
                is_causal=True,
                scale=self.scale,
                enable_gqa=query.size(1) != key.size(1),
            )
        begin = 0 if self.window is None else max(0, first + 1 - self.window)  # what the first query sees
        key, value = key[:, :, begin:], value[:, :, begin:]
        at = torch.arange(begin, length, device=query.device)
        behind = at[first - begin :, None] - at
        hidden = behind < 0
        if self.window is not None:
            hidden |= behind >= self.window
        bias = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device)
        return self.biased(query, key, value, bias.masked_fill_(hidden, -math.inf))

    def biased(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Attention with `bias` (0 or -inf, broadcast to [b, heads, s, slots]) added to the scores."""
        grouped = query.size(1) != key.size(1)
        if self.softcap is None:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=bias, scale=self.scale, enable_gqa=grouped
            )
        if grouped:
            key, value = (t.repeat_interleave(query.size(1) // key.size(1), dim=1) for t in (key, value))
        scores = query @ key.transpose(-1, -2) * (self.scale / self.softcap)
        scores = self.softcap * scores.tanh()
        if bias is not None:
            scores = scores + bias
        wide = torch.promote_types(scores.dtype, torch.float32)
        return scores.softmax(-1, dtype=wide).to(value.dtype) @ value


def attention_kinds(spec: ModelSpec, positions: int, dtype: torch.dtype) -> dict[bool, Attention]:
    """Attention of the model's full layers (True) and of its sliding ones (False) on sequences of at most
    `positions` tokens; angles are in `dtype`."""
    width = spec.head_width
    scale = (spec.attention_scalar or width) ** -0.5
    full, factor = frequencies(spec.rope_theta, width, spec.rope_scaling, dtype)

    def angles(frequency: Tensor) -> Tensor:
        half = torch.outer(torch.arange(positions, dtype=dtype), frequency)
        return torch.cat([half, half], dim=-1).to(device())

    everywhere = Attention(scale * factor**2, spec.attention_softcap, None, angles(full))
    if spec.sliding_window is None:
        return {True: everywhere}
    near = replace(everywhere, window=spec.sliding_window)
    if spec.local_rope_theta is not None:
        local, factor = frequencies(spec.local_rope_theta, width, None, dtype)
        near = replace(near, scale=scale * factor**2, angles=angles(local))
    return {True: everywhere, False: near}


def frequencies(
    theta: float, width: int, scaling: RopeScaling | None, dtype: torch.dtype
) -> tuple[Tensor, float]:
    """Rotation per position [width / 2], scaled as published configs say, and the factor by which queries
    and keys are multiplied (yarn's; 1 elsewhere)."""
    frequency = 1.0 / theta ** (torch.arange(0, width, 2, dtype=dtype) / width)
    if scaling is None:
        return frequency, 1.0
    if scaling.kind == "linear":
        return frequency / scaling.factor, 1.0
    original = scaling.original_positions
    assert original is not None, "the check of the architecture refuses it"
    if scaling.kind == "llama3":
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        assert low is not None, "the check of the architecture refuses it"
        assert high is not None, "the check of the architecture refuses it"
        turns = original * frequency / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        factor = 1.0
    else:
        first, last = (
            width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (scaling.beta_fast or _YARN_TURNS[0], scaling.beta_slow or _YARN_TURNS[1])
        )
        begin, end = max(math.floor(first), 0), min(math.ceil(last), width - 1)
        pair = torch.arange(width // 2, dtype=dtype)
        kept = 1 - ((pair - begin) / (end - begin or 0.001)).clamp(0, 1)
        factor = scaling.attention_factor or (
            0.1 * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0
        )
    return (1 - kept) * frequency / scaling.factor + kept * frequency, factor
