"""A whole measurement: from workers to a sample file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from msgspec.structs import replace

from ir_schema.samples import (
    VERSION,
    CopySample,
    Grid,
    LayerSample,
    OperatorCase,
    OperatorSample,
    ProductSample,
    Samples,
    TransferSample,
    encode_samples,
)
from rpeg_rt.bench.cases import calibrating, examining, expand, members, read_grid
from rpeg_rt.bench.crew import Workers, workers
from rpeg_rt.bench.environment import environment, processors, running
from rpeg_rt.bench.jobs import Effort, Holding, Job, Operator, Result, Subject
from rpeg_rt.bench.machine import Sample, occupancy, shape_jobs, slowest, sweep, transfer_jobs
from rpeg_rt.files import check_writable, write_atomically
from rpeg_rt.joining import visible_gpus
from rpeg_rt.launch import Launch
from rpeg_rt.realise import layout_name

ROUNDS = 5
"""In which everything is measured on processors."""

Progress = Callable[[str, int, int], None]
"""Told what is being measured, and how many of how many jobs are done."""


@dataclass(frozen=True)
class Settings:
    """What the command line says: where samples go; on how many workers of this machine (None: one for each
    GPU or processor) or on which launcher's; how thoroughly; and how many nodes a rack has (None: all)."""

    output: Path
    workers: int | None
    quick: bool
    nodes_per_rack: int | None
    launch: Launch | None
    interface: str | None
    port: int | None


_Rounds = list[Sequence[Result]]
"""Of one job: the results of the workers that took part, in every round."""


def measure_machine(settings: Settings, progress: Progress, examined: Path | None = None) -> None:
    """Measure kernels, communications and calibrating operators; and in the same rounds the operators that a
    calibration is examined with, for a sample file of their own. Raises RunError."""
    grids = {settings.output: calibrating}
    if examined is not None:
        grids[examined] = examining
    _measure(
        settings, progress, {file: _default(grid, settings) for file, grid in grids.items()}, kernels=True
    )


def measure_operators(settings: Settings, grid: Path | None, progress: Progress) -> None:
    """Measure the operators of the grid in a file, or those that a calibration is examined with. Raises
    RunError."""
    grids = _default(examining, settings) if grid is None else (read_grid(grid),)
    _measure(settings, progress, {settings.output: grids}, kernels=False)


def _default(grids: Callable[[bool, bool], tuple[Grid, ...]], settings: Settings) -> tuple[Grid, ...]:
    return grids(visible_gpus() > 0, settings.quick)


def _measure(
    settings: Settings, progress: Progress, grids: dict[Path, tuple[Grid, ...]], *, kernels: bool
) -> None:
    """Measure the operators of all grids, and write those of each to its file; kernels are in the first.

    Everything is measured in rounds, each of everything: a machine that is slower for a minute is then so
    for a part of every sample, not for all of a few.
    """
    for file in grids:
        check_writable(file)
    load, gpu = running(), visible_gpus() > 0
    # Processors are what others use as well.
    rounds = 1 if gpu or settings.quick else ROUNDS
    effort = Effort(0.3, 3, 10) if settings.quick else Effort(1.0, 5, 30).shared(rounds)
    count = settings.workers or visible_gpus() or processors()
    with workers(settings.launch, count, settings.interface, settings.port) as crew:
        sizes = [len(node) for node in crew.nodes]
        cases = {file: expand(grid, sizes) for file, grid in grids.items()}
        empty = Samples(version=VERSION, environment=environment(crew, settings.launch, load))
        measured = dict.fromkeys(grids, empty)
        shapes: list[tuple[str, Job, Sample]] = []
        if kernels:
            memory, dispatches = occupancy(crew, gpu)
            measured[settings.output] = replace(empty, memory=memory, dispatch_seconds=dispatches)
            swept = sweep(gpu, settings.quick, rounds)
            shapes += shape_jobs(crew.nodes, gpu, swept)
            shapes += transfer_jobs(crew.nodes, settings.nodes_per_rack or len(crew.nodes), swept)
        listed = [case for part in cases.values() for case in part]
        jobs = [(what, job) for what, job, _ in shapes]
        jobs += [_job(case, crew, Operator(case), effort) for case in listed]
        results = _results(crew, jobs, rounds, progress)
        watched = [_job(case, crew, Holding(case), Effort()) for case in listed]
        held = _results(crew, [(f"{what}: memory", job) for what, job in watched], 1, progress)
    found = [
        replace(sample, seconds=tuple(chain.from_iterable(map(slowest, parts))))
        for (_, _, sample), parts in zip(shapes, results[: len(shapes)], strict=True)
    ]
    measured[settings.output] = replace(
        measured[settings.output],
        products=tuple(s for s in found if isinstance(s, ProductSample)),
        copies=tuple(s for s in found if isinstance(s, CopySample)),
        layers=tuple(s for s in found if isinstance(s, LayerSample)),
        transfers=tuple(s for s in found if isinstance(s, TransferSample)),
    )
    operators = map(_operator_sample, listed, results[len(shapes) :], held)
    for file, part in cases.items():
        samples = replace(measured[file], operators=tuple(islice(operators, len(part))))
        write_atomically(file, encode_samples(samples))


def _job(case: OperatorCase, crew: Workers, subject: Subject, effort: Effort) -> tuple[str, Job]:
    """What an operator's job is called, and the job."""
    name = f"{case.role}, {layout_name(case.placement.layout)}"
    return name, Job(subject, members(case.placement, crew.nodes), effort)


def _results(
    crew: Workers, jobs: Sequence[tuple[str, Job]], rounds: int, progress: Progress
) -> list[_Rounds]:
    """What the workers that took part found, of every job."""
    found: list[_Rounds] = [[] for _ in jobs]
    for turn in range(rounds):
        for i, (what, job) in enumerate(jobs):
            progress(what, turn * len(jobs) + i, rounds * len(jobs))
            results, _ = crew.measure(job, what)
            found[i].append(results)
    progress("", rounds * len(jobs), rounds * len(jobs))
    return found


def _operator_sample(case: OperatorCase, rounds: _Rounds, held: _Rounds) -> OperatorSample:
    timed, watched = (list(chain.from_iterable(x)) for x in (rounds, held))
    busy = (map(sum, zip(*(r.busy_seconds for r in part), strict=True)) for part in rounds)
    return OperatorSample(
        case=case,
        seconds=tuple(chain.from_iterable(map(slowest, rounds))),
        busy_seconds=tuple(chain.from_iterable(busy)),
        tensor_bytes=max(r.tensor_bytes for r in watched),
        process_bytes=max((r.process_bytes for r in timed if r.process_bytes is not None), default=None),
    )
