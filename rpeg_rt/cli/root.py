"""The root of the command line: a verb, or a plan to run."""

import click

from rpeg_rt.bench.command import bench_command
from rpeg_rt.cli.run import CONTEXT, run_command
from rpeg_rt.cli.slurm import slurm_command
from rpeg_rt.cli.traces import trace_command, verify_command

HELP = """Execute a plan exactly as it stands, on persistent workers, and prove it from the trace.

\b
  rpeg-rt plan.exe.json                            run it for as many steps as it says
  rpeg-rt plan.exe.json --steps 20 --trace t.jsonl run 20 steps and keep the trace
  rpeg-rt plan.exe.json --save d --save-every 10   leave snapshots; go on from them with --resume d
  rpeg-rt verify t.jsonl plan.exe.json             check a trace against its plan
  rpeg-rt trace t.jsonl --perfetto t.json          a timeline for ui.perfetto.dev
  rpeg-rt slurm plan.exe.json                      run it on a Slurm cluster
  rpeg-rt bench machine -o samples.json            measure this machine
  srun rpeg-rt plan.exe.json                       the same, within an allocation
  torchrun … -m rpeg_rt plan.exe.json              run it on what torchrun starts

\b
Exit codes: 0 done, 2 usage or file, 3 refused before the start, 4 worker lost or failed,
5 stalled or timed out, 6 verifier or data failed, 7 verification failed, 8 numeric failure,
130 interrupted.
"""


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


@click.group(cls=_MainVerb, help=HELP, context_settings=CONTEXT)
def cli() -> None:
    """The root of the command line."""


cli.add_command(verify_command)
cli.add_command(trace_command)
cli.add_command(slurm_command)
cli.add_command(bench_command)
