"""Sampling responses under tensor and pipeline parallelism, in phases that keep the cache.

All sequences of a replica decode in lockstep: after j rounds every unfinished one has j response tokens.
Rounds run microbatch after microbatch, so that the stages of a pipeline work on different ones. A token
is chosen on the last stage from a number that depends on (seed, step, prompt, rollout, token) alone.

Where experts are divided over ranks of several replicas, the rounds of all replicas are the same: they go on
until the last of them has what it was asked for, and where one has nothing left to decode in a round, its
ranks still serve the tokens of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rpeg_rt.engine.decode import Cache, Decoder
from rpeg_rt.engine.model import Model
from rpeg_rt.engine.pipeline import Sender
from rpeg_rt.engine.shim import device
from rpeg_rt.sampling import sample, uniforms

# Rows are dropped from the cache once this fraction of them has ended: a copy costs about one round.
COMPACTION = 0.25


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; `eos` None means that responses end at L_r only."""

    seed: int
    step: int
    temperature: float
    top_p: float
    eos: int | None


@dataclass(frozen=True)
class Finished:
    """Sequences that have left: `indices` int64 [n] ascending (prompt index * R + rollout), `tokens` int32
    [n, L_p + L_r], `logp` [n, L_r]."""

    indices: Tensor
    tokens: Tensor
    logp: Tensor


@dataclass
class _Chunk:
    """The sequences of a microbatch that are still in its batch.

    `rows` [b] are their places in the replica's buffers, `alive` [b] whether they still decode, `prompts` and
    `rollouts` [b] their numbers. `cache` is None before prefill, `pending` what the last stage sampled
    and this rank has not taken note of.
    """

    rows: Tensor
    alive: Tensor
    prompts: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    rollouts: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    cache: Cache | None = None
    pending: Tensor | None = None
    count: int = 0
    waiting: bool = False


class Generation:
    """A replica's sequences while they are being decoded, the same on all its ranks."""

    def __init__(
        self,
        model: Model,
        prompts: Tensor,
        indices: Sequence[int],
        rollouts: int,
        response_length: int,
        sampling: Sampling,
        microbatches: int,
    ) -> None:
        n = len(prompts) * rollouts
        self._model, self._groups, self._decoder = model, model.groups, Decoder(model)
        self._sampling, self._limit = sampling, response_length
        self._prompts, self._rollouts = prompts.to(device()), rollouts
        present = self._prompts >= 0
        if bool((~present.any(1)).any()):
            raise ValueError("a prompt without tokens: nothing predicts its first response token")
        self._lengths = present.sum(1)
        self._indices = (
            torch.as_tensor(indices, dtype=torch.int64, device=device())[:, None] * rollouts
            + torch.arange(rollouts, device=device())
        ).flatten()
        self._tokens = torch.full((n, response_length), -1, dtype=torch.int32, device=device())
        self._logp = torch.zeros(n, response_length, dtype=model.wide, device=device())
        self._ended: list[tuple[int, int, int]] = []
        self._left = 0
        self._sender = Sender()
        parts = torch.arange(n, device=device()).tensor_split(microbatches)
        if not self._groups.lockstep:
            parts = tuple(rows for rows in parts if len(rows))
        self._chunks = [self._chunk(rows, np.asarray(indices, dtype=np.int64)) for rows in parts]
        self._eager = len(self._chunks) == 1

    def _chunk(self, rows: Tensor, indices: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> _Chunk:
        places = rows.cpu().numpy()
        alive = torch.ones(len(rows), dtype=torch.bool, device=device())
        return _Chunk(rows, alive, indices[places // self._rollouts], places % self._rollouts)

    @property
    def total(self) -> int:
        """Sequences of the replica."""
        return len(self._indices)

    @torch.no_grad()
    def run_until(self, count: int) -> Finished:
        """Decode until `count` of the replica's sequences have left, counting earlier calls; return those
        that leave now. Those that end with equal lengths leave in order of their index. Collective.
        """
        if not self._left <= count <= self.total:
            raise ValueError(
                f"{count} of {self.total} sequences, of which {self._left} have left, cannot end"
            )
        while self._goes_on(count):
            for chunk in self._chunks:
                self._note(chunk)
                if chunk.count < self._limit and len(chunk.rows):
                    self._round(chunk)
                elif self._groups.lockstep:
                    self._decoder.idle()
                if self._eager:
                    self._note(chunk)
            self._sender.wait(keep=2 * len(self._chunks) * self._groups.layout.pipeline_parallel)
        for chunk in self._chunks:
            self._note(chunk)
        self._sender.wait()
        self._ended.sort()
        leaving = self._ended[: count - self._left]
        self._ended = self._ended[count - self._left :]
        self._left = count
        return self._collect([row for _, _, row in leaving])

    def _goes_on(self, count: int) -> bool:
        """Whether there is another round: for this replica, or for any that goes in lockstep with it."""
        wanting = len(self._ended) + self._left < count
        if not self._groups.lockstep:
            return wanting
        some = torch.tensor([wanting], dtype=torch.int32, device=device())
        dist.all_reduce(some, op=dist.ReduceOp.MAX, group=self._groups.collection.dp_cp)
        return bool(some)

    def _collect(self, leaving: list[int]) -> Finished:
        rows = torch.tensor(leaving, dtype=torch.int64, device=device())
        rows = rows[self._indices[rows].argsort()]
        response = self._tokens[rows]
        prompts = self._prompts[rows // self._rollouts].to(torch.int32)
        return Finished(
            indices=self._indices[rows],
            tokens=torch.cat([prompts, response], dim=1),
            logp=self._logp[rows],
        )

    def _round(self, chunk: _Chunk) -> None:
        """One more token for every sequence of the chunk, as far as this stage is concerned."""
        groups = self._groups
        if chunk.cache is None:
            hidden, newest = self._prefill(chunk)
        else:
            hidden = newest = self._decode(chunk, chunk.cache)
        if groups.is_last_stage:
            chunk.pending = self._choose(chunk, self._decoder.logits(newest))
        else:
            self._sender.send(hidden, groups.stage_rank(groups.place.pipeline + 1))
        chunk.waiting = True

    def _prefill(self, chunk: _Chunk) -> tuple[Tensor, Tensor]:
        """Run the chunk's prompts, each once: their hidden states [n, s, h], and the last of each row."""
        prompts, which = torch.unique(chunk.rows // self._rollouts, return_inverse=True)
        lengths = self._lengths[prompts]
        longest = int(lengths.max())
        if self._groups.is_first_stage:
            hidden = self._decoder.embed(self._left_aligned(prompts, longest))
        else:
            hidden = self._receive(len(prompts), longest)
        hidden, chunk.cache = self._decoder.prefill(hidden, lengths, longest + self._limit, which)
        return hidden, hidden[torch.arange(len(prompts), device=device()), lengths - 1][which]

    def _decode(self, chunk: _Chunk, cache: Cache) -> Tensor:
        """Run the chunk's newest tokens: hidden states [b, h]."""
        if self._groups.is_first_stage:
            newest = self._tokens[chunk.rows, chunk.count - 1]
            hidden = self._decoder.embed(newest.clamp(min=0).long())
        else:
            hidden = self._receive(len(chunk.rows))
        return self._decoder.decode(hidden, cache, chunk.alive)

    def _receive(self, *shape: int) -> Tensor:
        config = self._model.config
        hidden = torch.empty(*shape, config.hidden_size, dtype=config.params_dtype, device=device())
        dist.recv(hidden, self._groups.stage_rank(self._groups.place.pipeline - 1))
        return hidden

    def _left_aligned(self, prompts: Tensor, length: int) -> Tensor:
        rows, lengths = self._prompts[prompts].long(), self._lengths[prompts]
        column = torch.arange(length, device=device())
        source = (rows.size(1) - lengths)[:, None] + column
        return rows.gather(1, source.clamp(max=rows.size(1) - 1)).masked_fill(column >= lengths[:, None], 0)

    def _choose(self, chunk: _Chunk, logits: Tensor) -> Tensor:
        """Sample a token per row; float64 [2, b] of tokens and log-probabilities, sent to earlier stages."""
        s = self._sampling
        u = torch.from_numpy(uniforms(s.seed, s.step, chunk.prompts, chunk.rollouts, chunk.count))
        tokens, logp = sample(logits, u.to(logits.device), s.temperature, s.top_p)
        chosen = torch.stack([tokens.double(), logp.double()])
        for stage in range(self._groups.layout.pipeline_parallel - 1):
            self._sender.send(chosen, self._groups.stage_rank(stage))
        return chosen

    def _note(self, chunk: _Chunk) -> None:
        """Take note of the tokens of the chunk's latest round, if any: write them down, see who has ended."""
        if not chunk.waiting:
            return
        chunk.waiting = False
        chosen = chunk.pending
        if chosen is None:
            chosen = torch.empty(2, len(chunk.rows), dtype=torch.float64, device=device())
            dist.recv(chosen, self._groups.stage_rank(self._groups.layout.pipeline_parallel - 1))
        chunk.pending = None
        tokens = chosen[0].to(torch.int32)
        rows, column = chunk.rows, chunk.count
        self._tokens[rows, column] = torch.where(chunk.alive, tokens, -1)
        self._logp[rows, column] = torch.where(chunk.alive, chosen[1], 0.0).to(self._logp.dtype)
        chunk.count += 1
        ending = chunk.alive
        if chunk.count < self._limit:
            if self._sampling.eos is None:
                return
            ending = ending & (tokens == self._sampling.eos)
        ended = rows[ending].tolist()
        if not ended:
            return
        indices = self._indices[rows[ending]].tolist()
        self._ended += [(chunk.count, i, row) for i, row in zip(indices, ended, strict=True)]
        chunk.alive = chunk.alive & ~ending
        self._compact(chunk)

    def _compact(self, chunk: _Chunk) -> None:
        """Drop ended rows from the chunk's batch once there are enough of them to pay for the copy."""
        alive = int(chunk.alive.sum())
        if alive > (1 - COMPACTION) * len(chunk.rows) or chunk.cache is None:
            return
        keep = chunk.alive.nonzero()[:, 0]
        chunk.rows, chunk.alive = chunk.rows[keep], chunk.alive[keep]
        places = keep.cpu().numpy()
        chunk.prompts, chunk.rollouts = chunk.prompts[places], chunk.rollouts[places]
        chunk.cache = chunk.cache.select(keep)
