"""Rotation and gating of a transformer layer, with gradients of their own.

They write each result, and each gradient, once and in place, where automatic differentiation would assemble
them from halves.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
"""By the names of published configs."""

_GRADIENTS: dict[Callable[[Tensor], Tensor], Callable[..., Tensor]] = {
    ACTIVATIONS["silu"]: torch.ops.aten.silu_backward.grad_input,
    ACTIVATIONS["gelu_pytorch_tanh"]: partial(torch.ops.aten.gelu_backward.grad_input, approximate="tanh"),
}


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turned(x, cosine, sine)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turned(gradients[0], cosine, -sine), None, None


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    turned = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (a, b), (first, second) = x.chunk(2, -1), turned.chunk(2, -1)
    torch.mul(a, cosine, out=first).addcmul_(b, sine, value=-1)
    torch.mul(b, cosine, out=second).addcmul_(a, sine)
    return turned


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x [..., d] = [a, b] to [a cos - b sin, b cos + a sin]; cosine, sine [..., d / 2] have no gradient."""
    result: Tensor = _Rotated.apply(x, cosine, sine)  # type: ignore[no-untyped-call]
    return result


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        gate, up = packed.chunk(2, -1)
        activated = activation(gate)
        ctx.save_for_backward(packed, activated)
        ctx.gradient = _GRADIENTS[activation]
        return activated * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        packed, activated = ctx.saved_tensors
        gate, up = packed.chunk(2, -1)
        result = torch.empty_like(packed)
        of_gate, of_up = result.chunk(2, -1)
        torch.mul(gradients[0], activated, out=of_up)
        ctx.gradient(gradients[0] * up, gate, grad_input=of_gate)
        return result, None


def gated(packed: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(gate) * up of packed [..., 2 f] = [gate, up]; `activation` is one of `ACTIVATIONS`."""
    result: Tensor = _Gated.apply(packed, activation)  # type: ignore[no-untyped-call]
    return result
