"""How the main verb and the subcommands share one command line, and how click's own errors end."""

import itertools
import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from rpegc.cli.compare import compare_command
from rpegc.cli.compile import compile_command
from rpegc.cli.console import HELP_OPTIONS, Console
from rpegc.cli.convergence import convergence_command
from rpegc.cli.files import diff_command, dump_command, schema_command
from rpegc.cli.lengths import lengths_command
from rpegc.cli.model import model_command
from rpegc.cli.report import report_command
from rpegc.cli.source import check_command, fmt_command
from rpegc.cli.sweep import sweep_command
from rpegc.cli.tool import completion_command, explain_command, passes_command
from rpegc.cli.whatif import whatif_command
from rpegc.diagnostics import FORMATS
from rpegc.failure import EXIT_INTERRUPTED, EXIT_OK, usage_error
from rpegc.stagefiles import lost_output

COMMANDS = (
    check_command,
    fmt_command,
    diff_command,
    dump_command,
    report_command,
    convergence_command,
    sweep_command,
    whatif_command,
    compare_command,
    explain_command,
    passes_command,
    schema_command,
    model_command,
    lengths_command,
    completion_command,
)


class MainVerb(click.Group):
    """A group whose first argument may be a file: then, or if it is an option, it compiles."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command named by the first argument, else the compiler with all arguments."""
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return ctx.info_name, compile_command, args

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep options in front of the file for the compiler; only --help is the group's."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["--", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The first word: a file or an option of the compiler, or a command."""
        compiler = compile_command.shell_complete(click.Context(compile_command), incomplete)
        # A shell falls back to files where no name fits; the item that asks for it clears those before it.
        return [CompletionItem(incomplete, type="file"), *compiler, *super().shell_complete(ctx, incomplete)]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Both forms."""
        formatter.write_usage("rpegc", "FILE [-O0..-O3] -o OUT [OPTIONS]")
        formatter.write_usage("rpegc", "COMMAND [ARGS]...", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The compiler's options, then the other commands."""
        context = click.Context(compile_command, help_option_names=ctx.help_option_names)
        compile_command.format_options(context, formatter)
        self.format_commands(ctx, formatter)


HELP_TEXT = """Plan RL post-training: compile a problem into one executable file.

\b
  rpegc ppo.rpeg -O2 -o plan.exe.json             search for a plan and write it
  rpegc ppo.rpeg --summary                        only say what the plan would be
  rpegc ppo.rpeg --search none -o plan.exe.json   take the plan written in the file
  rpegc case.json --emit scheduled -o -           write an earlier stage, here to stdout
  rpegc check ppo.rpeg                            find mistakes without planning
  rpegc diff old.exe.json new.exe.json            say what another plan does differently
"""


@click.group(cls=MainVerb, help=HELP_TEXT, context_settings={**HELP_OPTIONS, "max_content_width": 100})
def cli() -> None:
    """The root of the command line."""


for _command in COMMANDS:
    cli.add_command(_command)


def message_format(args: Sequence[str]) -> str:
    """The form of diagnostics that a command line asks for, even where it is not a valid one."""
    name = "--message-format"
    given = [after for before, after in itertools.pairwise(args) if before == name]
    given += [a.removeprefix(f"{name}=") for a in args if a.startswith(f"{name}=")]
    return next((form for form in given if form in FORMATS), "full")


def run(args: Sequence[str]) -> int:
    """Run one command line of `rpegc` and return its exit code."""
    return run_group(cli, "rpegc", args)


def run_group(group: click.Group, name: str, args: Sequence[str]) -> int:
    """Run one command line of program `name` and return its exit code."""
    console = Console(message_format=message_format(args))
    try:
        result = group.main(args=list(args) or ["--help"], prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as exc:
        where = exc.ctx.command_path if isinstance(exc, click.UsageError) and exc.ctx else name
        message = exc.format_message().rstrip(".")
        failure = usage_error("E932", message, help=f"`{where} --help` shows what it takes")
        return console.failed(failure)[0]
    except OSError as exc:  # of the help text: what a command prints or opens is its own business
        return console.failed(lost_output(exc))[0]
    return result if isinstance(result, int) else EXIT_OK
