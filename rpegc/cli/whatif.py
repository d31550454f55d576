"""`rpegc whatif`: what would make a plan faster, and by how much."""

import click

from rpegc.cli.console import HELP_OPTIONS, Console, console_options
from rpegc.cli.files import read
from rpegc.whatif.data import KINDS, Kind


@click.command("whatif", context_settings=HELP_OPTIONS)
@click.argument("file", type=click.Path())
@click.option(
    "--only", "kinds", type=click.Choice(KINDS), multiple=True,
    help="Only changes of this kind; may be given several times.",
)  # fmt: skip
@click.option(
    "--budget", type=click.IntRange(min=0), default=2000, metavar="N",
    help="Evaluations of the search after each change; 0 only keeps the plan. [default: 2000]",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Processes at once. [default: all cores]"
)
@click.option("--json", "as_json", is_flag=True, help="The figures as one object on stdout.")
@click.option(
    "--plot", "plot_file", type=click.Path(), metavar="FILE", help="Bars of the gains: .png, .svg, .pdf."
)
@console_options
def whatif_command(
    *,
    console: Console,
    file: str,
    kinds: tuple[Kind, ...],
    budget: int,
    jobs: int | None,
    as_json: bool,
    plot_file: str | None,
) -> int:
    """Say what changes to the plan in FILE, an executable or any stage that holds a plan, would buy.

    One more step of staleness, a shared backbone, other splitting and fusing, more nodes, a faster network,
    more memory, other lengths of responses, and another place or layout of each operator: the throughput of
    the present plan after each change, and of the best plan that a search started from it finds.

    \b
      rpegc whatif plan.exe.json
      rpegc whatif plan.exe.json --only nodes --only network --budget 10000
      rpegc whatif plan.exe.json --json --plot gains.png
    """
    from ir_schema.envelope import pretty
    from rpegc.parallel import cores
    from rpegc.plots import check_plot
    from rpegc.stagefiles import print_text, write_bytes
    from rpegc.whatif.run import whatif
    from rpegc.whatif.show import plot, render

    def work() -> None:
        if plot_file is not None:
            check_plot(plot_file)
        stage = read(file, console)
        found = whatif(
            stage,
            kinds or KINDS,
            budget=budget,
            jobs=jobs or cores(),
            on_progress=lambda done, of: console.transient(f"{done} of {of} changes"),
        )
        console.transient("")
        for notice in found.notices:
            console.say(f"note: {notice}")
        if as_json:
            write_bytes("-", pretty(found))
        else:
            print_text(render(found))
        if plot_file is not None:
            plot(found, plot_file)
            console.detail(f"wrote the plot to `{plot_file}`")

    return console.guard(work)
