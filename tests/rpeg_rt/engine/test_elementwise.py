"""Rotation and gating give the numbers and gradients of automatic differentiation."""

import pytest
import torch

from rpeg_rt.engine.elementwise import ACTIVATIONS, gated, rotated


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def compare(made, expected, *inputs):
    torch.testing.assert_close(made, expected, rtol=1e-13, atol=1e-13)
    weights = random(*made.shape)
    mine, theirs = (torch.autograd.grad((out * weights).sum(), inputs) for out in (made, expected))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_rotation():
    packed = random(5, 2, 3, 12).requires_grad_()
    query = packed[..., 2:10]  # as a view of something larger
    angle = random(5, 1, 1, 4)
    pairs = torch.complex(query[..., :4], query[..., 4:]) * torch.polar(torch.ones_like(angle), angle)
    compare(rotated(query, angle.cos(), angle.sin()), torch.cat([pairs.real, pairs.imag], -1), packed)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gating(name):
    packed = random(5, 3, 14).requires_grad_()
    gate, up = packed[..., :7], packed[..., 7:]
    if name == "silu":
        activated = gate * gate.sigmoid()
    else:
        activated = gate / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    compare(gated(packed, ACTIVATIONS[name]), activated * up, packed)
