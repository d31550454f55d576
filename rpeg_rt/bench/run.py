"""A whole measurement: from workers to a sample file."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
from rpeg_rt.bench.jobs import Effort, Job, Operator
from rpeg_rt.bench.machine import Sample, occupancy, shape_jobs, slowest, sweep, transfer_jobs
from rpeg_rt.files import check_writable, write_atomically
from rpeg_rt.joining import visible_gpus
from rpeg_rt.launch import Launch
from rpeg_rt.realise import layout_name

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


@dataclass
class _Bench:
    """What has been measured so far."""

    crew: Workers
    progress: Progress
    samples: list[Sample | OperatorSample] = field(default_factory=list)

    def shapes(self, jobs: Iterable[tuple[str, Job, Sample]]) -> None:
        """Measure kernels or communications."""
        listed = list(jobs)
        for i, (what, job, sample) in enumerate(listed):
            self.progress(what, i, len(listed))
            results, _ = self.crew.measure(job, what)
            self.samples.append(replace(sample, seconds=slowest(results)))
        self.progress("", len(listed), len(listed))

    def operators(self, cases: list[OperatorCase], effort: Effort) -> None:
        """Measure operators."""
        for i, case in enumerate(cases):
            what = f"{case.role}, {layout_name(case.placement.layout)}"
            self.progress(what, i, len(cases))
            ranks = members(case.placement, self.crew.nodes)
            results, _ = self.crew.measure(Job(Operator(case), ranks, effort), what)
            processes = [r.process_bytes for r in results if r.process_bytes is not None]
            self.samples.append(
                OperatorSample(
                    case=case,
                    seconds=slowest(results),
                    busy_seconds=tuple(
                        sum(busy) for busy in zip(*(r.busy_seconds for r in results), strict=True)
                    ),
                    tensor_bytes=max(r.tensor_bytes for r in results),
                    process_bytes=max(processes, default=None),
                )
            )
        self.progress("", len(cases), len(cases))


def measure_machine(settings: Settings, progress: Progress) -> Samples:
    """Measure kernels, communications and calibrating operators. Raises RunError."""
    return _measure(settings, progress, None, calibrating, kernels=True)


def measure_operators(settings: Settings, grid: Path | None, progress: Progress) -> Samples:
    """Measure the operators of the grid in a file, or those that a calibration is examined with. Raises
    RunError."""
    given = None if grid is None else read_grid(grid)
    return _measure(settings, progress, given, examining, kernels=False)


def _measure(
    settings: Settings,
    progress: Progress,
    given: Grid | None,
    default: Callable[[bool, bool], tuple[Grid, ...]],
    *,
    kernels: bool,
) -> Samples:
    check_writable(settings.output)
    load, gpu = running(), visible_gpus() > 0
    grids = default(gpu, settings.quick) if given is None else (given,)
    effort = Effort(0.3, 3, 10) if settings.quick else Effort(1.0, 5, 30)
    count = settings.workers or visible_gpus() or processors()
    with workers(settings.launch, count, settings.interface, settings.port) as crew:
        sizes = [len(node) for node in crew.nodes]
        cases = expand(grids, sizes)
        samples = Samples(version=VERSION, environment=environment(crew, settings.launch, load))
        bench = _Bench(crew, progress)
        if kernels:
            memory, dispatches = occupancy(crew, gpu)
            samples = replace(samples, memory=memory, dispatch_seconds=dispatches)
            shapes = sweep(gpu, settings.quick)
            bench.shapes(shape_jobs(crew.nodes, gpu, shapes))
            bench.shapes(transfer_jobs(crew.nodes, settings.nodes_per_rack or len(crew.nodes), shapes))
        bench.operators(cases, effort)
    samples = replace(
        samples,
        products=tuple(s for s in bench.samples if isinstance(s, ProductSample)),
        copies=tuple(s for s in bench.samples if isinstance(s, CopySample)),
        layers=tuple(s for s in bench.samples if isinstance(s, LayerSample)),
        transfers=tuple(s for s in bench.samples if isinstance(s, TransferSample)),
        operators=tuple(s for s in bench.samples if isinstance(s, OperatorSample)),
    )
    write_atomically(settings.output, encode_samples(samples))
    return samples
