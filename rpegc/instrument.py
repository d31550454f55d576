"""Watching a pipeline: saved stages, invariants, times, printed stages. Texts go where `say` sends them."""

from collections.abc import Callable, Collection
from pathlib import Path

from ir_schema.diagnostics import Diagnostic
from rpegc.driver import Instrument, StageRun
from rpegc.failure import InternalFailure, usage_error
from rpegc.invariants import violations
from rpegc.registry import AnyPass
from rpegc.stagefiles import make_directory, saved_name, write_bytes

Say = Callable[[str], None]


def _maker(run: StageRun) -> str:
    return "input" if run.made_by is None else run.made_by.name


class Keep(Instrument):
    """Puts every stage into a list, which is still there when a later pass fails."""

    def __init__(self, made: list[StageRun]) -> None:
        self.made = made

    def after(self, index: int, run: StageRun) -> None:
        """Keep the stage."""
        self.made.append(run)


class SaveStages(Instrument):
    """Writes every stage into a directory as it comes into being."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def after(self, index: int, run: StageRun) -> None:
        """Write the stage file, into a directory that is made if need be."""
        make_directory(self.directory)
        write_bytes(str(self.directory / saved_name(index, _maker(run), run.name)), run.encode())


class VerifyEach(Instrument):
    """Checks every stage's invariants; one that a pass broke is the pass's fault, not the user's."""

    def after(self, index: int, run: StageRun) -> None:
        """Raises UsageFailure E927 for the input and InternalFailure E991 for a pass's result."""
        broken = violations(run.stage)
        if not broken:
            return
        if run.made_by is None:
            raise usage_error("E927", f"the input is not a sound `{run.name}`", notes=broken)
        raise InternalFailure(
            [
                Diagnostic(
                    code="E991",
                    message=f"pass `{run.made_by.name}` made an unsound `{run.name}`",
                    notes=tuple(broken),
                    help="this is a bug in the compiler or a plugin; please report it",
                )
            ]
        )


class TimePasses(Instrument):
    """Collects how long each pass took; `table` is printed when the pipeline has ended."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []

    def after(self, index: int, run: StageRun) -> None:
        """Note the time of the pass that just ran."""
        if run.made_by is not None:
            self.times.append((run.made_by.name, run.seconds))

    def table(self) -> str:
        """One line per pass: seconds, share of the whole, name."""
        total = sum(seconds for _, seconds in self.times)
        lines = [
            f"{seconds:10.3f} s {100 * seconds / total if total else 0:6.1f} %  {name}"
            for name, seconds in self.times
        ]
        return "\n".join([*lines, f"{total:10.3f} s  100.0 %  total"])


class PrintAfter(Instrument):
    """Prints the stage that a pass made; the name `all` stands for every pass."""

    def __init__(self, names: Collection[str], render: Callable[[StageRun], str], say: Say) -> None:
        self.names, self.render, self.say = names, render, say

    def after(self, index: int, run: StageRun) -> None:
        """Print the stage if its pass was asked for."""
        if run.made_by is not None and (run.made_by.name in self.names or "all" in self.names):
            self.say(f"-- after {run.made_by.name}: {run.name} {run.id[:12]}\n{self.render(run)}")


class Announce(Instrument):
    """Says which pass runs (`-v`)."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def before(self, p: AnyPass) -> None:
        """Name the pass."""
        self.say(f"running {p.name}")
