"""Optimizer steps: gradients through the pipeline, their reduction, clipping and AdamW.

Gradients are accumulated and sharded over replicas and their context ranks by Megatron's data parallelism
and distributed optimizer. A minibatch's loss is a sum over its response tokens (or pairs) divided by their
number over all replicas, so neither microbatches nor replicas can be seen in the result; the context ranks of
a replica all form the loss of its whole rows. The gradient norm is taken over the whole model in the
precision of the gradients' sum (Megatron's own is in single precision).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ir_schema.problem import Optimizer
from rpeg_rt.algorithms.batch import Metrics, TrainBatch
from rpeg_rt.engine.alignment import align, by_length
from rpeg_rt.engine.microtasks import Task, one_forward_one_backward
from rpeg_rt.engine.model import Model
from rpeg_rt.engine.moments import Flat
from rpeg_rt.engine.pipeline import Stage, response_logp_and_entropy, response_values
from rpeg_rt.engine.shim import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    OptimizerConfig,
    device,
    finalize_model_grads,
    get_megatron_optimizer,
    optimizer_construction,
)

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What Adam keeps of each weight: running means of its gradient and of the square."""
ENTROPY = "entropy"
"""The figure that is a mean over response tokens whatever the loss is a mean of."""


class NumericError(Exception):
    """A loss or gradient is not finite; the weights were left as they were."""


@dataclass(frozen=True)
class TokenOutputs:
    """What a forward pass gives a loss function, each [n, L_r] and 0 beyond the response.

    `logp` of the response tokens (None without an lm head), `values` at the positions that predict them
    (None without a scalar head).
    """

    logp: Tensor | None
    values: Tensor | None


Loss = Callable[[TokenOutputs, TrainBatch], tuple[Tensor, Metrics]]
"""Sum over the rows' response tokens, or pairs, of the loss, and sums of other figures, for some rows."""


class Pass:
    """A minibatch on its way through this rank's stage: gradients accumulate, figures add up.

    `terms` are the minibatch's response tokens (or pairs) over all replicas, by which its loss is divided,
    `tokens` its response tokens.
    `order` is the 1F1B order of its microtasks; `run` may be called in it only.
    """

    def __init__(
        self,
        model: Model,
        batch: TrainBatch,
        loss: Loss,
        microbatches: int,
        prompt_length: int,
        temperature: float,
        terms: float,
        tokens: float,
        tag: int,
    ) -> None:
        self._model, self._batch, self._loss = model, batch, loss
        self._temperature, self.terms, self.tokens = temperature, terms, tokens
        self._parts = _split(batch, microbatches)
        self._aligned = [align(p.tokens, prompt_length, model.groups.share) for p in self._parts]
        self._stage = Stage(model, self._aligned, tag)
        self._losses: dict[int, Tensor] = {}
        self._sums: Metrics = {}
        place, stages = model.groups.place, model.groups.layout.pipeline_parallel
        self.order = one_forward_one_backward(place.pipeline, stages, len(self._parts))

    def run(self, task: Task) -> None:
        """Carry out one microtask."""
        if task.direction == "F":
            self._forward(task.microbatch)
        else:
            self._stage.backward(task.microbatch, self._losses.pop(task.microbatch, None))

    def _forward(self, i: int) -> None:
        hidden = self._stage.forward(i, training=True)
        if hidden is None:
            return
        model, rows = self._model, self._aligned[i]
        logp = values = None
        told: Metrics = {}
        if model.lm_head is not None:
            logp, told[ENTROPY] = response_logp_and_entropy(model, hidden, rows, self._temperature)
        if model.value_head is not None:
            values = response_values(model, hidden, rows)
        total, metrics = self._loss(TokenOutputs(logp, values), self._parts[i])
        self._losses[i] = total / self.terms
        _add(self._sums, {"loss": total, **told, **metrics})

    def finish(self) -> Metrics:
        """All microtasks have run: on the last stage, the sums of this replica's figures."""
        self._stage.finish()
        model = self._model
        if not self._parts and model.groups.is_last_stage:
            # A replica without rows still takes part in the reduction, so it needs the metrics' names.
            empty = torch.zeros(self._batch.mask.shape, dtype=model.wide, device=device())
            logp = None if model.lm_head is None else empty
            values = None if model.value_head is None else empty
            told = {} if logp is None else {ENTROPY: logp.sum()}
            total, metrics = self._loss(TokenOutputs(logp, values), self._batch)
            _add(self._sums, {"loss": total, **told, **metrics})
        return self._sums


class Trainer:
    """Gradient buffers and optimizer state of one model. Construction is collective over its ranks.

    The model's weights must be loaded before: they are copied.
    """

    def __init__(self, model: Model, optimizer: Optimizer) -> None:
        self._model, self._settings = model, optimizer
        self._groups, self._collection = model.groups, model.groups.collection
        self.steps = 0
        low = model.config.params_dtype == torch.bfloat16
        data = DistributedDataParallelConfig(
            grad_reduce_in_fp32=low, use_distributed_optimizer=True, overlap_grad_reduce=False
        )
        self._parallel = DistributedDataParallel(model.config, data, model, pg_collection=self._collection)
        config = OptimizerConfig(
            optimizer="adam",
            lr=optimizer.learning_rate,
            weight_decay=optimizer.weight_decay,
            clip_grad=0.0,
            adam_beta1=optimizer.beta1,
            adam_beta2=optimizer.beta2,
            adam_eps=optimizer.epsilon,
            use_distributed_optimizer=True,
            bf16=low,
        )
        with optimizer_construction(model.parameters(), self._collection.intra_dist_opt):
            chained = get_megatron_optimizer(
                config,
                [self._parallel],
                config_overrides={},
                use_gloo_process_groups=False,
                pg_collection=self._collection,
            )
        (self._optimizer,) = chained.chained_optimizers

    def begin(
        self,
        batch: TrainBatch,
        loss: Loss,
        microbatches: int,
        prompt_length: int,
        temperature: float,
        tag: int,
    ) -> "Pass":
        """Start a step on this replica's rows of a minibatch (see `Engine.begin_minibatch`)."""
        self._parallel.zero_grad_buffer()
        counts = torch.stack([batch.terms, batch.mask.sum(dtype=torch.float64)]).to(device())
        dist.all_reduce(counts, group=self._collection.dp)
        terms, tokens = counts.clamp(min=1.0).tolist()
        return Pass(self._model, batch, loss, microbatches, prompt_length, temperature, terms, tokens, tag)

    def finish(self, done: "Pass") -> dict[str, float]:
        """Reduce the gradients of a pass and step (see `Engine.finish_minibatch`)."""
        sums = done.finish()
        finalize_model_grads([self._parallel], None, pg_collection=self._collection)
        metrics = self._reduced(sums, done)
        metrics["gradient_norm"] = self._clipped_norm()
        metrics["learning_rate"] = self._set_learning_rate()
        self._optimizer.step_with_ready_grads()
        self.steps += 1
        return metrics

    def state(self) -> dict[str, list[Flat]]:
        """This rank's part of the optimizer's state, by kind: Adam's moments, and where weights are rounded
        the `master` weights. Filling it makes it the state."""
        found: dict[str, list[Flat]] = {}
        names = {id(p): name for name, p in self._model.named_parameters()}
        for parameter, shard in self._shards():
            start = self._optimizer._get_model_param_range_map(parameter)["param"].start
            tensors = {kind: self._adam(shard)[kind] for kind in MOMENTS}
            if shard.dtype != parameter.dtype:
                tensors["master"] = shard
            for kind, tensor in tensors.items():
                flat = Flat(names[id(parameter)], tuple(parameter.shape), start, tensor)
                found.setdefault(kind, []).append(flat)
        return found

    def resume(self, steps: int) -> None:
        """The state has been filled with that after `steps` steps."""
        self.steps = steps
        for _, shard in self._shards():
            self._adam(shard)["step"].fill_(steps)

    def _adam(self, shard: Tensor) -> dict[str, Tensor]:
        """What Adam keeps of a shard; zeros before the first step, as it would make them itself."""
        found: dict[str, Tensor] = self._optimizer.optimizer.state[shard]
        if not found:
            found |= {"step": torch.zeros(())} | {kind: torch.zeros_like(shard) for kind in MOMENTS}
        return found

    def _reduced(self, sums: Metrics, done: "Pass") -> dict[str, float]:
        """Means over all replicas, from the sums of this one; nothing but on the last stage."""
        if not self._groups.is_last_stage:
            return {}
        values = torch.stack(list(sums.values())).to(device())
        dist.all_reduce(values, group=self._collection.dp)
        totals = zip(sums, values.tolist(), strict=True)
        return {name: x / (done.tokens if name == ENTROPY else done.terms) for name, x in totals}

    def _clipped_norm(self) -> float:
        """Scale the gradients to the permitted norm; return the norm before, of the whole model."""
        shards = self._shard_gradients()
        squares = torch.zeros(1, dtype=torch.float64, device=device())
        for gradient in self._optimizer.get_main_grads_for_grad_norm():
            squares += gradient.double().square().sum()
        dist.all_reduce(squares, group=self._collection.intra_dist_opt)
        norm = float(squares.sqrt())
        if not torch.isfinite(squares).all():
            raise NumericError(f"the gradient norm is {norm}")
        scale = self._settings.max_gradient_norm / (norm + 1e-6)
        if scale < 1.0:
            for shard in shards:
                shard.grad.mul_(scale)
        return norm

    def _shard_gradients(self) -> list[Any]:
        """Give each of the optimizer's parameter shards its part of the reduced gradient.

        Megatron's own `prepare_grads` would pass float64 through single precision.
        """
        pairs = self._shards()
        for parameter, shard in pairs:
            part = self._optimizer._get_model_param_range_map(parameter)["param"]
            shard.grad = parameter.main_grad.view(-1)[part.start : part.end].to(shard.dtype)
        return [shard for _, shard in pairs]

    def _shards(self) -> list[tuple[Any, Any]]:
        """Parameters and the optimizer's flat shard of each that it has a part of."""
        optimizer = self._optimizer
        models = optimizer.model_float16_groups + optimizer.model_fp32_groups
        mains = optimizer.shard_fp32_from_float16_groups + optimizer.shard_fp32_groups
        return [pair for group in zip(models, mains, strict=True) for pair in zip(*group, strict=True)]

    def _set_learning_rate(self) -> float:
        """Linear warm-up: optimizer step i of W runs at i / W of the learning rate."""
        settings = self._settings
        rate = settings.learning_rate * min(1.0, (self.steps + 1) / max(1, settings.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate


def _split(batch: TrainBatch, microbatches: int) -> list[TrainBatch]:
    """Blocks of rows of nearly equal size, shortest sequences first, without empty ones; a pair stays
    together."""
    together = batch.together
    units = len(batch) // together
    count = min(microbatches, units)
    if count <= 1:
        return [batch] if count else []
    batch = batch.select(by_length(batch.tokens, together))
    bounds = [units * i // count * together for i in range(count + 1)]
    return [batch.select(slice(*pair)) for pair in pairwise(bounds)]


def _add(sums: Metrics, more: dict[str, Any]) -> None:
    for name, value in more.items():
        wide = value.detach().double()
        sums[name] = sums[name] + wide if name in sums else wide
