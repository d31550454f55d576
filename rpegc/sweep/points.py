"""The points of a sweep: the problem of each, compiled in parallel, and the figures of each plan."""

import itertools
import math
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import Diagnostic, DiagnosticError, SourceMap, Span, error
from ir_schema.problem import Problem
from rpegc.diagnostics import Source
from rpegc.driver import input_run, run_pipeline
from rpegc.figures import Figures, figures_of
from rpegc.frontend import build
from rpegc.outcome import report_of, score_of
from rpegc.parallel import workers
from rpegc.pipeline import Pipeline
from rpegc.sweep.vary import Variation, place, substitute
from rpegc.text import tree


class Point(Record, frozen=True, kw_only=True):
    """One point: its values by key, as they were written, and the GPUs of its cluster.

    Where there is no plan, `figures` and `plan_id` (the id of the executable) are None and `diagnostics` say
    why. `front` marks the points of the Pareto front.
    """

    values: dict[str, str]
    gpus: int | None
    figures: Figures | None = None
    plan_id: str | None = None
    front: bool = False
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A point before it is compiled: its values, its problem (None: `diagnostics` say why), and what its
    diagnostics point into."""

    values: Mapping[str, str]
    problem: Problem | None
    source: Source
    diagnostics: tuple[Diagnostic, ...] = ()


def grid(
    file: tree.File,
    source: Source,
    variations: Sequence[Variation],
    directory: Path,
) -> list[Candidate]:
    """All combinations of the values of `variations` in `file`, the last variation changing fastest.

    `source` is the text of `file`, and paths in it are relative to `directory`. Raises UsageFailure when the
    language refuses a key or a value; other findings about a point stay with it.
    """
    places = [place(file, v) for v in variations]
    candidates = []
    for chosen in itertools.product(*(v.choices for v in variations)):
        values = {}
        changed = file
        for variation, choice in zip(variations, chosen, strict=True):
            values[variation.key] = choice.text
            changed = substitute(changed, variation, choice.value)
        problem: Problem | None = None
        source_map: SourceMap = {}
        found: tuple[Diagnostic, ...] = ()
        try:
            problem, source_map = build(changed, directory)
        except DiagnosticError as exc:
            _refuse(exc.diagnostics, variations)
            found = tuple(_in_file(d, variations, places) for d in exc.diagnostics)
        placed = {path: _placed(span, variations, places) for path, span in source_map.items()}
        candidates.append(Candidate(values, problem, replace(source, source_map=placed), found))
    return candidates


def _refuse(found: Sequence[Diagnostic], variations: Sequence[Variation]) -> None:
    """Raise the first finding that is about a variation itself."""
    for diagnostic in found:
        span = diagnostic.labels[0].span if diagnostic.labels else None
        for variation in variations:
            if span is not None and variation.holds(span):
                raise variation.fault(diagnostic)


def _placed(span: Span, variations: Sequence[Variation], places: Sequence[Span]) -> Span:
    """Where `span` is shown in the file: what stands in a variation is shown at the place of its key."""
    return next((at for v, at in zip(variations, places, strict=True) if v.holds(span)), span)


def _in_file(found: Diagnostic, variations: Sequence[Variation], places: Sequence[Span]) -> Diagnostic:
    labels = (
        msgspec.structs.replace(x, span=_placed(x.span, variations, places)) if x.span else x
        for x in found.labels
    )
    return msgspec.structs.replace(found, labels=tuple(labels))


def compiled(
    candidates: Sequence[Candidate], pipeline: Pipeline, jobs: int
) -> Generator[tuple[int, Point], None, None]:
    """The number and the point of every candidate, compiled in `jobs` processes.

    The order is that in which they are done; what a point says depends on nothing but its candidate and the
    pipeline. Closing the iterator, or an interrupt, ends the processes.
    """
    waiting = deque(enumerate(candidates))
    while waiting:
        with workers(jobs) as pool:
            yield from _until_broken(waiting, pipeline, jobs, pool)


def _until_broken(
    waiting: deque[tuple[int, Candidate]], pipeline: Pipeline, jobs: int, pool: Executor
) -> Iterator[tuple[int, Point]]:
    """Compile what is `waiting` until nothing is left, or the system has killed a process of `pool`."""
    running: dict[Future[Point], tuple[int, Candidate]] = {}
    broken = False
    while running or (waiting and not broken):
        while waiting and len(running) < jobs and not broken:
            try:
                running[pool.submit(_compile, waiting[0][1], pipeline)] = waiting[0]
            except BrokenExecutor:
                broken = True
            else:
                waiting.popleft()
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            index, candidate = running.pop(future)
            try:
                yield index, future.result()
            except BrokenExecutor:
                broken = True
                help = "fewer `--jobs` need less memory"
                died = error("E990", "a process that compiled this point or one beside it died", help=help)
                yield index, _failed(candidate, (died,))


def _compile(candidate: Candidate, pipeline: Pipeline) -> Point:
    problem = candidate.problem
    if problem is None:
        return _failed(candidate, candidate.diagnostics)
    try:
        runs = run_pipeline(pipeline, input_run(problem), reproducers=Path())
    except DiagnosticError as exc:
        return _failed(candidate, exc.diagnostics)
    score, report = score_of(runs[-1].stage), report_of(runs[-1].stage)
    assert score is not None, "the pipeline ends in an executable"
    assert report is not None
    gpus = math.prod(problem.device_space)
    return Point(
        values=dict(candidate.values), gpus=gpus, figures=figures_of(score, report), plan_id=runs[-1].id
    )


def _failed(candidate: Candidate, found: tuple[Diagnostic, ...]) -> Point:
    problem = candidate.problem
    gpus = None if problem is None else math.prod(problem.device_space)
    return Point(values=dict(candidate.values), gpus=gpus, diagnostics=found)


def with_front(points: Sequence[Point]) -> tuple[Point, ...]:
    """`points` with those of the Pareto front marked: among the plans that fit, none has as many tokens/s for
    as few GPU-hours per million tokens, and more of the one or less of the other."""
    plans = [p.figures for p in points if p.figures is not None and p.figures.fits]
    return tuple(
        msgspec.structs.replace(p, front=p.figures in plans and not any(_beats(f, p.figures) for f in plans))
        for p in points
    )


def _beats(one: Figures, other: Figures | None) -> bool:
    """Whether `one` is better in one respect of the Pareto front and not worse in the other."""
    assert other is not None
    more = one.tokens_per_second - other.tokens_per_second
    saved = other.gpu_hours_per_million_tokens - one.gpu_hours_per_million_tokens
    return more >= 0 and saved >= 0 and more + saved > 0
