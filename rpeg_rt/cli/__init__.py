"""The command line `rpeg-rt`: run a plan, verify a trace, show a trace, submit a job.

The last line on standard error names the exit code whenever it is not 0.
"""

import sys
from collections.abc import Sequence

from rpeg_rt.failure import ExitCode, RunError
from rpeg_rt.signals import Stopped, stoppable

_MEANING = {
    ExitCode.USAGE: "usage or file",
    ExitCode.REFUSED: "refused before the start",
    ExitCode.WORKER_LOST: "worker lost or failed",
    ExitCode.STALLED: "stalled or timed out",
    ExitCode.USER_CODE: "verifier or data failed",
    ExitCode.VERIFICATION: "verification failed",
    ExitCode.NUMERIC: "numeric failure",
    ExitCode.INTERRUPTED: "interrupted",
}


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    # Before the imports, which take long enough for a signal to come.
    with stoppable(last=args is None):
        try:
            return _run(sys.argv[1:] if args is None else list(args))
        except Stopped as exc:
            return _fail(ExitCode.INTERRUPTED, str(exc))


def _run(arguments: list[str]) -> int:
    import click

    from rpeg_rt.cli.root import cli

    try:
        result = cli.main(args=arguments or ["--help"], prog_name="rpeg-rt", standalone_mode=False)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        return _fail(ExitCode.USAGE, exc.format_message())
    except RunError as exc:
        return _fail(exc.code, str(exc))
    return result if isinstance(result, int) else 0


def _fail(code: ExitCode, message: str) -> int:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)  # the live line of progress
    print(f"error: {message}\nrpeg-rt: exit code {int(code)} ({_MEANING[code]})", file=sys.stderr, flush=True)
    return int(code)
