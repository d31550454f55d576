"""Randomness that does not depend on the plan, and the choice of tokens from it (semantics: Runtime).

A uniform number is a pure function of (seed, step, prompt, rollout, token): Philox4x32-10 with the seed as
key and the other four as its 128-bit counter. Whatever replica, phase, microbatch or batch decodes a
sequence, its token j meets the same number. Tokens are chosen by inverting the cumulative distribution in
vocabulary order, in float64, so that layouts which differ by rounding almost never choose differently.
The generator needs numpy alone.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def derive_seed(seed: int, purpose: str) -> int:
    """A 64-bit seed for one purpose (prompt order, evaluation, weights), independent of the others."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{purpose}".encode()).digest()[:8], "little")


def philox(
    counter: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike], key: int
) -> tuple[npt.NDArray[np.uint64], ...]:
    """Philox4x32-10 (Salmon et al. 2011): four 32-bit words for each broadcast counter, held in uint64."""
    words = np.broadcast_arrays(*(np.asarray(c).astype(np.uint64) & _LOW for c in counter))
    a, b, c, d = words
    k0, k1 = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32 & 0xFFFFFFFF)
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> _HALF) ^ b ^ k0, second & _LOW, (first >> _HALF) ^ d ^ k1, first & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return a, b, c, d


def uniforms(
    seed: int, step: npt.ArrayLike, prompt: npt.ArrayLike, rollout: npt.ArrayLike, token: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), multiples of 2^-53, for each broadcast (step, prompt, rollout, token).

    `prompt` is the prompt's index within the step, `token` the response token's index from 0.
    """
    a, b, _, _ = philox((token, rollout, prompt, step), seed)
    return ((a << _HALF | b) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(
    logits: "torch.Tensor", u: "torch.Tensor", temperature: float = 1.0, top_p: float = 1.0
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Choose one token per row: the first whose cumulative probability exceeds `u`.

    `logits` [n, V] (-inf for padded vocabulary entries), `u` [n] float64 in [0, 1). With `top_p` < 1 the
    choice is among the most probable tokens whose mass reaches it (ties by token id). Returns tokens [n]
    int64 and their log-probabilities [n] float64 under softmax(logits / temperature) over the whole
    vocabulary: what training and inference compute too. Raises FloatingPointError where a logit is NaN.
    """
    import torch

    log_probabilities = torch.log_softmax(logits.double() / temperature, dim=-1)
    weights = log_probabilities.exp()
    if top_p < 1.0:
        ranked, order = torch.sort(weights, dim=-1, descending=True, stable=True)
        mass_before = ranked.cumsum(dim=-1) - ranked
        ranked = ranked.masked_fill(mass_before >= top_p, 0.0)
        weights = torch.zeros_like(weights).scatter_(-1, order, ranked)
    cumulative = weights.cumsum(dim=-1)
    if bool(cumulative[:, -1].isnan().any()):
        raise FloatingPointError("a distribution to sample from is not finite")
    threshold = u.to(cumulative)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True)
    # Rounding can put the threshold on the total; the last token that can be chosen is then meant.
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous(), right=False)
    tokens = torch.minimum(tokens, last)
    return tokens[:, 0], log_probabilities.gather(-1, tokens)[:, 0]
