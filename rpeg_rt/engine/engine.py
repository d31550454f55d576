"""One model in one layout on this worker: weights, scoring, generation and training.

All methods marked collective are called by every rank of the engine's layout in the same order. A replica
is the set of ranks with one data-parallel index; all of them are given the same rows and all of them
return the same results.

Token tensors are int32 [n, L_p + L_r]: the prompt left-padded with -1 to L_p, the response right-padded
with -1 to L_r.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ir_schema.model import ModelSpec
from ir_schema.problem import Optimizer, Workload
from rpeg_rt.algorithms.batch import TrainBatch
from rpeg_rt.engine.alignment import align, by_length
from rpeg_rt.engine.architecture import UnsupportedModelError, canonical_shapes, unsupported
from rpeg_rt.engine.generation import Generation, Sampling
from rpeg_rt.engine.groups import LayoutGroups
from rpeg_rt.engine.model import Model
from rpeg_rt.engine.moments import sliced
from rpeg_rt.engine.pipeline import Stage, response_logp, response_values, sequence_rewards
from rpeg_rt.engine.sharding import ShardSpec, Slices, shard_map
from rpeg_rt.engine.shim import device
from rpeg_rt.engine.training import Loss, Pass, Trainer

Kind = Literal["logp", "values", "reward"]


class VersionError(Exception):
    """A version of the weights was asked for that this engine does not hold."""


class UnknownTokenError(ValueError):
    """A token id beyond the model's vocabulary: tokenizer and model do not belong together."""


class Canonical(Protocol):
    """A whole canonical tensor, of which only slices are looked at."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""

    def __getitem__(self, slices: Slices, /) -> Tensor:
        """The values of a slice."""


@dataclass(frozen=True)
class Shard:
    """A slice of canonical tensor `name` and the local storage that holds it (`tensor` is a view)."""

    name: str
    global_shape: tuple[int, ...]
    slices: Slices
    tensor: Tensor


class Engine:
    """A model's shard on this rank. Construction is collective over the layout's ranks.

    `copies` is the number of weight versions held (the ring of a serving layout: max(1, tau)); a trainable
    engine holds one. `version` is the version of the weights in use. `room` is the number of bytes in which
    training may keep more than the inputs of layers, equal on all ranks. Weights are undefined until `load`
    or a transfer into `shards` followed by `install`; a trainable engine must be loaded.
    """

    def __init__(
        self,
        spec: ModelSpec,
        groups: LayoutGroups,
        *,
        precision: torch.dtype,
        workload: Workload,
        trainable: Optimizer | None = None,
        copies: int = 1,
        room: int = 0,
    ) -> None:
        """Raises `UnsupportedModelError` for what `rpeg_rt.engine.unsupported` lists."""
        reasons = unsupported(spec, groups.layout, workload)
        if reasons:
            raise UnsupportedModelError(reasons)
        if trainable is not None and copies != 1:
            raise ValueError("a trainable engine holds one version of its weights")
        self.spec, self.groups, self.precision = spec, groups, precision
        self.version = 0
        self._workload, self._optimizer = workload, trainable
        self._model = Model(spec, groups, precision, workload.total_length)
        self._model.requires_grad_(trainable is not None)
        self._model.room.size = room
        for parameter in self._model.parameters():
            parameter.data.zero_()  # Rows that pad the vocabulary are never filled.
        self._shards = shard_map(spec, groups.layout, groups.place)
        self._trainer: Trainer | None = None
        self._held: list[int | None] = [None] * copies
        # Versions by parameter, {} where there is no storage; a trainable engine's is its optimizer's buffer.
        self._copies: list[dict[str, Tensor]] = [{} for _ in self._held]
        self._shapes = {name: p.shape for name, p in self._model.named_parameters()}
        if trainable is None:
            self._copies[0] = {name: p.data for name, p in self._model.named_parameters()}

    def _storage(self, slot: int) -> dict[str, Tensor]:
        """The tensors of a slot by parameter, made at first use."""
        if self._optimizer is not None:
            return {name: p.data for name, p in self._model.named_parameters()}
        if not self._copies[slot]:
            self._copies[slot] = {
                name: torch.zeros(shape, dtype=self.precision, device=device())
                for name, shape in self._shapes.items()
            }
        return self._copies[slot]

    def load(self, canonical: Callable[[str, tuple[int, ...]], Canonical], version: int = 0) -> None:
        """Fill this rank's shards from canonical tensors, asked for by (name, shape), one at a time.

        Collective where the engine is trainable: its optimizer starts from these weights.
        """
        parts: dict[str, list[Shard]] = {}
        for shard in self.shards(version):
            parts.setdefault(shard.name, []).append(shard)
        for name, shape in canonical_shapes(self.spec).items():
            if name in parts:
                whole = canonical(name, shape)
                if tuple(whole.shape) != shape:
                    raise ValueError(f"{name} has shape {tuple(whole.shape)}, the model needs {shape}")
                for shard in parts[name]:
                    shard.tensor.copy_(whole[shard.slices])
        self.install(version)
        self.use(version)
        if self._optimizer is not None:
            self._trainer = Trainer(self._model, self._optimizer)

    def shards(self, version: int | None = None) -> list[Shard]:
        """Views of the local storage that holds, or in a ring will hold, `version` (default: in use)."""
        storage = self._storage(self._slot(self.version if version is None else version))
        return [_view(s, storage[s.parameter]) for s in self._shards]

    def install(self, version: int) -> None:
        """Declare that the storage of `version` has been filled (by a transfer into `shards(version)`)."""
        self._held[self._slot(version)] = version

    def use(self, version: int) -> None:
        """Make `version` the one that scores and generates. Raises `VersionError` if it is not held."""
        slot = self._slot(version)
        if self._held[slot] != version:
            raise VersionError(f"version {version} is not held, but {self.versions}")
        storage = self._storage(slot)
        for name, p in self._model.named_parameters():
            p.data = storage[name]
        self.version = version

    def release(self) -> None:
        """Drop all weights: nothing is held until a version has been installed again.

        For a serving layout without a ring, after the last reader of a version. Not for a trainable engine.
        """
        if self._optimizer is not None:
            raise ValueError("a trainable engine keeps its weights")
        for p in self._model.parameters():
            p.data = torch.empty(0, dtype=self.precision, device=device())
        self._copies = [{} for _ in self._held]
        self._held = [None for _ in self._held]

    @property
    def versions(self) -> list[int]:
        """The versions held, ascending."""
        return sorted(v for v in self._held if v is not None)

    def _slot(self, version: int) -> int:
        return version % len(self._held)

    @torch.no_grad()
    def score(self, tokens: Tensor, microbatches: int, kind: Kind, temperature: float = 1.0) -> Tensor:
        """Teacher-forced log-probabilities or values [n, L_r], or sequence rewards [n]. Collective.

        Log-probabilities are those of softmax(logits / temperature); values stand at the positions that
        predict each response token, a reward at the last token. `tokens` are the replica's rows.
        """
        self._check_tokens(tokens)
        tokens = tokens.to(device())
        shape = (len(tokens),) if kind == "reward" else (len(tokens), self._workload.response_length)
        result = torch.zeros(shape, dtype=self._model.wide, device=device())
        if len(tokens):
            order = by_length(tokens)
            parts = order.tensor_split(min(microbatches, len(tokens)))
            length, share = self._workload.prompt_length, self.groups.share
            aligned = [align(tokens[part], length, share) for part in parts]
            stage = Stage(self._model, aligned)
            outputs = []
            for i, rows in enumerate(aligned):
                hidden = stage.forward(i, training=False)
                if hidden is None:
                    continue
                if kind == "logp":
                    outputs.append(response_logp(self._model, hidden, rows, temperature))
                elif kind == "values":
                    outputs.append(response_values(self._model, hidden, rows))
                else:
                    outputs.append(sequence_rewards(self._model, hidden, rows))
            stage.finish()
            if outputs:
                result[order] = torch.cat(outputs)
        stages = self.groups.layout.pipeline_parallel
        if stages > 1:
            dist.broadcast(result, self.groups.stage_rank(stages - 1), group=self.groups.collection.pp)
        return result

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
        """Begin R rollouts of each prompt of this replica, with the weights in use now.

        `prompts` int32 [n, L_p], left-padded with -1; `indices` their positions within the step. The work
        is done by `Generation.run_until`, which is collective over the replica.
        """
        self._check_tokens(prompts)
        sampling = Sampling(seed, step, temperature, top_p, eos)
        length = self._workload.response_length
        return Generation(self._model, prompts, indices, rollouts, length, sampling, microbatches)

    def train_minibatch(
        self, batch: TrainBatch, loss: Loss, microbatches: int, temperature: float = 1.0
    ) -> dict[str, float]:
        """One optimizer step on a minibatch, of which `batch` holds this replica's rows (maybe none).

        The loss and all metrics are divided by the minibatch's response tokens (or pairs) over all replicas.
        Returns `gradient_norm` and `learning_rate`, and on ranks of the last pipeline stage `loss`, the loss
        function's metrics and, of a model with an lm head, `entropy`: the mean over response tokens, before
        the step, of that of softmax(logits / temperature). They are equal on all of them. Raises
        `NumericError`, on all ranks, where a gradient is not finite. Collective.
        """
        begun = self.begin_minibatch(batch, loss, microbatches, temperature)
        for task in begun.order:
            begun.run(task)
        return self.finish_minibatch(begun)

    def begin_minibatch(
        self, batch: TrainBatch, loss: Loss, microbatches: int, temperature: float = 1.0, tag: int = 0
    ) -> Pass:
        """The first third of `train_minibatch`: the minibatch, whose microtasks are run next. Collective.

        `tag` tells apart messages of models whose microtasks are interleaved on the same ranks.
        """
        self._check_tokens(batch.tokens)
        length = self._workload.prompt_length
        return self._trained.begin(batch, loss, microbatches, length, temperature, tag)

    def finish_minibatch(self, done: Pass) -> dict[str, float]:
        """The last third of `train_minibatch`: the optimizer step, after all microtasks. Collective."""
        return self._trained.finish(done)

    @property
    def updates(self) -> int:
        """Optimizer steps so far."""
        return self._trained.steps

    def optimizer_shards(self) -> dict[str, list[Shard]]:
        """Views of this rank's part of the optimizer's state, by kind (see `Trainer.state`)."""
        return {
            kind: [
                Shard(spec.name, spec.global_shape, slices, view)
                for flat in parts
                for spec, slices, view in sliced(flat, self._shards)
            ]
            for kind, parts in self._trained.state().items()
        }

    def resume(self, updates: int) -> None:
        """Declare that `optimizer_shards` have been filled with the state after `updates` optimizer steps."""
        self._trained.resume(updates)

    @property
    def _trained(self) -> Trainer:
        if self._trainer is None:
            raise ValueError("the engine is not trainable, or its weights have not been loaded")
        return self._trainer

    def _check_tokens(self, tokens: Tensor) -> None:
        highest = int(tokens.max()) if len(tokens) else -1
        if highest >= self.spec.vocabulary:
            raise UnknownTokenError(
                f"token id {highest} is not in the model's vocabulary of {self.spec.vocabulary} tokens"
            )

    def finish_version(self) -> int:
        """The training operator is done: its weights are the next version, whose number is returned."""
        self.version += 1
        self._held = [self.version]
        return self.version


def _view(spec: ShardSpec, parameter: Tensor) -> Shard:
    size = spec.shape[spec.axis]
    view = parameter.narrow(spec.axis, spec.start, size)
    return Shard(spec.name, spec.global_shape, spec.slices, view)
