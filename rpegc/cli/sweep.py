"""`rpegc sweep`: one problem compiled over a grid of values."""

from typing import Any

import click

from rpegc.cli.console import HELP_OPTIONS, Console, console_options
from rpegc.cli.search_options import search_options


@click.command("sweep", context_settings=HELP_OPTIONS)
@click.argument("file", type=click.Path())
@click.option("--vary", "variations", metavar="KEY=VALUE,VALUE,…", multiple=True,
              help="Values of one key of the file; several options make a grid.")  # fmt: skip
@click.option("-O", "level", type=click.Choice(["0", "1", "2", "3"]),
              help="Effort at every point, as for a compilation (default: 2).")  # fmt: skip
@search_options
@click.option("--jobs", type=click.IntRange(min=1), metavar="N",
              help="Points compiled at once (default: as many as there are cores).")  # fmt: skip
@click.option("-o", "--output", metavar="DIR", type=click.Path(file_okay=False),
              help="Write DIR/sweep.csv and DIR/sweep.png.")  # fmt: skip
@click.option("--csv", "csv_file", metavar="FILE", type=click.Path(), help="Write the points as CSV.")
@click.option("--plot", "plot_file", metavar="FILE", type=click.Path(),
              help="Draw the points and the Pareto front (.png, .svg, .pdf).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One object on stdout instead of the table.")
@console_options
def sweep_command(
    *,
    console: Console,
    file: str,
    variations: tuple[str, ...],
    jobs: int | None,
    output: str | None,
    csv_file: str | None,
    plot_file: str | None,
    as_json: bool,
    level: str | None,
    search: dict[str, Any],
) -> int:
    """Compile FILE at every point of a grid of values, and say what each costs and yields.

    A key is `block.key` of the file, or `keyword.NAME.key`: `cluster.nodes`, `workload.prompts`,
    `model.actor.arch`, `plan.actor_gen.waves`. Values are written as in the file, strings that are no plain
    words in quotes and lists in brackets. Presets are expanded after the values are put in.

    Points without a plan are lines with the code and message of what is wrong. Exit code 0: some point has a
    plan; 1: none has; 130: interrupted, what was done is printed and written.

    \b
      rpegc sweep ppo.rpeg --vary cluster.nodes=2,4,8 --vary workload.prompts=256,512
      rpegc sweep ppo.rpeg --vary 'model.actor.arch="llama-2-7b","llama-2-13b"' -O1 -o results
    """
    from rpegc.cli.sweeping import Request, sweep_and_print

    request = Request(file, variations, level, search, jobs, output, csv_file, plot_file, as_json)
    return console.guard(lambda: sweep_and_print(request, console))
