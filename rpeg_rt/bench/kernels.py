"""The kernels of which a layer consists, one at a time."""

from collections.abc import Callable
from itertools import cycle

import torch

from rpeg_rt.bench.jobs import Copy, LayerRest, Product
from rpeg_rt.engine.blocks import rms_norm
from rpeg_rt.engine.shim import device

_BEYOND_CACHES, _MOST_WEIGHTS = 1 << 27, 256
"""Bytes of weights that take turns, and at most how many."""
FLOATS = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
"""By width in bytes."""


def kernel(subject: Product | Copy | LayerRest) -> Callable[[], object]:
    """A call of the kernel, on operands that are made now."""
    if isinstance(subject, Product):
        return _product(subject)
    if isinstance(subject, Copy):
        return _copy(subject)
    return _layer_rest(subject)


def _product(p: Product) -> Callable[[], object]:
    # As linear layers have it: one row of a weight is a column of the result, and when a layer's turn comes
    # again, its weight has left the caches.
    rows = torch.randn(p.rows, p.inner, device=device()).to(FLOATS[p.width])
    count = max(2, min(_MOST_WEIGHTS, _BEYOND_CACHES // (p.columns * p.inner * p.width)))
    weights = torch.randn(count, p.columns, p.inner, device=device()).to(FLOATS[p.width])
    turns = cycle(weights.unbind())
    return torch.no_grad()(lambda: torch.nn.functional.linear(rows, next(turns)))


def _copy(copy: Copy) -> Callable[[], object]:
    source = torch.ones(copy.nbytes // 2, dtype=torch.uint8, device=device())
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def _layer_rest(rest: LayerRest) -> Callable[[], object]:
    shape = (rest.tokens, rest.sequences, rest.hidden)
    hidden, update = (torch.randn(shape, device=device()).to(FLOATS[rest.width]) for _ in range(2))
    factors = torch.ones(rest.hidden, dtype=FLOATS[rest.width], device=device())

    def call() -> None:
        residual = hidden
        for _ in ("attention", "feed-forward"):
            rms_norm(residual, factors, 1e-5)
            residual = residual + update

    return torch.no_grad()(call)
