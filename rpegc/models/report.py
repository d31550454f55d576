"""`rpegc model`: how many parameters and bytes a model has, per pipeline stage and per GPU."""

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import Diagnostic, DiagnosticError, error
from ir_schema.model import ModelSpec, padded_vocabulary
from ir_schema.problem import Layout
from passes.cost import parameters
from passes.cost.megatron_memory import training_state


class StageCount(Record, frozen=True, kw_only=True):
    """One GPU of a pipeline stage: its layers (first, last), parameters by sharing, and bytes of weights."""

    stage: int
    layers: tuple[int, int]
    dense: int
    expert: int
    parameters: int
    weight_bytes: int


class ModelReport(Record, frozen=True, kw_only=True):
    """What `rpegc model --json` prints. `total` and `active` are those of the published checkpoint; stages
    are as stored: vocabulary padded, tied embeddings at both ends of a pipeline. `training_bytes_per_gpu` is
    the state (weights, gradients, optimizer) of the fullest GPU at `data_parallel`, the smallest degree that
    the expert parallel degree allows."""

    model: str
    family: str | None
    total: int
    active: int
    bytes: int
    bytes_per_parameter: int
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    data_parallel: int
    padded_vocabulary: int
    stages: tuple[StageCount, ...]
    parameters_per_gpu: int
    weight_bytes_per_gpu: int
    training_bytes_per_gpu: int


def report(
    name: str, spec: ModelSpec, tensor_parallel: int = 1, pipeline_parallel: int = 1, expert_parallel: int = 1
) -> ModelReport:
    """Counts of `spec` under a layout.

    Raises DiagnosticError E323, one finding per degree that the model cannot be divided by.
    """
    problems = _indivisible(name, spec, tensor_parallel, pipeline_parallel, expert_parallel)
    if problems:
        raise DiagnosticError(problems)
    layout = Layout(
        data_parallel=-(-expert_parallel // tensor_parallel),
        pipeline_parallel=pipeline_parallel,
        tensor_parallel=tensor_parallel,
        expert_parallel=expert_parallel,
    )
    stages = []
    for stage in range(pipeline_parallel):
        shard = parameters.stage_shard(spec, layout, stage)
        layers = parameters.stage_layers(spec, pipeline_parallel, stage)
        stages.append(
            StageCount(
                stage=stage,
                layers=(layers.start, layers.stop - 1),
                dense=shard.dense,
                expert=shard.expert,
                parameters=shard.total,
                weight_bytes=shard.total * spec.bytes_per_parameter,
            )
        )
    fullest = parameters.largest_shard(spec, layout).total
    total = parameters.total(spec)
    return ModelReport(
        model=name,
        family=spec.family,
        total=total,
        active=parameters.active(spec),
        bytes=total * spec.bytes_per_parameter,
        bytes_per_parameter=spec.bytes_per_parameter,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        expert_parallel=expert_parallel,
        data_parallel=layout.data_parallel,
        padded_vocabulary=padded_vocabulary(spec.vocabulary, tensor_parallel),
        stages=tuple(stages),
        parameters_per_gpu=fullest,
        weight_bytes_per_gpu=fullest * spec.bytes_per_parameter,
        training_bytes_per_gpu=round(sum(training_state(spec, layout).values())),
    )


def as_text(found: ModelReport) -> str:
    """The report as a table."""
    lines = [
        f"{found.model}: {found.family or 'no family'}, {found.bytes_per_parameter} bytes per parameter",
        f"  total   {found.total:>18,}  {_gib(found.bytes)}",
        f"  active  {found.active:>18,}",
        f"  tensor parallel {found.tensor_parallel}, pipeline parallel {found.pipeline_parallel}, "
        f"expert parallel {found.expert_parallel}; vocabulary padded to {found.padded_vocabulary:,}",
        "  stage  layers      dense per GPU     expert per GPU         weights",
    ]
    for s in found.stages:
        span = f"{s.layers[0]}-{s.layers[1]}"
        lines.append(f"  {s.stage:>5}  {span:<7} {s.dense:>17,}  {s.expert:>17,}  {_gib(s.weight_bytes)}")
    weights, state = (_gib(n).strip() for n in (found.weight_bytes_per_gpu, found.training_bytes_per_gpu))
    lines.append(f"  fullest GPU: {found.parameters_per_gpu:,} parameters, weights {weights}, ")
    lines[-1] += f"training state at data parallel {found.data_parallel} {state}"
    return "\n".join(lines)


def as_json(found: ModelReport) -> str:
    """The report as one JSON object."""
    return msgspec.json.encode(found).decode()


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:>10.2f} GiB"


def _indivisible(name: str, spec: ModelSpec, tensor: int, pipeline: int, expert: int) -> list[Diagnostic]:
    heads, groups = spec.attention_heads, spec.query_groups
    routed = spec.experts.routed if spec.experts else 1
    found = []
    if heads % tensor:
        found.append((f"tensor parallel {tensor} does not divide its {heads} attention heads", heads))
    elif groups % tensor and tensor % groups:
        found.append(
            (f"tensor parallel {tensor} and its {groups} key/value heads: neither divides the other", heads)
        )
    if spec.layers % pipeline:
        found.append((f"pipeline parallel {pipeline} does not divide its {spec.layers} layers", spec.layers))
    if routed % expert:
        found.append((f"expert parallel {expert} does not divide its {routed} experts", routed))
    return [
        error("E323", f"model `{name}`: {text}", "models", help=f"its divisors: {_divisors(number)}")
        for text, number in found
    ]


def _divisors(number: int) -> str:
    return ", ".join(str(i) for i in range(1, number + 1) if number % i == 0)
