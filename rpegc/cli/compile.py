"""The main verb: `rpegc FILE [-O0..-O3] -o OUT`."""

from typing import Any

import click

from rpegc.cli import names
from rpegc.cli.console import HELP_OPTIONS, Console, console_options
from rpegc.cli.search_options import search_options


class CompileContext(click.Context):
    """The context of a command that is called by the program's name alone."""

    @property
    def command_path(self) -> str:
        """What messages call the command."""
        return "rpegc"


class CompileCommand(click.Command):
    """A command without a name of its own."""

    context_class = CompileContext

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The bare form."""
        formatter.write_usage("rpegc", "FILE [-O0..-O3] -o OUT [OPTIONS]")


@click.command(cls=CompileCommand, context_settings=HELP_OPTIONS)
@click.version_option(package_name="rpeg", prog_name="rpegc")
@click.argument("file", required=False, type=click.Path())
@click.option("-o", "--output", metavar="OUT", type=click.Path(), help="Where to write; `-` is stdout.")
@click.option(
    "-O", "level", type=click.Choice(["0", "1", "2", "3"]),
    help="Effort: 0 greedy, 1 concurrent, 2 search (default), 3 a wider search.",
)  # fmt: skip
@search_options
@click.option("--objective", type=click.Choice(["throughput", "efficiency"]),
              help="What makes a plan better, instead of the file's `search.objective`.")  # fmt: skip
@click.option("--warm-start", metavar="PLAN", type=click.Path(),
              help="Start from the plan in this stage file; the result is no worse than it.")  # fmt: skip
@click.option("--search-log", metavar="LOG", type=click.Path(),
              help="Write every better plan to this JSONL file, for `rpegc convergence`.")  # fmt: skip
@click.option("--cost-model", metavar="NAME", shell_complete=names.cost_models,
              help="Cost model instead of the file's: paper, megatron, ….")  # fmt: skip
@click.option("--as-printed", is_flag=True, help="The paper's own form, under cost model paper.")
@click.option("--emit", metavar="STAGE", shell_complete=names.stages,
              help="Stop at this stage instead of `executable`.")  # fmt: skip
@click.option(
    "--from",
    "resume",
    metavar="STAGE.json",
    type=click.Path(),
    help="Resume from a stage file instead of FILE.",
)
@click.option(
    "-p", "--pipeline", metavar="TEXT", shell_complete=names.pipeline,
    help="Run exactly these passes: `verify,search{budget=50}`.",
)  # fmt: skip
@click.option("--print-pipeline", is_flag=True, help="Print the passes that would run, and stop.")
@click.option(
    "--save-stages",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Write every stage: DIR/04-lower.lowered.json, ….",
)
@click.option("--verify-each", is_flag=True, help="Check every stage's invariants.")
@click.option("--time-passes", is_flag=True, help="Say how long each pass took.")
@click.option(
    "--print-after", metavar="PASS", multiple=True, shell_complete=names.pass_names_or_all,
    help="Dump what PASS made; `all` for every pass.",
)  # fmt: skip
@click.option("--summary", is_flag=True, help="The plan as a table, with its predicted figures.")
@click.option("--json", "as_json", is_flag=True, help="One object on stdout: outcome, plan, figures, stages.")
@console_options
def compile_command(*, console: Console, **options: Any) -> int:
    """Compile a problem into one executable file for `rpeg-rt`; `-` reads it from stdin."""
    from rpegc.cli.compilation import Request, compile_and_print

    return compile_and_print(Request(**options), console)
