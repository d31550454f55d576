"""Initial weights: each canonical tensor is a pure function of (seed, label, name, shape).

So models that share a label start equal under any plan, and any rank can draw any tensor on its own. The
numbers come from numpy's Philox bit stream (stable across numpy releases) through Box-Muller.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ir_schema.model import ModelSpec
from rpeg_rt.sampling import derive_seed

EMBEDDING_STD = 0.02
SCALAR_HEAD_STD = 1e-3
_RANDOM = "random:"


def initial_label(spec: ModelSpec, model: str) -> str | None:
    """The label that seeds the weights of `model`, or None where its checkpoint names saved weights.

    Without a checkpoint all policies have one label, so that a reference starts equal to the actor it
    holds back; every other model has its own.
    """
    if spec.checkpoint is None:
        return "policy" if spec.has_lm_head else model
    return spec.checkpoint.removeprefix(_RANDOM) if spec.checkpoint.startswith(_RANDOM) else None


def initial_tensor(
    seed: int, label: str, name: str, shape: Sequence[int], unit_offset: bool = False
) -> npt.NDArray[np.float64]:
    """Values of the canonical (Hugging Face named) tensor `name`, float64.

    Norm weights are 1 (with `unit_offset`, where their difference from 1 is stored, 0) and biases 0.
    Embeddings are normal with deviation 0.02, the scalar head 0.001 (values start near 0), every other matrix
    [out, in] 1/sqrt(in).
    """
    if name.endswith(".bias"):
        return np.zeros(shape)
    if len(shape) == 1:
        return np.zeros(shape) if unit_offset else np.ones(shape)
    return _deviation(name, shape) * _normals(derive_seed(seed, f"weights:{label}:{name}"), shape)


def _deviation(name: str, shape: Sequence[int]) -> float:
    if name == "value_head.weight":
        return SCALAR_HEAD_STD
    if "embed" in name:
        return EMBEDDING_STD
    return 1.0 / math.sqrt(shape[-1])


def _normals(seed: int, shape: Sequence[int]) -> npt.NDArray[np.float64]:
    n = math.prod(shape)
    half = (n + 1) // 2
    raw = np.random.Philox(key=seed).random_raw(2 * half) >> np.uint64(11)
    radius = np.sqrt(-2.0 * np.log1p(-(raw[:half].astype(np.float64) * 2.0**-53)))
    angle = raw[half:].astype(np.float64) * (2.0 * math.pi * 2.0**-53)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n].reshape(shape)
