"""Sampling responses with a static key/value cache under data, tensor and pipeline parallelism."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Finished:
    """Sequences that have ended: `indices` int64 [n] ascending (prompt index * R + rollout), `tokens` int32
    [n, L_p + L_r], `logp` [n, L_r], `truncated` bool [n] (ended at L_r without EOS)."""

    indices: Tensor
    tokens: Tensor
    logp: Tensor
    truncated: Tensor


class Generation:
    """A replica's sequences while they are being decoded."""

    def run_until(self, count: int) -> Finished:
        """Decode until `count` of the replica's sequences have left, counting earlier calls; return those
        that leave now. Those that end at one time leave in order of their index. Collective.
        """
        raise NotImplementedError
