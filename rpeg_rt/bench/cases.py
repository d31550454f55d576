"""The operators that are measured: those of a grid that can be run, and the grids that are used by default.

Calibrating operators and those that a calibration is examined with have no model in common.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from ir_schema.base import Role
from ir_schema.model import ModelSpec
from ir_schema.problem import Layout, Placement, Workload
from ir_schema.samples import Grid, OperatorCase
from rpeg_rt.engine.architecture import unsupported
from rpeg_rt.failure import FileError
from rpeg_rt.ranges import implausible_grid


def read_grid(path: Path) -> Grid:
    """The grid in a file. Raises FileError."""
    try:
        grid = msgspec.json.decode(path.read_bytes(), type=Grid)
    except OSError as exc:
        raise FileError(f"cannot read the grid {path}: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise FileError(f"{path} is not a grid of operators: {exc}") from exc
    if reasons := implausible_grid(grid):
        raise FileError(f"{path} cannot be measured: {'; '.join(reasons)}")
    return grid


def expand(grids: Iterable[Grid], nodes: Sequence[int]) -> list[OperatorCase]:
    """The operators of grids that workers, so many on each node, can run: of the products, others are left.
    Raises FileError for a single case that cannot be run, or if there is nothing to run."""
    found = []
    for grid in grids:
        found += [case for case in _product(grid, nodes) if not impossible(case, nodes)]
        for i, case in enumerate(grid.cases):
            if reasons := impossible(case, nodes):
                raise FileError(f"case {i} of the grid cannot be measured: {'; '.join(reasons)}")
            found.append(case)
    if not found:
        raise FileError(f"no operator of the grid can run on {sum(nodes)} workers")
    return found


def impossible(case: OperatorCase, nodes: Sequence[int]) -> list[str]:
    """Why an operator cannot be run on workers, so many on each node; empty if it can."""
    p, w, m = case.placement, case.workload, case.model
    found = unsupported(m, p.layout, w)
    racks, there, gpus = p.extent
    if p.origin != (0, 0, 0) or racks != 1 or there > len(nodes) or gpus > min(nodes[:there]):
        found.append(
            f"there is no allocation {p.origin} + {p.extent} on {len(nodes)} nodes of {min(nodes)} workers"
        )
    if p.allocation.gpus != p.layout.gpus:
        found.append(f"a layout of {p.layout.gpus} workers on an allocation of {p.allocation.gpus}")
    minibatches = w.minibatches if case.role == "training" else 1
    if w.prompts < p.data_parallel * minibatches * p.waves:
        found.append(f"{w.prompts} prompts are too few for {p.data_parallel} replicas")
    elif w.sequences < p.data_parallel * minibatches * p.waves * p.microbatches:
        found.append(f"{w.sequences} sequences are too few for {p.microbatches} microbatches")
    if case.role == "generation" and not m.has_lm_head:
        found.append("a model without vocabulary head generates nothing")
    if case.role == "generation" and w.length_quantiles:
        found.append("random weights do not end responses at given lengths")
    return found


def members(placement: Placement, nodes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The ranks of a possible operator, in its allocation's order; `nodes` are the ranks by node."""
    return tuple(nodes[node][gpu] for _, node, gpu in placement.allocation.coordinates())


def _product(grid: Grid, nodes: Sequence[int]) -> Iterator[OperatorCase]:
    per_node = min(nodes)
    for model in grid.models.values():
        for role in grid.roles:
            for workload in grid.workloads:
                for layout in grid.layouts:
                    extent = (1, max(1, layout.gpus // per_node), min(layout.gpus, per_node))
                    for microbatches in grid.microbatches:
                        placement = Placement(
                            origin=(0, 0, 0),
                            extent=extent,
                            data_parallel=layout.data_parallel,
                            pipeline_parallel=layout.pipeline_parallel,
                            tensor_parallel=layout.tensor_parallel,
                            context_parallel=layout.context_parallel,
                            expert_parallel=layout.expert_parallel,
                            microbatches=microbatches,
                        )
                        yield OperatorCase(role=role, model=model, workload=workload, placement=placement)


# Grids that are used by default ------------------------------------------------------------------------


def _layouts(*degrees: tuple[int, int, int]) -> tuple[Layout, ...]:
    return tuple(Layout(data_parallel=d, pipeline_parallel=p, tensor_parallel=t) for d, p, t in degrees)


_ALONE = _layouts((1, 1, 1))
_PAIRS = _layouts((2, 1, 1), (1, 2, 1), (1, 1, 2))
_FOURS = _layouts((4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2))


def _model(layers: int, hidden: int, ffn: int, vocabulary: int, *, head: str, width: int) -> ModelSpec:
    heads = max(4, hidden // (128 if width == 2 else 32))
    return ModelSpec(
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        vocabulary=vocabulary,
        head="lm" if head == "lm" else "scalar",
        bytes_per_parameter=width,
        attention_heads=heads,
        kv_heads=heads // 2,
    )


def calibrating(gpu: bool, quick: bool) -> tuple[Grid, ...]:
    """Operators by which a machine is calibrated. The first is a transformer's forward at a large shape; the
    others differ in layers, width, vocabulary, microbatches and rows, from small to large."""
    if gpu:
        large = _model(4, 4096, 11008, 32000, head="scalar", width=2)
        deep, shallow = (_model(n, 2048, 5632, 32000, head="lm", width=2) for n in (12, 4))
        wide = _model(4, 3584, 9728, 131072, head="lm", width=2)
        forward = Workload(prompts=8, rollouts=1, prompt_length=1024, response_length=1024)
        short = Workload(prompts=8, rollouts=1, prompt_length=64, response_length=64)
        longer = Workload(prompts=32, rollouts=1, prompt_length=256, response_length=256)
    else:
        large = _model(4, 512, 1408, 1024, head="scalar", width=4)
        deep, shallow = (_model(n, 96, 256, 384, head="lm", width=4) for n in (6, 2))
        wide = _model(2, 192, 640, 1536, head="lm", width=4)
        forward = Workload(prompts=4, rollouts=1, prompt_length=128, response_length=128)
        short = Workload(prompts=8, rollouts=1, prompt_length=8, response_length=16)
        longer = Workload(prompts=32, rollouts=1, prompt_length=24, response_length=40)
    whole = Grid(
        models={"large": large}, roles=("inference", "training"), workloads=(forward,), layouts=_ALONE
    )
    if quick:
        return whole, Grid(
            models={"shallow": shallow}, workloads=(short,), layouts=_ALONE, microbatches=(1, 4)
        )
    together = (_FOURS[0], _FOURS[2])
    return (
        whole,
        Grid(models={"deep": deep}, workloads=(short, longer), layouts=(*_ALONE, *_PAIRS)),
        Grid(models={"wide": wide}, workloads=(longer,), layouts=(*_ALONE, _PAIRS[0])),
        Grid(
            models={"shallow": shallow},
            workloads=(longer,),
            layouts=(*_ALONE, *_PAIRS, *together),
            microbatches=(1, 4),
        ),
    )


def examining(gpu: bool, quick: bool) -> tuple[Grid, ...]:
    """Operators by which a calibration is examined: roles, layouts, batches and lengths."""
    if gpu:
        models = {
            "lm": _model(16, 1536, 8960, 65536, head="lm", width=2),
            "wide": _model(6, 3072, 8192, 32768, head="lm", width=2),
            "scalar": _model(16, 1536, 8960, 65536, head="scalar", width=2),
        }
        lengths, scale = (64, 128, 512), 8
    else:
        models = {
            "lm": _model(4, 128, 352, 512, head="lm", width=4),
            "wide": _model(2, 256, 768, 1024, head="lm", width=4),
            "scalar": _model(4, 128, 352, 512, head="scalar", width=4),
        }
        lengths, scale = (8, 16, 64), 1
    short, middle, long = lengths
    workloads = (
        Workload(prompts=8 * scale, rollouts=1, prompt_length=short, response_length=short),
        Workload(prompts=8 * scale, rollouts=4, prompt_length=middle, response_length=middle),
        Workload(prompts=16 * scale, rollouts=2, prompt_length=middle, response_length=long),
    )
    uneven = Workload(
        prompts=16 * scale,
        rollouts=2,
        prompt_length=middle,
        response_length=long,
        length_quantiles=((0.25, long // 8), (0.75, long // 2), (1.0, long)),
    )
    if quick:
        return (Grid(models={"lm": models["lm"]}, workloads=workloads[:1], layouts=(*_ALONE, _PAIRS[0])),)
    upto_two = (*_ALONE, *_PAIRS)
    values: tuple[Role, ...] = ("inference", "training")
    policies, policy = {k: m for k, m in models.items() if k != "scalar"}, {"lm": models["lm"]}
    critic = {"scalar": models["scalar"]}
    return (
        Grid(models=policies, workloads=workloads, layouts=upto_two, microbatches=(2,)),
        Grid(models=policy, workloads=workloads[1:2], layouts=upto_two[::2], microbatches=(1, 4)),
        Grid(models=critic, roles=values, workloads=workloads[1:2], layouts=upto_two, microbatches=(2,)),
        Grid(models=policy, workloads=workloads[1:], layouts=_FOURS, microbatches=(2,)),
        Grid(
            models=policy | critic,
            roles=values,
            workloads=(uneven,),
            layouts=(*_ALONE, _PAIRS[0], _FOURS[0]),
            microbatches=(4,),
        ),
    )
