"""The main verb: `rpegc FILE [-O0..-O3] -o OUT`."""

from typing import Any

import click

from rpegc.cli import names
from rpegc.cli.console import HELP_OPTIONS, Console, console_options


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
@click.option(
    "--search", "method", type=click.Choice(["none", "greedy", "concurrent", "sa"]),
    help="How to find the plan; none takes the plan in the file.",
)  # fmt: skip
@click.option("--budget", type=click.IntRange(min=1),
              help="Evaluations that the search may make; heuristics are always scored.")  # fmt: skip
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="An extra cap on the search; results may then differ between runs.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the search.")
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
def compile_command(
    *,
    console: Console,
    method: str | None,
    budget: int | None,
    time_limit: float | None,
    seed: int | None,
    **options: Any,
) -> int:
    """Compile a problem into one executable file for `rpeg-rt`; `-` reads it from stdin."""
    from rpegc.cli.compilation import Request, compile_and_print

    wanted = {"method": method, "budget": budget, "time_limit": time_limit, "seed": seed}
    search = {name: value for name, value in wanted.items() if value is not None}
    return compile_and_print(Request(search=search, **options), console)
