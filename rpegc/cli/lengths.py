"""`rpegc lengths`: measured response lengths to the quantiles of a workload."""

import click

from rpegc.cli.console import HELP_OPTIONS, Console, console_options
from rpegc.diagnostics import Source


@click.command("lengths", context_settings=HELP_OPTIONS)
@click.argument("file", type=click.Path())
@click.option("--field", metavar="NAME", help="Field or column of the lengths (default: the obvious one).")
@click.option(
    "--breakpoints", type=click.IntRange(min=1), default=3, metavar="Q",
    help="Breakpoints at most; a generation may be split into as many phases. [default: 3]",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(min=1, max=10**9), metavar="TOKENS",
    help="Longest response L_r; longer ones count as that long (default: the longest).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@console_options
def lengths_command(
    *, console: Console, file: str, field: str | None, breakpoints: int, limit: int | None, as_json: bool
) -> int:
    """Fit `length_quantiles` to the response lengths in FILE (.jsonl, .csv or .parquet).

    Standard output gets the lines to paste into the `workload` block, standard error a histogram and how
    well they fit.

    \b
      rpegc lengths rollouts.jsonl
      rpegc lengths rollouts.csv --field completion_tokens --breakpoints 5 --limit 4096
    """
    from rpegc.lengths import read_lengths
    from rpegc.lengths import report as reports
    from rpegc.stagefiles import write_bytes

    def work() -> None:
        console.source = Source(file, "")
        chosen, lengths = read_lengths(file, field)
        found = reports.report(file, chosen, lengths, breakpoints, limit)
        if as_json:
            write_bytes("-", reports.as_json(found))
            return
        console.say(reports.as_text(found) + "\n")
        write_bytes("-", reports.lines_to_paste(found))

    return console.guard(work)
