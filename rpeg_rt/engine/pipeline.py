"""One pipeline stage of one model, driven microtask by microtask.

A training step is an ordered list of forward and backward microtasks per stage; plain 1F1B is one such
list, the interleaving of two models another. Any order works in which a stage's microbatches go forward
and backward each in ascending order and which does not wait in a circle.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from rpeg_rt.engine.alignment import Aligned
from rpeg_rt.engine.groups import LayoutGroups
from rpeg_rt.engine.model import Model, token_logp
from rpeg_rt.engine.shim import device


class Task(NamedTuple):
    """Forward or backward of one microbatch."""

    direction: Literal["F", "B"]
    microbatch: int


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Task]:
    """1F1B: min(m, P - stage) forwards to warm up, then backward and forward in turn."""
    warm = min(microbatches, stages - stage)
    order = [Task("F", i) for i in range(warm)]
    for i in range(microbatches):
        order.append(Task("B", i))
        if warm + i < microbatches:
            order.append(Task("F", warm + i))
    return order


class Sender:
    """Sends to other ranks without waiting; keeps what is sent alive until it has been received."""

    def __init__(self) -> None:
        self._pending: list[tuple[dist.Work | None, Tensor]] = []

    def send(self, tensor: Tensor, rank: int) -> None:
        """Post a send to a global rank."""
        tensor = tensor.contiguous()
        self._pending.append((dist.isend(tensor, rank), tensor))

    def wait(self, keep: int = 0) -> None:
        """Wait for all sends but the `keep` latest."""
        finished = self._pending[: len(self._pending) - keep]
        self._pending = self._pending[len(finished) :]
        for work, _ in finished:
            if work is not None:
                work.wait()


class Stage:
    """The microbatches of one pass through this rank's stage."""

    def __init__(self, model: Model, microbatches: Sequence[Aligned]) -> None:
        self._model, self._microbatches = model, microbatches
        self._groups: LayoutGroups = model.groups
        self._live: dict[int, tuple[Tensor | None, Tensor]] = {}
        self._sender = Sender()

    def forward(self, index: int, training: bool) -> Tensor | None:
        """Run microbatch `index` through the stage: hidden states [s, b, h] on the last, None elsewhere.

        While training, `backward` of the same microbatch must follow.
        """
        groups, ids = self._groups, self._microbatches[index].ids
        received = None
        if not groups.is_first_stage:
            shape = (ids.size(1), ids.size(0), self._model.config.hidden_size)
            received = self._receive(shape, groups.place.pipeline - 1).requires_grad_(training)
        output: Tensor = self._model(ids, received)
        if training:
            self._live[index] = (received, output)
        if groups.is_last_stage:
            return output
        self._sender.send(output.detach(), groups.stage_rank(groups.place.pipeline + 1))
        return None

    def backward(self, index: int, loss: Tensor | None) -> None:
        """Backward of microbatch `index`; `loss` is its scalar on the last stage, None elsewhere."""
        received, output = self._live.pop(index)
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            gradient = self._receive(output.shape, self._groups.place.pipeline + 1)
            torch.autograd.backward(output, gradient)
        if received is not None:
            if received.grad is None:
                raise RuntimeError("the stage's input received no gradient")
            self._sender.send(received.grad, self._groups.stage_rank(self._groups.place.pipeline - 1))

    def finish(self) -> None:
        """Wait until everything sent has been received."""
        self._sender.wait()

    def _receive(self, shape: Sequence[int], stage: int) -> Tensor:
        buffer = torch.empty(tuple(shape), dtype=self._model.config.params_dtype, device=device())
        dist.recv(buffer, self._groups.stage_rank(stage))
        return buffer


def response_logp(model: Model, hidden: Tensor, rows: Aligned, temperature: float) -> Tensor:
    """Log-probabilities [b, L_r] of the response tokens under softmax(logits / temperature)."""
    logits = model.logits(hidden.flatten(0, 1).index_select(0, rows.predicting)) / temperature
    return rows.expand(token_logp(logits, rows.targets, model.groups.collection.tp))


def response_values(model: Model, hidden: Tensor, rows: Aligned) -> Tensor:
    """Values [b, L_r] at the positions that predict the response tokens."""
    if model.value_head is None:
        raise ValueError("the model has no scalar head")
    values: Tensor = model.value_head(hidden.flatten(0, 1).index_select(0, rows.predicting))
    return rows.expand(values.to(model.wide))


def sequence_rewards(model: Model, hidden: Tensor, rows: Aligned) -> Tensor:
    """Scalar head [b] at each sequence's last token."""
    if model.value_head is None:
        raise ValueError("the model has no scalar head")
    rewards: Tensor = model.value_head(hidden.flatten(0, 1).index_select(0, rows.last))
    return rewards.to(model.wide)
