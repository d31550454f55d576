"""What the command line says besides its artefact: everything here goes to standard error.

A `Console` also turns exceptions into exit codes, so that no command has error handling of its own.
"""

import functools
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ir_schema.diagnostics import Diagnostic, DiagnosticError
from rpegc.diagnostics import FORMATS, Source, render
from rpegc.failure import (
    EXIT_INPUT,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    InternalFailure,
    UsageFailure,
)

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


@dataclass
class Console:
    """Standard error: how much is said, and in which form. `source` is what labels point into by default."""

    message_format: str = "full"
    color: str = "auto"
    quiet: bool = False
    verbose: bool = False
    source: Source | None = None
    _transient: bool = False

    @property
    def terminal(self) -> bool:
        """Whether somebody is watching."""
        return sys.stderr.isatty()

    @property
    def colored(self) -> bool:
        """Whether to colour: as asked, else on a terminal unless NO_COLOR is set."""
        return self.color == "always" or (
            self.color == "auto" and self.terminal and not os.environ.get("NO_COLOR")
        )

    def say(self, text: str) -> None:
        """Something to know; silent under -q."""
        if not self.quiet:
            self.transient("")
            print(text, file=sys.stderr, flush=True)

    def transient(self, text: str) -> None:
        """A line on a terminal that the next one replaces; an empty one only clears it."""
        if self.terminal and not self.quiet and (text or self._transient):
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{text[:width]}", end="", file=sys.stderr, flush=True)
            self._transient = bool(text)

    def detail(self, text: str) -> None:
        """Something to know for who asked with -v."""
        if self.verbose:
            self.say(text)

    def report(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Show findings about the input; under -q only errors."""
        self._show(diagnostics, self.source)

    def _show(self, diagnostics: Sequence[Diagnostic], source: Source | None) -> None:
        shown = [d for d in diagnostics if d.severity == "error" or not self.quiet]
        text = render(shown, source, self.message_format, self.colored)
        print(text, end="", file=sys.stderr, flush=True)

    def failed(self, exc: BaseException) -> tuple[int, tuple[Diagnostic, ...]]:
        """Report an exception; the exit code it means, and what was found."""
        match exc:
            case UsageFailure():
                at = Source(exc.source_name, exc.source_text) if exc.source_name else None
                self._show(exc.diagnostics, at)
                return EXIT_USAGE, exc.diagnostics
            case InternalFailure():
                self.report(exc.diagnostics)
                return EXIT_INTERNAL, exc.diagnostics
            case DiagnosticError():
                self.report(exc.diagnostics)
                return EXIT_INPUT, exc.diagnostics
            case KeyboardInterrupt():
                self.say("interrupted: nothing was written")
                return EXIT_INTERRUPTED, ()
            case _:
                from rpegc.reproducer import crash

                found = (crash("rpegc crashed", exc),)
                self.report(found)
                return EXIT_INTERNAL, found

    def guard(self, work: Callable[[], int | None], *, at_fault: int = EXIT_INPUT) -> int:
        """Do the work; its exit code, or the one of what went wrong (`at_fault`: faulty input)."""
        try:
            return work() or EXIT_OK
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (Exception, KeyboardInterrupt) as exc:
            code = self.failed(exc)[0]
            return at_fault if code == EXIT_INPUT else code


def console_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options that every command has for what it says: handed over as `console`."""

    @functools.wraps(command)
    def collect(*args: Any, message_format: str, color: str, quiet: bool, verbose: bool, **rest: Any) -> int:
        return command(*args, console=Console(message_format, color, quiet, verbose), **rest)

    wrapped: Callable[..., int] = collect
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Say more."),
        click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
        click.option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            help="Colour diagnostics (auto: on a terminal, unless NO_COLOR is set).",
        ),
        click.option(
            "--message-format",
            type=click.Choice(list(FORMATS)),
            default="full",
            help="Form of diagnostics on stderr.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped
