"""Running a pipeline: one pass after the other from a stage to a stage, observed by instruments.

The driver knows stages and passes, neither text nor terminals. A pass that raises `DiagnosticError` has
found the input at fault; anything else it raises is a bug, and then the driver writes a reproducer: the
stage that went in and the pipeline text from there on, which together make it happen again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ir_schema.base import Record
from ir_schema.diagnostics import DiagnosticError, SourceMap
from ir_schema.envelope import encode_stage, identify, stage_name
from rpegc.failure import InternalFailure
from rpegc.pipeline import Pipeline, print_pass
from rpegc.registry import AnyPass
from rpegc.reproducer import crash, reproducible


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
            failure.__cause__ = exc
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


def _with_reproducer(
    failure: InternalFailure, pipeline: Pipeline, index: int, before: StageRun, where: Path | None
) -> InternalFailure:
    """`failure` with a reproducer of pass `index`, if one is wanted and can be written."""
    if where is None:
        return failure
    return reproducible(
        failure,
        where / f"rpegc-crash-{before.id[:12]}",
        f"input.{before.name}.json",
        before.encode(),
        "--from",
        str(pipeline.part(index - 1)),
    )
