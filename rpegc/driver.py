"""Running a pipeline: one pass after the other from a stage to a stage, observed by instruments.

The driver knows stages and passes, neither text nor terminals. A pass that raises `DiagnosticError` has
found the input at fault; anything else it raises is a bug, and then the driver writes a reproducer: the
stage that went in and the pipeline text from there on, which together make it happen again.
"""

import shlex
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ir_schema.base import Record
from ir_schema.diagnostics import Diagnostic, DiagnosticError, SourceMap
from ir_schema.envelope import encode_stage, identify, stage_name
from rpegc.failure import InternalFailure, UsageFailure
from rpegc.pipeline import Pipeline, print_pass
from rpegc.registry import AnyPass
from rpegc.stagefiles import write_bytes


@dataclass(frozen=True)
class StageRun:
    """A stage and where it came from: the pass as text (None: the input), its parent's id, seconds taken."""

    stage: Record
    id: str
    made_by: AnyPass | None = None
    parent: str | None = None
    seconds: float = 0.0
    external: dict[str, str] = field(default_factory=dict)
    source_map: SourceMap = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the stage."""
        return stage_name(self.stage)

    def encode(self) -> bytes:
        """The bytes of the stage file."""
        return encode_stage(
            self.stage,
            parent=self.parent,
            produced_by=None if self.made_by is None else print_pass(self.made_by),
            external=self.external,
            source_map=self.source_map,
        )


def input_run(
    stage: Record,
    *,
    parent: str | None = None,
    external: dict[str, str] | None = None,
    source_map: SourceMap | None = None,
) -> StageRun:
    """The stage that a pipeline starts from."""
    return StageRun(
        stage, identify(stage), parent=parent, external=external or {}, source_map=source_map or {}
    )


class Instrument:
    """Something that watches a pipeline; both hooks do nothing unless overridden."""

    def before(self, p: AnyPass) -> None:
        """`p` is about to run."""

    def after(self, index: int, run: StageRun) -> None:
        """Stage `index` exists: the input has index 0, the n-th pass's result index n."""


def run_pipeline(
    pipeline: Pipeline,
    given: StageRun,
    instruments: Sequence[Instrument] = (),
    *,
    reproducers: Path | None = None,
) -> list[StageRun]:
    """Run all passes and return every stage, the input first.

    A crash, or a stage that breaks an invariant under `VerifyEach`, leaves a reproducer under the
    directory `reproducers` (None: none is written). Raises DiagnosticError when a pass finds the input at
    fault, InternalFailure E990 when a pass crashes or returns something else than it promised.
    """
    runs = [given]
    for instrument in instruments:
        instrument.after(0, given)
    for index, p in enumerate(pipeline.passes, start=1):
        try:
            for instrument in instruments:
                instrument.before(p)
            runs.append(_run_pass(p, runs[-1]))
            for instrument in instruments:
                instrument.after(index, runs[-1])
        except InternalFailure as exc:
            raise _with_reproducer(exc, pipeline, index, runs[index - 1], reproducers) from exc
        except DiagnosticError:
            raise
        except Exception as exc:
            failure = InternalFailure([crash(f"pass `{p.name}` crashed", exc)])
            raise _with_reproducer(failure, pipeline, index, runs[index - 1], reproducers) from exc
    return runs


def _run_pass(p: AnyPass, before: StageRun) -> StageRun:
    started = time.perf_counter()
    stage = p.run(before.stage)
    seconds = time.perf_counter() - started
    if type(stage) is not p.target:
        raise TypeError(f"it returned {type(stage).__name__} instead of {p.target.__name__}")
    keep = before.source_map if p.source is p.target else {}
    return StageRun(stage, identify(stage), p, before.id, seconds, before.external, keep)


def crash(message: str, exc: BaseException) -> Diagnostic:
    """The diagnostic of an exception that nobody expected: what was raised, and where."""
    frames = traceback.extract_tb(exc.__traceback__)
    where = f"at {Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    raised = "".join(traceback.format_exception_only(exc)).strip()
    return Diagnostic(
        code="E990",
        message=message,
        notes=tuple(n for n in (raised, where) if n),
        help="this is a bug in the compiler or a plugin; please report it",
    )


def _with_reproducer(
    failure: InternalFailure, pipeline: Pipeline, index: int, before: StageRun, where: Path | None
) -> InternalFailure:
    """`failure` with the reproducer that was written for pass `index`, if it could be."""
    if where is None:
        return failure
    rest = str(pipeline.part(index - 1))
    folder = where / f"rpegc-crash-{before.id[:12]}"
    source = folder / f"input.{before.name}.json"
    replay = f"rpegc --from {shlex.quote(str(source))} -p {shlex.quote(rest)} --verify-each -o /dev/null"
    try:
        write_bytes(str(source), before.encode())
        write_bytes(str(folder / "pipeline.txt"), f"{rest}\n".encode())
        write_bytes(str(folder / "replay.sh"), f"{replay}\n".encode())
        cause = failure.__cause__ or failure
        write_bytes(str(folder / "traceback.txt"), "".join(traceback.format_exception(cause)).encode())
    except (UsageFailure, ValueError):
        return failure
    first, *others = failure.diagnostics
    told = Diagnostic(
        code=first.code,
        message=first.message,
        labels=first.labels,
        notes=first.notes,
        help=f"{first.help}; it happens again with:\n{replay}",
    )
    return InternalFailure([told, *others], reproducer=str(folder))
