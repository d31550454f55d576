"""What the driver itself can find wrong: the command, the pipeline text, files, plugins (codes E9xx).

A pass reports faulty input as a plain `DiagnosticError` (exit code 1). A `UsageFailure` is about how the
compiler was called (exit code 2), an `InternalFailure` about the compiler (exit code 70).
"""

import difflib
from collections.abc import Iterable

from ir_schema.diagnostics import Diagnostic, DiagnosticError, Label, Span

EXIT_OK = 0
EXIT_INPUT = 1
EXIT_USAGE = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


class UsageFailure(DiagnosticError):
    """The command line, a file or a plugin is at fault.

    `source_name` and `source_text` are what the labels' spans point into (the text of `-p`, for example).
    """

    def __init__(
        self, diagnostics: Iterable[Diagnostic], *, source_name: str = "", source_text: str = ""
    ) -> None:
        super().__init__(diagnostics)
        self.source_name = source_name
        self.source_text = source_text


class InternalFailure(DiagnosticError):
    """The compiler is at fault; `reproducer` names the directory with which it happens again, if any."""

    def __init__(self, diagnostics: Iterable[Diagnostic], *, reproducer: str | None = None) -> None:
        super().__init__(diagnostics)
        self.reproducer = reproducer


def usage_error(code: str, message: str, *, help: str = "", notes: Iterable[str] = ()) -> UsageFailure:
    """A usage failure with one diagnostic that points nowhere."""
    return UsageFailure([Diagnostic(code=code, message=message, help=help, notes=tuple(notes))])


def usage_error_at(
    code: str, message: str, *, source: tuple[str, str], span: Span, label: str = "", help: str = ""
) -> UsageFailure:
    """A usage failure with one diagnostic pointing at `span` of `source` (name, text)."""
    found = Diagnostic(code=code, message=message, labels=(Label(text=label, span=span),), help=help)
    return UsageFailure([found], source_name=source[0], source_text=source[1])


def suggestion(word: str, known: Iterable[str]) -> str:
    """A help line: the known word nearest to `word`, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"known: {', '.join(names)}" if names else ""
