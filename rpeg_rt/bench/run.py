"""A whole measurement: from workers to a sample file."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
from rpeg_rt.bench.jobs import Effort, Holding, Job, Operator, Result
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


@dataclass
class _Bench:
    """What has been measured so far. Times are measured in `rounds`, each of everything: a machine that is
    slower for a minute is then so for a part of every sample, not for all of a few."""

    crew: Workers
    progress: Progress
    rounds: int
    samples: list[Sample | OperatorSample] = field(default_factory=list)

    def shapes(self, jobs: Iterable[tuple[str, Job, Sample]]) -> None:
        """Measure kernels or communications."""
        listed = list(jobs)
        results = self._results([(what, job) for what, job, _ in listed], self.rounds)
        for (_, _, sample), rounds in zip(listed, results, strict=True):
            seconds = tuple(chain.from_iterable(map(slowest, rounds)))
            self.samples.append(replace(sample, seconds=seconds))

    def operators(self, cases: list[OperatorCase], effort: Effort) -> None:
        """Measure operators."""
        ranks = [members(case.placement, self.crew.nodes) for case in cases]
        names = [f"{case.role}, {layout_name(case.placement.layout)}" for case in cases]
        seconds = self._results([
            (name, Job(Operator(case), r, effort))
            for name, case, r in zip(names, cases, ranks, strict=True)
        ], self.rounds)  # fmt: skip
        held = self._results([
            (f"{name}: memory", Job(Holding(case), r, Effort()))
            for name, case, r in zip(names, cases, ranks, strict=True)
        ], 1)  # fmt: skip
        self.samples += map(_operator_sample, cases, seconds, held)

    def _results(self, jobs: Sequence[tuple[str, Job]], rounds: int) -> list[_Rounds]:
        """What the workers that took part found, of every job."""
        found: list[_Rounds] = [[] for _ in jobs]
        for turn in range(rounds):
            for i, (what, job) in enumerate(jobs):
                self.progress(what, turn * len(jobs) + i, rounds * len(jobs))
                results, _ = self.crew.measure(job, what)
                found[i].append(results)
        self.progress("", rounds * len(jobs), rounds * len(jobs))
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
    # Processors are what others use as well.
    rounds = 1 if gpu or settings.quick else ROUNDS
    effort = Effort(0.3, 3, 10) if settings.quick else Effort(1.0, 5, 30).shared(rounds)
    count = settings.workers or visible_gpus() or processors()
    with workers(settings.launch, count, settings.interface, settings.port) as crew:
        sizes = [len(node) for node in crew.nodes]
        cases = expand(grids, sizes)
        samples = Samples(version=VERSION, environment=environment(crew, settings.launch, load))
        bench = _Bench(crew, progress, rounds)
        if kernels:
            memory, dispatches = occupancy(crew, gpu)
            samples = replace(samples, memory=memory, dispatch_seconds=dispatches)
            shapes = sweep(gpu, settings.quick, rounds)
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
