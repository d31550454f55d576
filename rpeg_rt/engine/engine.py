"""One model in one layout on this worker: weights, scoring, generation and training.

All methods marked collective are called by every rank of the engine's layout in the same order. A replica
is the set of ranks with one data-parallel index; all of them are given the same rows and all of them
return the same results.

Token tensors are int32 [n, L_p + L_r]: the prompt left-padded with -1 to L_p, the response right-padded
with -1 to L_r.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ir_schema.model import ModelSpec
from ir_schema.problem import Optimizer, Workload
from rpeg_rt.algorithms.batch import Metrics, TrainBatch
from rpeg_rt.engine.generation import Generation
from rpeg_rt.engine.groups import LayoutGroups
from rpeg_rt.engine.sharding import Slices

Kind = Literal["logp", "values", "reward"]


@dataclass(frozen=True)
class Shard:
    """A slice of canonical tensor `name` and the local storage that holds it (`tensor` is a view)."""

    name: str
    global_shape: tuple[int, ...]
    slices: Slices
    tensor: Tensor


@dataclass(frozen=True)
class TokenOutputs:
    """What a forward pass gives a loss function, each [n, L_r] and 0 beyond the response.

    `logp` of the response tokens (None without an lm head), `values` at the positions that predict them
    (None without a scalar head).
    """

    logp: Tensor | None
    values: Tensor | None


Loss = Callable[[TokenOutputs, TrainBatch], tuple[Tensor, Metrics]]
"""Sum over the rows' response tokens of the loss, and sums of other figures."""


class Engine:
    """A model's shard on this rank. Construction is collective over the layout's ranks.

    `copies` is the number of weight versions held (the ring of a serving layout: max(1, tau)); a trainable
    engine holds one. `version` is the version of the weights in use.
    """

    version: int

    def __init__(
        self,
        spec: ModelSpec,
        groups: LayoutGroups,
        *,
        precision: torch.dtype,
        workload: Workload,
        trainable: Optimizer | None = None,
        copies: int = 1,
    ) -> None:
        """Raises `UnsupportedModelError` for what `rpeg_rt.engine.unsupported` lists."""
        raise NotImplementedError

    def load(self, canonical: Callable[[str, tuple[int, ...]], Tensor], version: int = 0) -> None:
        """Fill this rank's shards from full canonical tensors, asked for by (name, shape), one at a time."""
        raise NotImplementedError

    def shards(self, version: int | None = None) -> list[Shard]:
        """Views of the local storage that holds, or in a ring will hold, `version` (default: in use)."""
        raise NotImplementedError

    def install(self, version: int) -> None:
        """Declare that the storage of `version` has been filled (by a transfer into `shards(version)`)."""
        raise NotImplementedError

    def use(self, version: int) -> None:
        """Make `version` the one that scores and generates. Raises `VersionError` if it is not held."""
        raise NotImplementedError

    def score(self, tokens: Tensor, microbatches: int, kind: Kind, temperature: float = 1.0) -> Tensor:
        """Teacher-forced log-probabilities or values [n, L_r], or sequence rewards [n]. Collective."""
        raise NotImplementedError

    def start_generation(
        self,
        prompts: Tensor,
        indices: Sequence[int],
        rollouts: int,
        *,
        seed: int,
        step: int,
        temperature: float,
        top_p: float,
        eos: int | None,
        microbatches: int,
    ) -> Generation:
        """Begin R rollouts of each prompt of this replica. Collective over the replica.

        `prompts` int32 [n, L_p], left-padded with -1; `indices` their positions within the step. See
        `Generation.run_until`.
        """
        raise NotImplementedError

    def train_minibatch(self, batch: TrainBatch, loss: Loss, microbatches: int) -> dict[str, float]:
        """One optimizer step on a minibatch, of which `batch` holds this replica's rows (maybe none).

        The loss and all metrics are divided by the minibatch's response tokens over all replicas. Returns
        the metrics with `loss`, `gradient_norm` and `learning_rate`, equal on all ranks. Collective.
        """
        raise NotImplementedError

    def finish_version(self) -> int:
        """The training operator is done: its weights are the next version, whose number is returned."""
        raise NotImplementedError
