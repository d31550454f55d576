"""Everything that ends a run early, with the exit code that `rpeg-rt` documents for it."""

import signal
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `rpeg-rt` (semantics: Runtime)."""

    DONE = 0
    USAGE = 2
    REFUSED = 3
    WORKER_LOST = 4
    STALLED = 5
    USER_CODE = 6
    VERIFICATION = 7
    NUMERIC = 8
    INTERRUPTED = 130


class RunError(Exception):
    """A run cannot go on. `code` is the exit code, the text says what, where and what to do."""

    code = ExitCode.WORKER_LOST


class AlreadyDone(Exception):
    """A run that was to go on has all its steps and has left all that it leaves; the text says what there is.
    The exit code is 0."""


class FileError(RunError):
    """A file or an option is at fault."""

    code = ExitCode.USAGE


class PreflightError(RunError):
    """The plan does not fit this machine or this runtime; `missing` lists everything that is missing."""

    code = ExitCode.REFUSED

    def __init__(self, missing: list[str]) -> None:
        self.missing = missing
        super().__init__("the plan cannot run here:" + "".join(f"\n  - {m}" for m in missing))


class WorkerLostError(RunError):
    """A worker died."""

    code = ExitCode.WORKER_LOST


class WorkerFailedError(RunError):
    """Something went wrong in a worker, which lives and says so. The exit code is that of a lost one."""

    code = ExitCode.WORKER_LOST


class StalledError(RunError):
    """A node did not complete before its deadline, or nothing can start any more."""

    code = ExitCode.STALLED


class UserCodeError(RunError):
    """A verifier or the data is at fault."""

    code = ExitCode.USER_CODE


class VerificationError(RunError):
    """A trace does not follow its plan; `violations` lists every broken rule found."""

    code = ExitCode.VERIFICATION

    def __init__(self, violations: list[str]) -> None:
        self.violations = violations
        super().__init__("the trace does not follow the plan:" + "".join(f"\n  - {v}" for v in violations))


class NumericError(RunError):
    """A loss or a reward is not a finite number."""

    code = ExitCode.NUMERIC


class InterruptedRunError(RunError):
    """The user or a launcher asked to stop, by signal `number` (SIGINT, SIGTERM or SIGUSR1); `when` the run
    did, and what next, if there is something to say."""

    code = ExitCode.INTERRUPTED

    def __init__(self, number: int, when: str = "") -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}{when}")
