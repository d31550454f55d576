"""The command `rpeg-calib from-trace`."""

import click

from rpegc.cli.console import HELP_OPTIONS, Console, console_options


@click.command("from-trace", context_settings=HELP_OPTIONS)
@click.argument("trace", type=click.Path())
@click.argument("plan", type=click.Path())
@click.option("--onto", metavar="HARDWARE", help="File or shipped name to correct. [default: the plan's]")
@click.option("--keep", multiple=True, metavar="PARAMETER", help="Leave a parameter as it is. [repeatable]")
@click.option("--name", metavar="NAME", help="Name of the result. [default: that of the file]")
@click.option("--strict", is_flag=True, help="Findings fail, and nothing is written.")
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to write the hardware file.")
@console_options
def from_trace_command(
    *, console: Console, trace: str, plan: str, onto: str | None, keep: tuple[str, ...], name: str | None,
    strict: bool, output: str,
) -> int:  # fmt: skip
    """Correct a hardware file by a run: TRACE is what `rpeg-rt PLAN --trace TRACE` wrote.

    Corrected are the times that an operation takes (`dispatch`) in the roles that ran and, where messages
    between allocations tell a bandwidth, `point_to_point`; all else stays. The first two steps are not
    counted, nor, on processors, what ran beside others.

    Standard error gets what changed and what measured nothing. Exit code 1: a trace that is none, was changed
    or is of another plan, one that measured nothing, or with --strict a finding.

    \b
      rpeg-rt plan.exe.json --steps 12 --trace run.trace.jsonl
      rpeg-calib from-trace run.trace.jsonl plan.exe.json -o mine.json
    """
    from pathlib import Path

    from calib.hardware import encode_hardware, load_hardware
    from rpegc.calibration.draft import judged
    from rpegc.calibration.from_trace import findings, read_plan, read_run, recalibrate, traced
    from rpegc.calibration.report import check_kept, show_changes
    from rpegc.failure import EXIT_INPUT
    from rpegc.stagefiles import check_writable, write_bytes

    def work() -> int:
        check_writable(output)
        identity, executable = read_plan(plan)
        base = executable.problem.hardware if onto is None else load_hardware(onto)
        check_kept(base, keep)
        lines = read_run(trace, identity)
        found = traced(lines, executable)
        told = f"corrected by a run of plan {identity[:12]}"
        result = recalibrate(found, base, name or Path(output).name.removesuffix(".json"), told, keep)
        console.say(show_changes(result.changes))
        for why, count in found.left_out.most_common():
            console.say(f"{count} not counted: {why}")
        wrong = [*findings(lines), *result.findings]
        console.report(judged(wrong, strict=strict))
        if strict and wrong:
            return EXIT_INPUT
        write_bytes(output, encode_hardware(result.hardware))
        return 0

    return console.guard(work)
