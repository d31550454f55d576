"""`rpegc convergence`: how fast searches found their plans."""

import click

from rpegc.cli.console import HELP_OPTIONS, Console, console_options


@click.command("convergence", context_settings=HELP_OPTIONS)
@click.argument("logs", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", type=click.Path(), metavar="OUT", help="The plot: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one list on stdout.")
@console_options
def convergence_command(*, console: Console, logs: tuple[str, ...], output: str | None, as_json: bool) -> int:
    """Compare searches by their LOGS, which `--search-log` writes: the best plan so far against time and
    evaluations, and when it was within 1 % of the last one. The plot has a dotted line where no plan can be
    faster. A log may be that of a search that still runs.

    \b
      rpegc ppo.rpeg --seed 1 --search-log one.jsonl -o one.exe.json
      rpegc convergence one.jsonl two.jsonl -o convergence.png
    """
    from ir_schema.envelope import pretty
    from rpegc.convergence import convergence, draw, render
    from rpegc.plots import check_plot, write_plot
    from rpegc.searchlog import read_log
    from rpegc.stagefiles import print_text, write_bytes

    def work() -> None:
        if output is not None:
            check_plot(output)
        read = [read_log(name) for name in logs]
        found = [convergence(log) for log in read]
        if as_json:
            write_bytes("-", pretty(found))
        else:
            print_text(render(found))
        if output is not None:
            write_plot(output, lambda figure: draw(read, figure), inches=(11.0, 4.5))
            console.detail(f"wrote the plot to `{output}`")

    return console.guard(work)
