"""One pipeline stage of one model, driven microtask by microtask.

A training step is an ordered list of forward and backward microtasks per rank. Those of one model are in
1F1B order; those of two models on the same ranks may be interleaved in any way that does not wait in a
circle. Messages of different models between two ranks differ in their tag.

All ranks of a tensor group have the same hidden states. Between two machines each sends its part of them and
the receivers gather the parts, so that they cross once (scatter/gather of Narayanan et al., SC 2021, section
4.1); on one machine, where links are as fast as the gathering, each sends them all.
"""

from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from rpeg_rt.engine.alignment import Aligned
from rpeg_rt.engine.context import everywhere
from rpeg_rt.engine.groups import LayoutGroups
from rpeg_rt.engine.model import Model, token_logp, token_logp_and_entropy
from rpeg_rt.engine.shim import device


class Sender:
    """Sends to other ranks without waiting; keeps what is sent alive until it has been received."""

    def __init__(self, tag: int = 0) -> None:
        self._tag = tag
        self._pending: deque[tuple[dist.Work | None, Tensor]] = deque()
        self._settled = 0

    def send(self, tensor: Tensor, rank: int) -> None:
        """Post a send to a global rank."""
        tensor = tensor.contiguous()
        self._pending.append((dist.isend(tensor, rank, tag=self._tag), tensor))

    def wait(self, keep: int = 0) -> None:
        """Wait for all sends but the `keep` latest."""
        self.settle(self._settled + len(self._pending) - keep)

    def settle(self, count: int) -> None:
        """Wait for the first `count` of all sends, and let go of what was sent."""
        while self._settled < count:
            work, _ = self._pending.popleft()
            self._settled += 1
            if work is not None:
                work.wait()


class Stage:
    """The microbatches of one pass through this rank's stage.

    Between forward and backward a microbatch keeps what the model's backward pass needs, which is the inputs
    of its layers and as much more as there is room for. Sent tensors are let go as soon as the other side has
    shown that it received them.
    """

    def __init__(self, model: Model, microbatches: Sequence[Aligned], tag: int = 0) -> None:
        self._model, self._microbatches, self._tag = model, microbatches, tag
        self._groups: LayoutGroups = model.groups
        self._live: dict[int, tuple[Tensor | None, GradientEdge | None]] = {}
        self._taken: dict[int, int] = {}
        self._onward, self._back = Sender(tag), Sender(tag)

    def forward(self, index: int, training: bool) -> Tensor | None:
        """Run microbatch `index` through the stage: hidden states [s, b, h] on the last, None elsewhere.

        While training, `backward` of the same microbatch must follow.
        """
        groups, stage = self._groups, self._groups.place.pipeline
        received = None
        if not groups.is_first_stage:
            received = self._receive(index, stage - 1).requires_grad_(training)
            if training:
                # In 1F1B order it was sent after all gradients but those of the sender's warm-up had come.
                self._back.settle(index - (groups.layout.pipeline_parallel - stage))
        before = self._model.room.taken
        output: Tensor = self._model(self._microbatches[index].ids, received)
        self._taken[index] = self._model.room.taken - before
        if training:
            self._live[index] = (received, None if groups.is_last_stage else get_gradient_edge(output))
        if groups.is_last_stage:
            return output
        self._send(self._onward, output.detach(), stage + 1)
        if not training:
            self._onward.wait(keep=1)
        return None

    def backward(self, index: int, loss: Tensor | None) -> None:
        """Backward of microbatch `index`; `loss` is its scalar on the last stage, None elsewhere."""
        stage = self._groups.place.pipeline
        received, output = self._live.pop(index)
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        elif output is not None:
            gradient = self._receive(index, stage + 1)
            self._onward.settle(index + 1)
            torch.autograd.backward(output, gradient)
        self._model.room.give_back(self._taken.pop(index))
        if received is not None:
            if received.grad is None:
                raise RuntimeError("the stage's input received no gradient")
            self._send(self._back, received.grad, stage - 1)

    def finish(self) -> None:
        """Wait until everything sent has been received."""
        self._onward.wait()
        self._back.wait()

    def _send(self, sender: Sender, tensor: Tensor, stage: int) -> None:
        """Hidden states of a microbatch, or their gradient, to another stage."""
        parts = self._parts(tensor.numel(), stage)
        if parts > 1:
            tensor = tensor.contiguous().view(parts, -1)[self._groups.place.tensor]
        sender.send(tensor, self._groups.stage_rank(stage))

    def _receive(self, index: int, stage: int) -> Tensor:
        """Hidden states of a microbatch, or their gradient, from another stage: [s, b, h]."""
        (batch, length), config = self._microbatches[index].ids.shape, self._model.config
        buffer = torch.empty(length, batch, config.hidden_size, dtype=config.params_dtype, device=device())
        parts = self._parts(buffer.numel(), stage)
        part = buffer if parts == 1 else buffer.new_empty(buffer.numel() // parts)
        dist.recv(part, self._groups.stage_rank(stage), tag=self._tag)
        if parts > 1:
            dist.all_gather_into_tensor(buffer.view(-1), part, group=self._groups.collection.tp)
        return buffer

    def _parts(self, elements: int, stage: int) -> int:
        """How many tensor ranks carry a part each of what goes between this stage and another, or 1."""
        degree = self._groups.layout.tensor_parallel
        divided = degree > 1 and elements % degree == 0 and self._groups.between_machines(stage)
        return degree if divided else 1


def response_logp(model: Model, hidden: Tensor, rows: Aligned, temperature: float) -> Tensor:
    """Log-probabilities [b, L_r] of the response tokens under softmax(logits / temperature)."""
    logits = _response_logits(model, hidden, rows, temperature)
    logp = token_logp(logits, rows.targets, model.groups.collection.tp)
    return everywhere(rows.expand(logp), model.groups.collection.cp)


def response_logp_and_entropy(
    model: Model, hidden: Tensor, rows: Aligned, temperature: float
) -> tuple[Tensor, Tensor]:
    """As `response_logp`, and the float64 sum of the entropies of the response tokens' distributions, without
    a gradient."""
    logits = _response_logits(model, hidden, rows, temperature)
    groups = model.groups.collection
    logp, entropy = token_logp_and_entropy(logits, rows.targets, groups.tp)
    total = everywhere(entropy.sum(dtype=torch.float64), groups.cp)
    return everywhere(rows.expand(logp), groups.cp), total


def _response_logits(model: Model, hidden: Tensor, rows: Aligned, temperature: float) -> Tensor:
    return model.logits(hidden.flatten(0, 1).index_select(0, rows.predicting), temperature)


def response_values(model: Model, hidden: Tensor, rows: Aligned) -> Tensor:
    """Values [b, L_r] at the positions that predict the response tokens."""
    if model.value_head is None:
        raise ValueError("the model has no scalar head")
    values: Tensor = model.value_head(hidden.flatten(0, 1).index_select(0, rows.predicting))
    return everywhere(rows.expand(values.to(model.wide)), model.groups.collection.cp)


def sequence_rewards(model: Model, hidden: Tensor, rows: Aligned) -> Tensor:
    """Scalar head [b] at each sequence's last token."""
    if model.value_head is None:
        raise ValueError("the model has no scalar head")
    rewards: Tensor = model.value_head(hidden.flatten(0, 1).index_select(0, rows.last))
    return everywhere(rows.expand_last(rewards.to(model.wide)), model.groups.collection.cp)
