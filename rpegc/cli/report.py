"""`rpegc report`: a plan as a page to look at."""

import click

from rpegc.cli.console import HELP_OPTIONS, Console, console_options
from rpegc.cli.files import read


@click.command("report", context_settings=HELP_OPTIONS)
@click.argument("file", type=click.Path())
@click.option("-o", "--output", type=click.Path(), metavar="OUT", help="The HTML page, `-` for stdout.")
@click.option("--json", "as_json", is_flag=True, help="What the page shows as one object on stdout.")
@console_options
def report_command(*, console: Console, file: str, output: str | None, as_json: bool) -> int:
    """Make one HTML page of FILE, an executable or any stage that holds a complete plan.

    Schedule, critical path, memory, times, graph and plan, as the cost model predicts them. The page is
    self-contained: it can be mailed, archived and opened without a network.

    \b
      rpegc report plan.exe.json -o report.html
      rpegc report plan.exe.json --json | jq .score.step_time_s
    """
    from ir_schema.envelope import pretty
    from rpegc.failure import usage_error
    from rpegc.report import build, render
    from rpegc.stagefiles import check_writable, write_bytes

    def work() -> None:
        if output is None and not as_json:
            raise usage_error("E932", "no output", help=f"`rpegc report {file} -o report.html`, or `--json`")
        if output == "-" and as_json:
            raise usage_error("E932", "`--json` and `-o -` both need stdout", help="write the page to a file")
        if output is not None:
            check_writable(output)
        report = build(read(file, console))
        for notice in report.notices:
            console.say(f"note: {notice}")
        if output is not None:
            write_bytes(output, render(report))
            console.detail(f"wrote the report of {report.stage} {report.stage_id[:12]} to `{output}`")
        if as_json:
            write_bytes("-", pretty(report))

    return console.guard(work)
