"""The command `rpeg-rt bench`: measure this machine, or operators on it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rpeg_rt.cli.launched import controller

if TYPE_CHECKING:
    from rpeg_rt.bench.run import Settings

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_FILE = click.Path(path_type=Path)
_OPTIONS = (
    click.option("-o", "--output", type=_FILE, required=True, help="Write the samples here (JSON)."),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Workers to start on this machine (default: one for each GPU, or else for each processor).",
    ),
    click.option("--quick", is_flag=True, help="Fewer shapes and repetitions, for a first look."),
    click.option(
        "--nodes-per-rack",
        type=click.IntRange(min=1),
        help="Under Slurm or torchrun: nodes of a rack, in their order (default: all are in one).",
    ),
    click.option("--interface", metavar="NAME", help="Under Slurm or torchrun: as for a run."),
    click.option("--port", type=click.IntRange(1, 65535), help="Under Slurm or torchrun: as for a run."),
    click.option("--quiet", "-q", is_flag=True, help="No progress on standard error."),
)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group("bench", context_settings=_CONTEXT)
def bench_command() -> None:
    """Measure this machine with the runtime's own workers.

    By itself it starts workers here; under Slurm or torchrun it measures with those that they start. Whatever
    else runs on the machine spoils what is measured.
    """


@bench_command.command("machine")
@click.option(
    "--operators",
    type=_FILE,
    help="Measure in the same rounds what `bench operators` measures, and write it here.",
)
@_options
def machine_command(operators: Path | None, quiet: bool, **options: Any) -> None:
    """Measure matrix products, copies, communications at every tier, memory and a few operators: all that a
    hardware file is fitted to."""
    if operators == options["output"]:
        raise click.UsageError("--operators and --output are one file")
    settings = _settings(**options)
    from rpeg_rt.bench.run import measure_machine

    measure_machine(settings, _progress(quiet), operators)


@bench_command.command("operators")
@click.argument("grid", type=_FILE, required=False)
@_options
def operators_command(grid: Path | None, quiet: bool, **options: Any) -> None:
    """Measure time and memory of single operators as the runtime executes them.

    They are those of the file GRID (JSON), or by default roles, layouts, batches and lengths for a few small
    models, by which a calibration is examined.
    """
    settings = _settings(**options)
    from rpeg_rt.bench.run import measure_operators

    measure_operators(settings, grid, _progress(quiet))


def _settings(workers: int | None, interface: str | None, port: int | None, **options: Any) -> "Settings":
    """The settings of a controller; any other task serves it and ends here."""
    launch = controller(None, interface, port, workers=workers)
    from rpeg_rt.bench.run import Settings

    return Settings(workers=workers, interface=interface, port=port, launch=launch, **options)


def _progress(quiet: bool) -> Callable[[str, int, int], None]:
    """Tells standard error what is being measured: on one live line of a terminal, else when that changes."""
    live, last = sys.stderr.isatty(), ""

    def tell(what: str, done: int, of: int) -> None:
        nonlocal last
        if quiet:
            return
        if live:
            click.echo(f"\r{done}/{of}  {what}\x1b[K", err=True, nl=done == of)
        elif what and what != last:
            click.echo(f"{done}/{of}  {what}", err=True)
        last = what

    return tell
