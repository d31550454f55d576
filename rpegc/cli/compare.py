"""`rpegc compare`: what other systems could at best do with a problem, beside what rpeg does."""

from typing import Any

import click

from rpegc.cli import names
from rpegc.cli.console import HELP_OPTIONS, Console, console_options
from rpegc.cli.search_options import budget_options


@click.command("compare", context_settings=HELP_OPTIONS)
@click.argument("file", type=click.Path())
@click.option("--only", "peers", metavar="NAME", multiple=True, shell_complete=names.peers,
              help="Only this system beside rpeg; may be given several times.")  # fmt: skip
@budget_options
@click.option("--jobs", type=click.IntRange(min=1), metavar="N",
              help="Searches at once (default: as many as there are cores).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One object on stdout instead of the table.")
@click.option("--csv", "csv_file", metavar="FILE", type=click.Path(), help="Write the table as CSV.")
@click.option("--plot", "plot_file", metavar="FILE", type=click.Path(),
              help="Draw the comparison (.png, .svg, .pdf).")  # fmt: skip
@console_options
def compare_command(
    *,
    console: Console,
    file: str,
    peers: tuple[str, ...],
    search: dict[str, Any],
    jobs: int | None,
    as_json: bool,
    csv_file: str | None,
    plot_file: str | None,
) -> int:
    """Find the best plan of FILE within what each earlier system may decide, and without such limits.

    \b
    colocated            one set of GPUs for all operators, synchronous (verl's hybrid engine)
    real, rlhfuse        free GPUs and layouts, fixed microbatches, synchronous (ReaL, RLHFuse)
    areal, asyncflow     generation apart from the rest, asynchronous (AReaL, AsyncFlow)
    rlinf                groups of GPUs by role, smallest layouts (RLinf)
    split                generation apart from the rest (disaggregated verl, NeMo-RL)
    rpeg                 everything that the file allows, starting from the best plans of the others

    These are decision spaces on one cost model: predictions of what such decisions could at best give, not
    measurements of those systems. What the file fixes or does not list holds for all of them. Every search
    has the same budget, by default that of `-O2`.

    Exit code 0: rpeg has a plan; 1: nothing fits in memory, or the file is at fault.

    \b
      rpegc compare ppo.rpeg --plot compare.png
      rpegc compare ppo.rpeg --only colocated --only real --budget 100000 --json
    """
    from ir_schema.envelope import pretty
    from passes.search import Search
    from passes.verify import Verify
    from rpegc.compare.plot import plot
    from rpegc.compare.run import compare, systems
    from rpegc.compare.show import as_csv, as_text
    from rpegc.diagnostics import Source
    from rpegc.failure import EXIT_INPUT, EXIT_OK
    from rpegc.frontend import load
    from rpegc.inputs import directory_of, problem_bytes
    from rpegc.parallel import cores
    from rpegc.pipeline import named_pipeline
    from rpegc.plots import check_plot
    from rpegc.stagefiles import check_table, print_text, write_bytes

    def work() -> int:
        check_table(csv_file, as_json=as_json)
        if plot_file is not None:
            check_plot(plot_file)
        spaces = systems(peers)
        data = problem_bytes(file)
        console.source = Source.decode(data, file)
        given = load(data, file, directory_of(file))
        console.source = given.source
        problem = Verify().run(given.problem)
        at_once = min(jobs or cores(), len(spaces))
        options = {"method": "auto", "threads": max(1, cores() // at_once), **search}
        level = named_pipeline("O2").replace_options("search", **options)
        found = compare(
            problem,
            spaces,
            next(p for p in level.passes if isinstance(p, Search)),
            jobs=at_once,
            on_progress=lambda done, of: console.transient(f"{done} of {of} searches"),
        )
        console.transient("")
        console.report(found.diagnostics)
        if csv_file is not None:
            write_bytes(csv_file, as_csv(found))
        if plot_file is not None:
            plot(found, plot_file)
        if as_json:
            write_bytes("-", pretty(found))
        elif csv_file != "-":
            print_text(as_text(found))
        return EXIT_INPUT if found.rpeg.figures is None else EXIT_OK

    return console.guard(work)
