"""The log of a search: one JSON object a line, written while the search runs, so that it can be followed.

The first line says what was searched and how, one line follows for every better plan, and the last line
says how it ended. A log without a last line is of a search that still runs, or that was killed.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from ir_schema.base import Objective, Record
from ir_schema.envelope import canonical
from ir_schema.problem import Placement, Problem, SearchSpace
from ir_schema.stages import Configuration, SearchReport, Ties
from passes.search.progress import Improvement
from rpegc.driver import Instrument, StageRun
from rpegc.failure import UsageFailure, usage_error
from rpegc.pipeline import print_pass
from rpegc.registry import AnyPass
from rpegc.stagefiles import read_bytes, reason

DIGITS = 16


class Begin(Record, frozen=True, kw_only=True, tag_field="line", tag="begin"):
    """What is searched and how. `search` is the pass as pipeline text; a budget (evaluations) or a time
    limit [s] that there is not is null."""

    problem: str
    problem_id: str
    objective: Objective
    search: str
    method: str
    seed: int
    budget: int | None
    time_limit: float | None


class Better(Record, frozen=True, kw_only=True, tag_field="line", tag="improvement"):
    """A plan better than all before it, `seconds` and `evaluations` after the search began.

    `score` is in tokens/s, `value` is what the objective makes of it, `structure` says its structural
    choices, and `plan` is a digest: equal ones are the same plan of the same structure. `lower_bound_s` and
    `gap` are null where nothing is proven.
    """

    seconds: float
    evaluations: int
    score: float
    value: float
    step_s: float
    lower_bound_s: float | None
    gap: float | None
    structure: str
    plan: str


class End(Record, frozen=True, kw_only=True, tag_field="line", tag="end"):
    """How the search ended: its `termination`, `failed` where it found nothing that fits, or `interrupted`.

    Figures are those of the whole search, `step_s` and `gap` the best plan's, `ties` the other plans that
    cannot be told from it; what is not known is null.
    """

    termination: str
    seconds: float
    evaluations: int | None = None
    cache_hits: int | None = None
    step_s: float | None = None
    lower_bound_s: float | None = None
    gap: float | None = None
    ties: Ties | None = None


Line = Begin | Better | End


@dataclass(frozen=True)
class Log:
    """A log as it was read; `end` is None where it has no last line."""

    name: str
    begin: Begin
    improvements: tuple[Better, ...]
    end: End | None


def digest(structure: str, plan: Mapping[str, Placement]) -> str:
    """What identifies a plan of a structure: the first digits of a SHA-256."""
    return hashlib.sha256(canonical([structure, plan])).hexdigest()[:DIGITS]


class SearchLog(Instrument):
    """Writes file `name` while the pass `search` runs; leaving it as a context ends the log in any case.

    Raises UsageFailure E912 when it cannot be written.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._file: IO[bytes] | None = None
        self._given: StageRun | None = None
        self._last: Better | None = None
        self._started = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._end(End(termination=_unfinished(kind), seconds=self._seconds))

    def before(self, p: AnyPass) -> None:
        """Begin the log if `p` is the search."""
        if p.name != "search" or self._given is None or not isinstance(self._given.stage, Problem):
            return
        problem = self._given.stage
        self._started = time.monotonic()
        try:
            self._file = Path(self.name).open("wb")  # noqa: SIM115 (`_end` closes it)
        except OSError as exc:
            raise usage_error("E912", f"cannot write `{self.name}`: {reason(exc)}") from exc
        self._write(
            Begin(
                problem=problem.name,
                problem_id=self._given.id,
                objective=(problem.search or SearchSpace()).objective,
                search=print_pass(p),
                method=getattr(p, "method", p.name),
                seed=getattr(p, "seed", 0),
                budget=getattr(p, "budget", None),
                time_limit=getattr(p, "time_limit", None),
            )
        )

    def after(self, index: int, run: StageRun) -> None:
        """End the log if `run` is what the search found."""
        self._given = run
        if self._file is None or not isinstance(run.stage, Configuration):
            return
        report = run.stage.search or SearchReport(method="")
        self._end(
            End(
                termination=report.termination,
                seconds=self._seconds,
                evaluations=report.evaluations,
                cache_hits=report.cache_hits,
                step_s=self._last.step_s if self._last else None,
                lower_bound_s=report.lower_bound_s,
                gap=report.optimality_gap,
                ties=report.ties,
            )
        )

    def improvement(self, found: Improvement) -> None:
        """Write down a better plan."""
        self._last = Better(
            seconds=round(found.seconds, 6),
            evaluations=found.evaluations,
            score=found.score,
            value=found.value,
            step_s=found.step_s,
            lower_bound_s=found.lower_bound_s,
            gap=found.gap,
            structure=found.structure,
            plan=digest(found.structure, found.plan),
        )
        self._write(self._last)

    @property
    def _seconds(self) -> float:
        return round(time.monotonic() - self._started, 6)

    def _write(self, line: Line) -> None:
        if self._file is None:
            return
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as exc:
            raise usage_error("E912", f"cannot write `{self.name}`: {reason(exc)}") from exc

    def _end(self, line: End) -> None:
        assert self._file is not None, "it has begun"
        with self._file:
            self._write(line)
        self._file = None


def _unfinished(kind: type[BaseException] | None) -> str:
    return "interrupted" if kind is not None and issubclass(kind, KeyboardInterrupt) else "failed"


def read_log(name: str) -> Log:
    """The log in file `name`; a last line that is not written to its end is left out.

    Raises UsageFailure E911 when it cannot be read and E937 when it is no log of a search.
    """
    data = read_bytes(name)
    lines = data.split(b"\n")[:-1]
    found: list[Line] = []
    for number, text in enumerate(lines, start=1):
        try:
            found.append(msgspec.json.decode(text, type=Line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise _no_log(name, f"line {number}: {exc}") from exc
    begin, end = (found[0], found[-1]) if found else (None, None)
    improvements = tuple(line for line in found if isinstance(line, Better))
    if not isinstance(begin, Begin) or len(improvements) + 1 + isinstance(end, End) != len(found):
        raise _no_log(name, "it does not begin with a line `begin` and go on with improvements")
    return Log(name, begin, improvements, end if isinstance(end, End) else None)


def _no_log(name: str, why: str) -> UsageFailure:
    help = "`rpegc FILE --search-log LOG -o OUT` writes one"
    return usage_error("E937", f"`{name}` is not the log of a search: {why}", help=help)
