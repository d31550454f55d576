"""What the command line does without a verb: run a plan."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from rpeg_rt.cli.launched import controller
from rpeg_rt.failure import AlreadyDone

if TYPE_CHECKING:
    from rpeg_rt.metrics import StepMetrics

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
FILE = click.Path(path_type=Path)


class _RunContext(click.Context):
    """The context of the command that is called by the program's name alone."""

    @property
    def command_path(self) -> str:
        """What messages call the command."""
        return "rpeg-rt"


class _RunCommand(click.Command):
    context_class = _RunContext


@click.command("run", cls=_RunCommand, context_settings=CONTEXT)
@click.version_option(package_name="rpeg", prog_name="rpeg-rt")
@click.argument("plan", type=FILE)
@click.option("--steps", type=click.IntRange(min=1), help="RL steps to run (default: the plan's).")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Seed of data order, weights and sampling (default: the plan's).",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    help="Workers that this machine may host (default: what the plan uses).",
)
@click.option("--trace", type=FILE, help="Write the trace here, one JSON line per event.")
@click.option("--metrics", type=FILE, help="Write each step's figures here, one JSON line per step.")
@click.option("--tensorboard", type=FILE, help="Write the same into this directory, for TensorBoard.")
@click.option(
    "--data",
    type=FILE,
    help="Directory of prompts, tokenizer and verifiers (default: the plan's, or the current).",
)
@click.option(
    "--save",
    type=FILE,
    help="Leave in this directory the trained models, as Hugging Face checkpoints; or of a run that is asked "
    "to stop, a snapshot to resume from.",
)
@click.option(
    "--save-every",
    type=click.IntRange(min=1),
    help="Leave a snapshot in --save every so many steps too, and after the last.",
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="How many snapshots to keep in --save.",
)
@click.option(
    "--resume",
    type=FILE,
    help="Go on from the newest snapshot in this directory, to as many steps in all.",
)
@click.option(
    "--eval-every",
    type=click.IntRange(min=1),
    help="Examine the policy on held-out prompts every so many steps (default: before and after the run).",
)
@click.option(
    "--node-seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Longest time of one node (or 20 times its predicted time) before the run counts as stalled "
    "(default: 10 minutes without work, later 1 minute; 10 times as long where workers are at work).",
)
@click.option(
    "--interface",
    metavar="NAME",
    help="Under Slurm or torchrun: the network interface to use (default: where the controller is reached).",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Under Slurm or torchrun: where the controller listens (default: one that follows from the job).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
def run_command(
    *,
    plan: Path,
    steps: int | None,
    seed: int | None,
    slots: int | None,
    trace: Path | None,
    metrics: Path | None,
    tensorboard: Path | None,
    data: Path | None,
    save: Path | None,
    save_every: int | None,
    keep: int,
    resume: Path | None,
    eval_every: int | None,
    node_seconds: float | None,
    interface: str | None,
    port: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a plan."""
    launch = controller(plan, interface, port, slots=slots)
    if save is None and save_every is not None:
        raise click.UsageError("--save-every needs --save: the directory for the snapshots")
    from rpeg_rt.run import Settings, execute
    from rpeg_rt.summary import render

    settings = Settings(
        steps=steps,
        seed=seed,
        slots=slots,
        trace=trace,
        metrics=metrics,
        tensorboard=tensorboard,
        data=data,
        save=save,
        save_every=save_every,
        keep=keep,
        resume=resume,
        eval_every=eval_every,
        node_seconds=node_seconds,
        interface=interface,
        port=port,
        launch=launch,
    )
    try:
        outcome = execute(plan, settings, _progress(quiet), _warn, lambda text: _note(text, quiet))
    except AlreadyDone as exc:
        click.echo("null" if as_json else str(exc))
        return
    click.echo(msgspec.json.encode(outcome).decode() if as_json else render(outcome))


def _progress(quiet: bool) -> Callable[["StepMetrics", int], None]:
    """Tells standard error about the run: one live line on a terminal, else a line now and then."""
    live = sys.stderr.isatty()
    interval, last = (0.5, 0.0) if live else (10.0, 0.0)
    first: int | None = None

    def tell(metrics: "StepMetrics", steps: int) -> None:
        nonlocal last, first
        first = metrics.step if first is None else first
        now, done = time.monotonic(), metrics.step + 1
        if quiet or (now - last < interval and done < steps):
            return
        last = now
        seconds, reward = metrics.time_s, metrics.reward
        line = f"step {done}/{steps}  {seconds:.1f} s, {seconds / (done - first) * (steps - done):.0f} s left"
        line += "" if reward is None else f"  reward {reward:.3f}"
        click.echo(f"\r{line}\x1b[K" if live else line, err=True, nl=not live or done == steps)

    return tell


def _warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)


def _note(text: str, quiet: bool) -> None:
    if not quiet:
        click.echo(f"note: {text}", err=True)
