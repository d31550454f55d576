"""The command line of `rpeg-calib`: run, fit, from-trace, validate, show, diff."""

from collections.abc import Sequence

import click

from rpegc.calibration.from_trace_command import from_trace_command
from rpegc.calibration.run_command import run_command
from rpegc.calibration.validation_command import validate_command
from rpegc.cli.console import HELP_OPTIONS, Console, console_options
from rpegc.diagnostics import Source

HELP_TEXT = """Hardware files: measure machines, fit tables, validate, show and compare.

\b
  rpeg-calib run -o mine.json                         of the machine at hand, measured
  rpeg-calib fit sweep.csv --onto h100 -o mine.json   measured figures in place of others
  rpeg-calib from-trace run.trace.jsonl plan.exe.json -o mine.json   corrected by a run
  rpeg-calib validate mine.json -o validation         how far its predictions are off, here
  rpeg-calib show mine.json                           parameters, residuals, sources
  rpeg-calib diff h100 mine.json                      what differs, and by which factor
"""


@click.group(help=HELP_TEXT, context_settings={**HELP_OPTIONS, "max_content_width": 100})
def cli() -> None:
    """The root of the command line."""


@cli.command("fit", context_settings=HELP_OPTIONS)
@click.argument("tables", nargs=-1, required=True, type=click.Path())
@click.option("--onto", metavar="HARDWARE", required=True, help="File or shipped name with everything else.")
@click.option(
    "--where", "where", multiple=True, metavar="COLUMN=VALUE[,VALUE]...",
    help="Only rows with one of the values, in tables that have the column. [repeatable]",
)  # fmt: skip
@click.option("--keep", multiple=True, metavar="PARAMETER", help="Leave a parameter as it is. [repeatable]")
@click.option("--name", metavar="NAME", help="Name of the machine, if it is another than that of --onto.")
@click.option("--strict", is_flag=True, help="Findings fail, and nothing is written.")
@click.option("-o", "--output", default="-", type=click.Path(), help="Where to write it. [default: stdout]")
@console_options
def fit_command(
    *, console: Console, tables: tuple[str, ...], onto: str, where: tuple[str, ...], keep: tuple[str, ...],
    name: str | None, strict: bool, output: str,
) -> int:  # fmt: skip
    """Fit the parameters that TABLES (CSV) measure: latencies of matrix products, times of collectives,
    bandwidths of messages, times of training iterations. They are told apart by their columns.

    Standard error gets every parameter that was fitted, with the mean relative error of the fit, and
    findings. Exit code 1: unusable tables, or with --strict a finding.

    \b
      rpeg-calib fit gemm.csv nccl.csv --where system=h100_sxm --onto h100 -o mine.json
    """
    from calib.hardware import encode_hardware, load_hardware
    from calib.tables import read_table
    from rpegc.calibration.draft import judged
    from rpegc.calibration.fitting import refit
    from rpegc.calibration.report import check_kept, show_changes
    from rpegc.failure import EXIT_INPUT, suggestion, usage_error
    from rpegc.stagefiles import check_writable, read_bytes, write_bytes

    def chosen() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for text in where:
            column, equals, values = text.partition("=")
            if not equals or not column:
                raise usage_error("E932", f"`--where {text}` is not COLUMN=VALUE", help="--where tp=1,2")
            found.setdefault(column, []).extend(values.split(","))
        return found

    def work() -> int:
        check_writable(output)
        base = load_hardware(onto)
        check_kept(base, keep)
        rows = chosen()
        read = [read_table(read_bytes(t), t, rows) for t in tables]
        known = {column for table in read for column in table.rows[0]}
        for column in rows.keys() - known:
            help = suggestion(column, known)
            raise usage_error("E932", f"`--where {column}=...`: no table has the column", help=help)
        result = refit(base, read, keep=keep, name=name)
        console.say(show_changes(result.changes))
        if result.untouched:
            console.say(f"not measured, taken from {onto}: {', '.join(result.untouched)}")
        console.report(judged(result.findings, strict=strict))
        if strict and result.findings:
            return EXIT_INPUT
        write_bytes(output, encode_hardware(result.hardware))
        return 0

    return console.guard(work)


@cli.command("show", context_settings=HELP_OPTIONS)
@click.argument("hardware")
@click.option("--json", "as_json", is_flag=True, help="The file itself, complete.")
@console_options
def show_command(*, console: Console, hardware: str, as_json: bool) -> int:
    """Show HARDWARE, a file or a shipped name: its parameters, how well they were fitted, and their sources.

    \b
      rpeg-calib show gh200
    """
    from calib.hardware import encode_hardware, load_hardware
    from rpegc.calibration.report import show
    from rpegc.stagefiles import print_text, write_bytes

    def work() -> None:
        console.source = Source(hardware, "")
        found = load_hardware(hardware)
        if as_json:
            write_bytes("-", encode_hardware(found))
        else:
            print_text(show(found))

    return console.guard(work)


@cli.command("diff", context_settings=HELP_OPTIONS)
@click.argument("before")
@click.argument("after")
@click.option("--json", "as_json", is_flag=True, help="The differences as one object on stdout.")
@console_options
def diff_command(*, console: Console, before: str, after: str, as_json: bool) -> int:
    """Compare the parameters of two hardware files or shipped names. Exit code 0: the same; 1: different;
    2: trouble.

    \b
      rpeg-calib diff h100 mine.json
    """
    import msgspec

    from calib.hardware import load_hardware
    from rpegc.calibration.report import differences, show_differences
    from rpegc.failure import EXIT_USAGE
    from rpegc.stagefiles import print_text, write_bytes

    def work() -> int:
        found = differences(load_hardware(before), load_hardware(after))
        if as_json:
            rows = {d.parameter: {"before": d.before, "after": d.after} for d in found}
            write_bytes("-", msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
        else:
            print_text(show_differences(found))
        return 1 if found else 0

    return console.guard(work, at_fault=EXIT_USAGE)


cli.add_command(run_command)
cli.add_command(from_trace_command)
cli.add_command(validate_command)


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    from rpegc.cli.group import run_group

    return run_group(cli, "rpeg-calib", args)
