"""Diagnostics: what is wrong, where, why, and what to do about it.

A pass knows entities, not text, so a label points at a *path* into the problem such as
`graph.data_edges[3]` or `plan.actor_gen.tensor_parallel`. Front ends keep a source map from paths to
spans, and the renderer joins the two. Codes: E0xx syntax, E1xx names, E2xx graph, E3xx units and cost,
E4xx plan and search, E9xx driver; W.. are warnings. Their explanations stand in `rpegc explain`.
"""

from collections.abc import Iterable
from typing import Literal

from ir_schema.base import Record

Severity = Literal["error", "warning", "note"]


class Span(Record, frozen=True, kw_only=True):
    """A stretch of one source file: 0-based character offsets, `end` exclusive."""

    start: int
    end: int


SourceMap = dict[str, Span]


class Label(Record, frozen=True, kw_only=True):
    """A place and what to say about it. `span` wins over `path` when both are given."""

    path: str = ""
    text: str = ""
    span: Span | None = None


class Diagnostic(Record, frozen=True, kw_only=True):
    """One finding. `message` is one terse lower-case phrase; the first label is the primary one."""

    code: str
    message: str
    labels: tuple[Label, ...] = ()
    help: str = ""
    notes: tuple[str, ...] = ()
    severity: Severity = "error"


class DiagnosticError(Exception):
    """Input is at fault: carries every finding of the stage that gave up (exit code 1)."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("; ".join(f"{d.code}: {d.message}" for d in self.diagnostics))


def error(code: str, message: str, *paths: str, help: str = "", notes: Iterable[str] = ()) -> Diagnostic:
    """An error labelled at each of `paths`, the first being primary."""
    return Diagnostic(
        code=code,
        message=message,
        labels=tuple(Label(path=p) for p in paths),
        help=help,
        notes=tuple(notes),
    )
