"""What the algorithms that learn from sampled responses share: the clipped policy loss, and estimates of the
KL divergence to the reference, as in `docs/learning.md`.

Shapes: n sequences of at most L_r response tokens; `mask` [n, L_r] bool marks response tokens. Every result
is 0 outside the mask. Losses are sums over tokens.
"""

from typing import Literal

import torch
from torch import Tensor

from rpeg_rt.algorithms.batch import Metrics

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(logp: Tensor, logp_ref: Tensor, mask: Tensor, estimator: Estimator) -> Tensor:
    """[n, L_r]: per token, with d = logp - logp_ref: k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d.

    All have the divergence of the policy from the reference in mind; k1 and k3 have it as their mean where
    tokens were sampled by `logp`.
    """
    d = torch.where(mask, logp - logp_ref, 0.0)
    if estimator == "k1":
        return d
    return d.square() / 2 if estimator == "k2" else torch.exp(-d) - 1 + d


def policy_loss(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor, clip_ratio: float
) -> tuple[Tensor, Metrics]:
    """Sum over tokens of -min(ratio*A, clip(ratio, 1 -+ clip_ratio)*A), ratio = exp(logp - old_logp)."""
    difference = torch.where(mask, logp - old_logp, 0.0)
    ratio = difference.exp()
    clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    loss = torch.where(mask, -torch.minimum(ratio * advantages, clipped * advantages), 0.0).sum()
    with torch.no_grad():
        metrics = {
            "policy_loss": loss.double(),
            "clip_fraction": (clipped * advantages < ratio * advantages).sum(dtype=torch.float64),
            "update_kl": (ratio - 1 - difference).sum(dtype=torch.float64),
        }
    return loss, metrics
