"""The command line `rpeg-rt`: run a plan, verify a trace, show a trace.

The last line on standard error names the exit code whenever it is not 0.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from rpeg_rt.bench.command import bench_command
from rpeg_rt.failure import ExitCode, RunError
from rpeg_rt.launch import detect

if TYPE_CHECKING:
    from rpeg_rt.metrics import StepMetrics

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
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_FILE = click.Path(path_type=Path)

HELP = """Execute a plan exactly as it stands, on persistent workers, and prove it from the trace.

\b
  rpeg-rt plan.exe.json                            run it for as many steps as it says
  rpeg-rt plan.exe.json --steps 20 --trace t.jsonl run 20 steps and keep the trace
  rpeg-rt plan.exe.json --save d --save-every 10   leave snapshots; go on from them with --resume d
  rpeg-rt verify t.jsonl plan.exe.json             check a trace against its plan
  rpeg-rt trace t.jsonl --perfetto t.json          a timeline for ui.perfetto.dev
  rpeg-rt slurm plan.exe.json                      run it on a Slurm cluster
  rpeg-rt bench machine -o samples.json            measure this machine, for rpeg-calib
  srun rpeg-rt plan.exe.json                       the same, within an allocation
  torchrun … -m rpeg_rt plan.exe.json              run it on what torchrun starts

\b
Exit codes: 0 done, 2 usage or file, 3 refused before the start, 4 worker lost or failed,
5 stalled or timed out, 6 verifier or data failed, 7 verification failed, 8 numeric failure,
130 interrupted.
"""


class _RunContext(click.Context):
    """The context of the command that is called by the program's name alone."""

    @property
    def command_path(self) -> str:
        """What messages call the command."""
        return "rpeg-rt"


class _RunCommand(click.Command):
    context_class = _RunContext


@click.command("run", cls=_RunCommand, context_settings=_CONTEXT)
@click.version_option(package_name="rpeg", prog_name="rpeg-rt")
@click.argument("plan", type=_FILE)
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
@click.option("--trace", type=_FILE, help="Write the trace here, one JSON line per event.")
@click.option("--metrics", type=_FILE, help="Write each step's figures here, one JSON line per step.")
@click.option("--tensorboard", type=_FILE, help="Write the same into this directory, for TensorBoard.")
@click.option(
    "--data",
    type=_FILE,
    help="Directory of prompts, tokenizer and verifiers (default: the plan's, or the current).",
)
@click.option(
    "--save",
    type=_FILE,
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
    type=_FILE,
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
    default=600.0,
    show_default=True,
    help="Longest time of one node (or 20 times its predicted time) before the run counts as stalled.",
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
    node_seconds: float,
    interface: str | None,
    port: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a plan."""
    launch = detect(os.environ)
    if launch is None and (interface is not None or port is not None):
        raise click.UsageError("--interface and --port are for runs whose tasks Slurm or torchrun starts")
    if launch is not None and slots is not None:
        raise click.UsageError(
            f"--slots is for runs that start their own workers; here {launch.launcher} does"
        )
    if launch is not None and launch.task > 0:
        from rpeg_rt.joining import serve

        serve(launch, plan, interface, port)
        return
    if launch is not None:
        # A launcher's signals are heard while there is a run to end, and must not cut off its last words.
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
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
    outcome = execute(plan, settings, _progress(quiet), _warn, lambda text: _note(text, quiet))
    click.echo(msgspec.json.encode(outcome).decode() if as_json else render(outcome))


@click.command("verify", context_settings=_CONTEXT)
@click.argument("trace", type=_FILE)
@click.argument("plan", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def verify_command(*, trace: Path, plan: Path, as_json: bool) -> None:
    """Check that TRACE shows the execution of PLAN: bindings, layouts, dependences, exclusivity, versions
    and staleness, bytes and rows moved, phases, order, and the integrity of both files."""
    from rpeg_rt.failure import VerificationError
    from rpeg_rt.verify import verify_file

    verdict = verify_file(trace, plan)
    if as_json:
        click.echo(msgspec.json.encode(verdict).decode())
    elif not verdict.violations:
        ended = (
            ""
            if verdict.exit_code == 0
            else f"; the run itself ended early with exit code {verdict.exit_code}"
        )
        click.echo(f"verified: {verdict.nodes} nodes follow plan {verdict.plan[:16]}{ended}")
    if verdict.violations:
        raise VerificationError(verdict.violations)


@click.command("trace", context_settings=_CONTEXT)
@click.argument("trace", type=_FILE)
@click.option(
    "--perfetto", type=_FILE, required=True, help="Write Chrome trace JSON here (opens in ui.perfetto.dev)."
)
def trace_command(*, trace: Path, perfetto: Path) -> None:
    """Convert TRACE to a timeline with one track per GPU."""
    from rpeg_rt.failure import FileError
    from rpeg_rt.perfetto import write_perfetto
    from rpeg_rt.trace import BrokenTraceError, read_trace

    try:
        write_perfetto(read_trace(trace), perfetto)
    except BrokenTraceError as exc:
        raise FileError(f"{trace}: {exc}") from exc


_SLURM_TIME = r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}"
_SLURM_NAME = r"[\w.,@%+-]+"


def _matching(pattern: str, what: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    def checked(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(pattern, value):
            raise click.BadParameter(f"{value!r} is not {what}")
        return value

    return checked


@click.command("slurm", context_settings=_CONTEXT)
@click.argument("plan", type=_FILE)
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
        options=options,
    )
    script = batch_script(plan, job)
    click.echo(script if show else f"submitted job {submit(script)}", nl=not show)


class _MainVerb(click.Group):
    """A group whose first argument may be a plan: then, or if it is an option, it runs it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return ctx.info_name, run_command, args

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["--", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("rpeg-rt", "PLAN [OPTIONS]")
        formatter.write_usage("rpeg-rt", "COMMAND [ARGS]...", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        run_command.format_options(
            click.Context(run_command, help_option_names=ctx.help_option_names), formatter
        )
        self.format_commands(ctx, formatter)


@click.group(cls=_MainVerb, help=HELP, context_settings=_CONTEXT)
def cli() -> None:
    """The root of the command line."""


cli.add_command(verify_command)
cli.add_command(trace_command)
cli.add_command(slurm_command)
cli.add_command(bench_command)


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


def _fail(code: ExitCode, message: str) -> int:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)  # the live line of progress
    click.echo(f"error: {message}", err=True)
    click.echo(f"rpeg-rt: exit code {int(code)} ({_MEANING[code]})", err=True)
    return int(code)


def main(args: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = sys.argv[1:] if args is None else args
    try:
        result = cli.main(args=arguments or ["--help"], prog_name="rpeg-rt", standalone_mode=False)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _fail(ExitCode.INTERRUPTED, "interrupted")
    except click.ClickException as exc:
        return _fail(ExitCode.USAGE, exc.format_message())
    except RunError as exc:
        return _fail(exc.code, str(exc))
    return result if isinstance(result, int) else 0
