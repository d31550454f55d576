"""One operator as a worker of a run has it: its engine and the code around it, with rows that are made up."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ir_schema.problem import Optimizer, RunConfig, Workload
from ir_schema.samples import OperatorCase
from rpeg_rt.algorithms import make_learner
from rpeg_rt.engine.engine import Engine
from rpeg_rt.engine.groups import LayoutGroups
from rpeg_rt.operators import Generating, Site, Training, score, train
from rpeg_rt.precision import weight_type
from rpeg_rt.rows import block, to_indices
from rpeg_rt.semantics import Generate, Score, Train
from rpeg_rt.store import Rows
from rpeg_rt.weights import starting_weights

_RUN = RunConfig(algorithm="ppo", precision="float32")
_SEED = 0
_CONTAINERS = ("logprobs", "reference", "values")


def response_lengths(workload: Workload) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Lengths of a step's responses: the quantile function at equal distances, in no order."""
    points = ((0.0, 0), *(workload.length_quantiles or ((1.0, workload.response_length),)))
    fractions, lengths = zip(*points, strict=True)
    at = (np.arange(workload.sequences) + 0.5) / workload.sequences
    if not workload.length_quantiles:
        return np.full(workload.sequences, workload.response_length)
    found = np.ceil(np.interp(at, fractions, lengths)).astype(np.int64).clip(min=1)
    return np.random.default_rng(_SEED).permutation(found)


def token_rows(workload: Workload, vocabulary: int) -> Tensor:
    """Random sequences of a step, int32 [B * R, L_p + L_r]: prompts of full length, -1 behind a response."""
    shape = (workload.sequences, workload.total_length)
    tokens = torch.from_numpy(np.random.default_rng(_SEED).integers(vocabulary, size=shape, dtype=np.int32))
    end = workload.prompt_length + torch.from_numpy(response_lengths(workload))
    return tokens.masked_fill(torch.arange(workload.total_length) >= end[:, None], -1)


def prepare(case: OperatorCase, groups: LayoutGroups) -> Callable[[], object]:
    """Make the operator's model and rows on this worker; a call runs it once. Collective, like every call."""
    spec, workload, training = case.model, case.workload, case.role == "training"
    engine = Engine(
        spec,
        groups,
        precision=getattr(torch, weight_type(spec, _RUN.precision)),
        workload=workload,
        trainable=Optimizer() if training else None,
    )
    engine.load(starting_weights(spec, "measured", _SEED, None))
    site = Site("measured", engine, groups, case.placement)
    tokens = token_rows(workload, spec.vocabulary)
    indices = torch.from_numpy(to_indices(block(workload, case.placement.data_parallel, site.replica)))
    rows = Rows(indices, tokens[indices])
    if case.role == "generation":
        return _generation(site, rows, workload)
    if case.role == "inference":
        task = Score("tokens", "scores", "logprobs" if spec.has_lm_head else "values")
        return lambda: score(site, task, rows, _RUN)
    return _training(site, rows, workload)


def _generation(site: Site, rows: Rows, workload: Workload) -> Callable[[], object]:
    generating = Generating(_RUN, workload, _SEED, eos=None)
    first = rows.indices % workload.rollouts == 0
    prompts = Rows(
        rows.indices[first] // workload.rollouts, rows.values[first, : workload.prompt_length].contiguous()
    )
    task = Generate("prompts", "tokens", "logprobs")
    return lambda: generating.phase(site, task, step=0, phase=1, phases=1, prompts=prompts)


def _training(site: Site, rows: Rows, workload: Workload) -> Callable[[], object]:
    spec = site.engine.spec
    policy, value = spec.has_lm_head, spec.has_scalar_head
    learner = make_learner(_RUN, workload, policy=policy, value=value)
    task = Train("tokens", "reward", "values", "logprobs", "reference", policy=policy, value=value)
    random = torch.Generator().manual_seed(_SEED + site.replica)
    shape = (len(rows.indices), workload.response_length)
    held = {name: Rows(rows.indices, torch.randn(shape, generator=random)) for name in _CONTAINERS}
    held |= {"tokens": rows, "reward": Rows(rows.indices, torch.randn(shape[0], generator=random))}

    def call() -> None:
        train(Training(site, task, learner, held, _RUN, workload, eos=None))
        site.engine.finish_version()

    return call
