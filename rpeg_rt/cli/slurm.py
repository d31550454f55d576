"""The command line's `slurm`: a plan as a batch job."""

import re
from collections.abc import Callable
from pathlib import Path

import click

from rpeg_rt.cli.run import CONTEXT, FILE, run_command

_SLURM_TIME = r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}"
_SLURM_NAME = r"[\w.,@%+-]+"


def _matching(pattern: str, what: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    def checked(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(pattern, value):
            raise click.BadParameter(f"{value!r} is not {what}")
        return value

    return checked


@click.command("slurm", context_settings=CONTEXT)
@click.argument("plan", type=FILE)
@click.argument("options", nargs=-1, metavar="[-- RUN OPTIONS]")
@click.option("--print", "show", is_flag=True, help="Print the script instead of submitting it.")
@click.option("--partition", callback=_matching(_SLURM_NAME, "a partition"), help="Slurm partition.")
@click.option("--account", callback=_matching(_SLURM_NAME, "an account"), help="Account to charge.")
@click.option(
    "--time",
    "limit",
    callback=_matching(_SLURM_TIME, "a time of Slurm, such as 90 (minutes), 1:30:00 or 2-12"),
    help="Time limit (default: 10 minutes and 3 times the predicted time of all steps).",
)
def slurm_command(
    *,
    plan: Path,
    options: tuple[str, ...],
    show: bool,
    partition: str | None,
    account: str | None,
    limit: str | None,
) -> None:
    """Submit PLAN to Slurm, on as many nodes and GPUs as it uses.

    RUN OPTIONS are those of `rpeg-rt PLAN`; paths among them start from this directory.
    """
    from rpeg_rt.slurm import Job, batch_script, submit

    run = run_command.make_context("rpeg-rt", [str(plan), *options]).params
    job = Job(
        partition=partition,
        account=account,
        time=limit,
        steps=run["steps"],
        interface=run["interface"],
        save=run["save"],
        trace=run["trace"],
        options=options,
    )
    script = batch_script(plan, job)
    click.echo(script if show else f"submitted job {submit(script)}", nl=not show)
