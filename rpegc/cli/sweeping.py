"""What `rpegc sweep` does: read the file and the grid, compile the points, write and print."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rpegc.cli.console import Console
from rpegc.diagnostics import Source
from rpegc.failure import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, usage_error
from rpegc.frontend import decode
from rpegc.inputs import directory_of, problem_bytes
from rpegc.parallel import cores
from rpegc.pipeline import Pipeline, named_pipeline
from rpegc.plots import check_plot
from rpegc.stagefiles import check_table, make_directory, print_text, write_bytes
from rpegc.sweep.plot import plot
from rpegc.sweep.points import Candidate, Point, compiled, grid, with_front
from rpegc.sweep.table import Sweep, as_csv, as_json, as_text
from rpegc.sweep.vary import read_variations
from rpegc.text.parser import parse

MOST_POINTS = 4096


@dataclass(frozen=True)
class Request:
    """The command line of one sweep; `search` holds options that replace the search pass's."""

    file: str
    variations: tuple[str, ...]
    level: str | None
    search: Mapping[str, object]
    jobs: int | None
    output: str | None
    csv_file: str | None
    plot_file: str | None
    as_json: bool


def sweep_and_print(request: Request, console: Console) -> int:
    """Run one command line; its exit code. Raises what `Console.guard` turns into one."""
    csv_file, plot_file = _outputs(request)
    candidates = _candidates(request, console)
    jobs = min(request.jobs or cores(), len(candidates))
    share = {"threads": max(1, cores() // jobs)}
    level = named_pipeline(f"O{request.level or '2'}")
    pipeline = level.replace_options("search", **{**share, **request.search})
    points, interrupted = _compile(candidates, pipeline, jobs, console)
    keys = tuple(candidates[0].values)
    done = with_front([points[i] for i in sorted(points)])
    sweep = Sweep(source=request.file, keys=keys, points=done, interrupted=interrupted)
    if csv_file is not None:
        write_bytes(csv_file, as_csv(sweep))
    if plot_file is not None:
        plot(sweep, plot_file)
    planned = any(point.figures is not None for point in done)
    if console.verbose or not planned:
        _explain(candidates, points, console)
    if request.as_json:
        write_bytes("-", as_json(sweep))
    elif csv_file != "-":
        print_text(as_text(sweep))
    if interrupted:
        console.say(f"interrupted: {len(done)} of {len(candidates)} points are done")
        return EXIT_INTERRUPTED
    return EXIT_OK if planned else EXIT_INPUT


def _outputs(request: Request) -> tuple[str | None, str | None]:
    """Where CSV and plot go. Raises UsageFailure for what cannot be written, before anything is compiled."""
    csv_file, plot_file = request.csv_file, request.plot_file
    if request.output is not None:
        if csv_file is not None or plot_file is not None:
            message = "`-o` and `--csv` or `--plot` both say where to write"
            raise usage_error("E932", message, help="give the directory, or the files")
        csv_file, plot_file = (str(Path(request.output) / name) for name in ("sweep.csv", "sweep.png"))
        make_directory(Path(request.output))
    check_table(csv_file, as_json=request.as_json)
    if plot_file is not None:
        check_plot(plot_file)
    return csv_file, plot_file


def _candidates(request: Request, console: Console) -> list[Candidate]:
    """The points of the grid. Raises UsageFailure and DiagnosticError where there is none."""
    if not request.variations:
        help = f"for example `rpegc sweep {request.file} --vary cluster.nodes=2,4,8`"
        raise usage_error("E932", "nothing is varied", help=help)
    data = problem_bytes(request.file)
    console.source = Source.decode(data, request.file)
    if data.lstrip().startswith(b"{"):
        help = f"`rpegc fmt {request.file}` prints it as text; sizes of containers are then plain numbers"
        raise usage_error("E932", f"`{request.file}` is JSON, and only text can be varied", help=help)
    text = decode(data)
    file = parse(text)
    variations = read_variations(request.variations, len(text) + 1)
    points = math.prod(len(v.choices) for v in variations)
    if points > MOST_POINTS:
        help = f"a sweep compiles every point; at most {MOST_POINTS:,} are taken"
        raise usage_error("E932", f"the grid has {points:,} points", help=help)
    return grid(file, Source(request.file, text), variations, directory_of(request.file))


def _compile(
    candidates: Sequence[Candidate], pipeline: Pipeline, jobs: int, console: Console
) -> tuple[dict[int, Point], bool]:
    """The points by number, and whether an interrupt left some out."""
    points: dict[int, Point] = {}
    try:
        with closing(compiled(candidates, pipeline, jobs)) as found:
            for index, point in found:
                points[index] = point
                _tell(point, len(points), len(candidates), console)
    except KeyboardInterrupt:
        if not points:
            raise
        return points, True
    finally:
        console.transient("")
    return points, False


def _tell(point: Point, done: int, of: int, console: Console) -> None:
    """One more point is done."""
    values = ", ".join(f"{key} = {value}" for key, value in point.values.items())
    told = (
        point.diagnostics[0].code
        if point.figures is None
        else f"{point.figures.tokens_per_second:.5g} tokens/s"
    )
    line = f"{done} of {of}: {values}: {told}"
    if console.terminal:
        console.transient(line)
    else:
        console.say(line)


def _explain(candidates: Sequence[Candidate], points: Mapping[int, Point], console: Console) -> None:
    """Show what is wrong with the points that have no plan, everything once."""
    told = set()
    for index in sorted(points):
        console.source = candidates[index].source
        new = [d for d in points[index].diagnostics if d not in told]
        told.update(new)
        console.report(new)
