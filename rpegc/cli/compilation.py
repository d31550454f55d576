"""What the main verb does: settle the pipeline, read the input, run, write, report."""

import contextlib
import dataclasses
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from ir_schema.diagnostics import Diagnostic, DiagnosticError
from ir_schema.envelope import STAGES, identify, pretty, stage_name
from ir_schema.problem import Placement, Problem, SearchSpace
from passes.cost import GROUP as COST_MODELS
from rpegc.cli.console import Console
from rpegc.cli.files import read
from rpegc.cli.progress import watching
from rpegc.diagnostics import Source
from rpegc.driver import Instrument, StageRun, run_pipeline
from rpegc.dump import dump
from rpegc.failure import EXIT_OK, InternalFailure, suggestion, usage_error
from rpegc.inputs import Input, parse_problem, problem_bytes, read_stage
from rpegc.instrument import Announce, Keep, PrintAfter, SaveStages, TimePasses, VerifyEach
from rpegc.outcome import notices, outcome_of, plan_of, summary
from rpegc.pipeline import Pipeline, named_pipeline, parse_pipeline
from rpegc.registry import registered
from rpegc.reproducer import crash, reproducible
from rpegc.searchlog import SearchLog
from rpegc.stagefiles import check_writable, print_text, write_bytes


@dataclass(frozen=True)
class Request:
    """The command line of one compilation; `search` holds options that replace the search pass's."""

    file: str | None
    resume: str | None
    output: str | None
    level: str | None
    pipeline: str | None
    emit: str | None
    search: Mapping[str, object]
    objective: str | None
    warm_start: str | None
    search_log: str | None
    as_printed: bool
    cost_model: str | None
    save_stages: str | None
    verify_each: bool
    time_passes: bool
    print_after: tuple[str, ...]
    print_pipeline: bool
    summary: bool
    as_json: bool


def compile_and_print(request: Request, console: Console) -> int:
    """Run one command line; its exit code. With `--json` one object is printed whatever happens."""
    made: list[StageRun] = []
    if not request.as_json:
        return console.guard(lambda: _compile(request, console, made))
    found: tuple[Diagnostic, ...] = ()
    try:
        code = _compile(request, console, made)
    except click.ClickException:
        raise
    except (Exception, KeyboardInterrupt) as exc:
        code, found = console.failed(exc)
    if not request.print_pipeline:
        return console.guard(lambda: write_bytes("-", pretty(outcome_of(code, made, found)))) or code
    return code


def _compile(request: Request, console: Console, made: list[StageRun]) -> int:
    """The whole job; every stage that comes into being is put into `made`."""
    _check(request)
    if request.print_pipeline and not (request.file or request.resume):
        print_text(str(settle_pipeline(request, None)))
        return EXIT_OK
    settle_pipeline(request, None)  # a mistake in the pipeline is found before any file is read
    given = _read(request, console)
    pipeline = settle_pipeline(request, given.name)
    if request.print_pipeline:
        print_text(str(pipeline))
        return EXIT_OK
    given = _searched_from(request, given, console)
    _run(request, pipeline, given, console, made)
    if request.output is not None:
        write_bytes(request.output, made[-1].encode())
        console.detail(f"wrote {made[-1].name} {made[-1].id[:12]} to `{request.output}`")
    console.report(notices(made))
    if request.summary or not (request.output or request.as_json or request.save_stages):
        if request.as_json or request.output == "-":
            print(summary(made), file=sys.stderr, flush=True)
        else:
            print_text(summary(made))
    return EXIT_OK


def _check(request: Request) -> None:
    """Refuse command lines that ask for two things at once, or for nothing."""
    if request.file and request.resume:
        raise usage_error("E932", "both FILE and `--from` are given", help="a run has one input")
    if not (request.file or request.resume or request.print_pipeline):
        raise usage_error("E932", "no input", help="`rpegc FILE -o OUT`; `rpegc --help` shows more")
    if request.as_json and request.output == "-":
        raise usage_error("E932", "`--json` and `-o -` both need stdout", help="write the artefact to a file")
    if request.emit is not None and request.emit not in STAGES:
        raise usage_error("E931", f"unknown stage `{request.emit}`", help=suggestion(request.emit, STAGES))
    if request.level is not None and request.pipeline is not None:
        raise usage_error("E932", f"`-O{request.level}` and `-p` both choose the passes", help="give one")
    if request.cost_model is not None:
        models = registered(COST_MODELS)
        if request.cost_model not in models:
            help = suggestion(request.cost_model, models)
            raise usage_error("E301", f"unknown cost model `{request.cost_model}`", help=help)
    if request.search_log == "-":
        raise usage_error("E932", "`--search-log` needs a file", help="stdout is for the artefact")
    for name in (request.output, request.search_log):
        if name is not None:
            check_writable(name)


def settle_pipeline(request: Request, given: str | None) -> Pipeline:
    """The passes that will run on an input of stage `given` (None: not read yet).

    A level's pipeline is cut to what leads from the input to `--emit`; the text of `-p` is only cut behind
    `--emit`. Raises UsageFailure when the passes do not fit (E920 … E924).
    """
    if request.pipeline is None:
        pipeline = named_pipeline(f"O{request.level or '2'}").between(given or "problem", "executable")
    else:
        pipeline = parse_pipeline(request.pipeline)
    _refuse_late_search(request, pipeline, given)
    if request.search:
        pipeline = pipeline.replace_options("search", **request.search)
    _refuse_unused_start(request, pipeline)
    if request.emit is not None:
        pipeline = pipeline.until(request.emit)
    pipeline.check(given, request.emit or ("executable" if request.pipeline is None else None))
    known = {p.name for p in pipeline.passes} | {"all"}
    for name in request.print_after:
        if name not in known:
            raise usage_error(
                "E921", f"`--print-after {name}`: no such pass runs", help=suggestion(name, known)
            )
    return pipeline


def _refuse_late_search(request: Request, pipeline: Pipeline, given: str | None) -> None:
    """Refuse options of the search (E932) where none runs."""
    asked = [f"-O{request.level}"] if request.level is not None else []
    names = ("search" if option == "method" else option for option in request.search)
    asked += [f"--{name.replace('_', '-')}" for name in names]
    asked += [
        f"--{name.replace('_', '-')}"
        for name in ("objective", "warm_start", "search_log")
        if getattr(request, name) is not None
    ]
    if asked and not any(p.name == "search" for p in pipeline.passes):
        if request.pipeline is not None:
            raise usage_error("E932", f"`{asked[0]}` is about the search, and `-p` runs none")
        message = f"`{asked[0]}` is about the search, and the plan in stage `{given}` is settled"
        raise usage_error("E932", message, help="start from the problem")


def _refuse_unused_start(request: Request, pipeline: Pipeline) -> None:
    """Refuse a warm start (E932) of a method that starts from nothing."""
    methods = (getattr(p, "method", None) for p in pipeline.passes if p.name == "search")
    idle = [m for m in methods if m in ("none", "greedy", "concurrent")]
    if request.warm_start is not None and idle:
        message = f"`--warm-start` is where a search starts, and method `{idle[0]}` does not search"
        raise usage_error("E932", message, help="`--search auto`, or no `--warm-start`")


def _read(request: Request, console: Console) -> StageRun:
    if request.file:
        data = problem_bytes(request.file, _command_names())
        console.source = Source.decode(data, request.file)
        taken = _parse(request, data)
    else:
        assert request.resume
        console.source = Source(request.resume, "")
        taken = read_stage(request.resume, check=not request.verify_each)
        if _options(request):
            raise usage_error(
                "E930",
                f"the options of `{request.resume}` are settled",
                help="`--as-printed` and `--cost-model` need a problem: start from it again",
            )
    console.source = taken.source
    return taken.run


def _parse(request: Request, data: bytes) -> Input:
    """The problem; a crash of the front end leaves a reproducer, as one of a pass does."""
    assert request.file
    try:
        return parse_problem(data, request.file, _options(request))
    except DiagnosticError:
        raise
    except Exception as exc:
        failure = InternalFailure([crash("reading the problem crashed", exc)])
        failure.__cause__ = exc
        name = "input.json" if data.lstrip().startswith(b"{") else "input.rpeg"
        folder = Path(f"rpegc-crash-{hashlib.sha256(data).hexdigest()[:12]}")
        raise reproducible(failure, folder, name, data, "", "verify") from exc


def _command_names() -> list[str]:
    """What FILE may have been meant to be."""
    root = click.get_current_context().find_root().command
    return sorted(root.commands) if isinstance(root, click.Group) else []


def _options(request: Request) -> dict[str, object]:
    """What the command line says instead of the problem's `options`."""
    if not request.as_printed:
        return {"cost_model": request.cost_model} if request.cost_model else {}
    if request.cost_model not in (None, "paper"):
        raise usage_error("E932", f"`--as-printed` means cost model `paper`, not `{request.cost_model}`")
    return {"as_printed": True, "cost_model": "paper"}


def _searched_from(request: Request, given: StageRun, console: Console) -> StageRun:
    """The input with the objective and the start that the command line gives its search."""
    said: dict[str, Any] = {}
    if request.objective is not None:
        said["objective"] = request.objective
    if request.warm_start is not None:
        said["warm_start"] = _plan_in(request.warm_start, console)
    if not said:
        return given
    if not isinstance(given.stage, Problem):
        raise usage_error("E932", f"a search on a `{given.name}` has no objective and no start to replace")
    space = msgspec.structs.replace(given.stage.search or SearchSpace(), **said)
    problem = msgspec.structs.replace(given.stage, search=space)
    return dataclasses.replace(given, stage=problem, id=identify(problem))


def _plan_in(name: str, console: Console) -> dict[str, Placement]:
    """The plan in stage file `name`. Raises UsageFailure E935 where it has none."""
    own = console.source
    stage = read(name, console)
    console.source = own
    found = plan_of(stage)
    if found is None:
        raise usage_error(
            "E935",
            f"`{name}` is a `{stage_name(stage)}`, which has no plan to start from",
            help=f"compile it first: `rpegc {name} -o start.exe.json`",
        )
    return dict(found[1])


def _run(
    request: Request, pipeline: Pipeline, given: StageRun, console: Console, made: list[StageRun]
) -> None:
    timer = TimePasses()
    instruments: list[Instrument] = [Keep(made)]
    if console.verbose:
        instruments.append(Announce(console.say))
    if request.save_stages:
        instruments.append(SaveStages(Path(request.save_stages)))
    if request.print_after:
        instruments.append(PrintAfter(request.print_after, lambda run: dump(run.stage), console.say))
    if request.verify_each:
        instruments.append(VerifyEach())
    instruments.append(timer)
    with contextlib.ExitStack() as stack:
        log = None
        if request.search_log is not None:
            log = stack.enter_context(SearchLog(request.search_log))
            instruments.append(log)
        search = stack.enter_context(watching(console, log.improvement if log else None))
        try:
            run_pipeline(pipeline, given, [*instruments, search], reproducers=Path())
        except DiagnosticError:
            if search.asked:
                raise KeyboardInterrupt from None  # it was stopped before any plan fitted
            raise
        finally:
            if request.time_passes:
                console.say(timer.table())
        if search.asked:
            console.say("stopped early: this is the best plan found so far")
