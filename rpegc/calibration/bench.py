"""Measuring with the runtime: `rpeg-rt bench` as a subprocess, by itself or in every task of a launcher."""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import click

from ir_schema.diagnostics import DiagnosticError, error
from rpegc.failure import EXIT_INTERRUPTED

_PATIENCE_SECONDS = 20.0

_OPTIONS = (
    click.option("--workers", type=click.IntRange(min=1), help="Workers on this machine. [default: all]"),
    click.option("--quick", is_flag=True, help="Fewer shapes and repetitions, for a first look."),
    click.option("--nodes-per-rack", type=click.IntRange(min=1), help="Under Slurm or torchrun: of a rack."),
    click.option("--interface", metavar="NAME", help="Under Slurm or torchrun: network interface."),
    click.option("--port", type=click.IntRange(1, 65535), help="Under Slurm or torchrun: the controller's."),
)


def bench_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options of `rpeg-rt bench`, handed over as `bench`: the arguments that say the same."""

    @functools.wraps(command)
    def collect(
        *args: Any, workers: int | None, quick: bool, nodes_per_rack: int | None, interface: str | None,
        port: int | None, **rest: Any,
    ) -> int:  # fmt: skip
        valued = {"workers": workers, "nodes-per-rack": nodes_per_rack, "interface": interface, "port": port}
        bench = [f"--{name}={value}" for name, value in valued.items() if value is not None]
        return command(*args, bench=[*bench, *["--quick"] * quick], **rest)

    wrapped: Callable[..., int] = collect
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def serves(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a launcher's task other than its first: such a one has nothing to do but to
    `measure`, and no samples afterwards."""
    task = "RANK" if "TORCHELASTIC_RUN_ID" in environment else "SLURM_PROCID"
    launched = "TORCHELASTIC_RUN_ID" in environment or "SLURM_STEP_ID" in environment
    return launched and environment.get(task, "0") != "0"


def measure(what: Literal["machine", "operators"], output: str, arguments: Sequence[str]) -> None:
    """Run `rpeg-rt bench WHAT` with `arguments` and have it write the sample file `output`. Its progress and
    its messages go to standard error.

    Raises DiagnosticError E950 where it fails, KeyboardInterrupt where it was interrupted.
    """
    command = [sys.executable, "-m", "rpeg_rt", "bench", what, *arguments, "-o", output]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # The terminal has told it as well: it ends its workers, then itself.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_PATIENCE_SECONDS)
            process.kill()
            raise
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise DiagnosticError(
            [error("E950", f"`rpeg-rt bench {what}` failed with exit code {code}", help="it said why above")]
        )
