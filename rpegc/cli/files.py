"""Commands on stage files: diff, dump, schema."""

from typing import TYPE_CHECKING

import click

from rpegc.cli import names
from rpegc.cli.console import HELP_OPTIONS, Console, console_options
from rpegc.diagnostics import Source

if TYPE_CHECKING:
    from ir_schema.base import Record


def read(name: str, console: Console) -> "Record":
    """The stage in file `name`, a stage file or a problem; findings about it point into that file."""
    from rpegc.inputs import any_stage
    from rpegc.stagefiles import read_bytes

    console.source = Source(name, "")
    data = read_bytes(name)
    console.source = Source.decode(data, name)
    return any_stage(data, name)


@click.command("diff", context_settings=HELP_OPTIONS)
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path())
@click.option("--stat", is_flag=True, help="Only how much differs, and where.")
@click.option("--json", "as_json", is_flag=True, help="The differences as one object on stdout.")
@console_options
def diff_command(*, console: Console, before: str, after: str, stat: bool, as_json: bool) -> int:
    """Compare two stage files, or two problems, by what they say.

    Placement, predicted step time and critical path come first. Exit code 0: the same; 1: different;
    2: trouble.

    \b
      rpegc diff old.exe.json new.exe.json
      rpegc diff a.scheduled.json b.scheduled.json --stat
    """
    from ir_schema.envelope import pretty
    from rpegc.diff import difference, render
    from rpegc.failure import EXIT_USAGE, usage_error
    from rpegc.stagefiles import print_text, write_bytes

    def work() -> int:
        stages = read(before, console), read(after, console)
        try:
            found = difference(*stages)
        except ValueError as exc:
            raise usage_error("E933", str(exc)) from exc
        if as_json:
            write_bytes("-", pretty(found))
        else:
            print_text(render(found, stat=stat))
        return 0 if found.same else 1

    return console.guard(work, at_fault=EXIT_USAGE)


@click.command("dump", context_settings=HELP_OPTIONS)
@click.argument("file", type=click.Path())
@click.option("--dot", "as_dot", is_flag=True, help="The stage's graph for Graphviz instead.")
@console_options
def dump_command(*, console: Console, file: str, as_dot: bool) -> int:
    """Show a stage file, or a problem, as text to read.

    \b
      rpegc dump plan.exe.json
      rpegc dump plan.exe.json --dot | dot -Tsvg -o plan.svg
    """
    from rpegc.dump import dot, dump
    from rpegc.stagefiles import print_text

    def work() -> None:
        stage = read(file, console)
        print_text(dot(stage) if as_dot else dump(stage))

    return console.guard(work)


@click.command("schema", context_settings=HELP_OPTIONS)
@click.argument("stage", shell_complete=names.stages)
@console_options
def schema_command(*, console: Console, stage: str) -> int:
    """Print the JSON Schema of a stage's file.

    \b
      rpegc schema executable
    """
    from ir_schema.envelope import STAGES
    from ir_schema.jsonschema import stage_schema
    from rpegc.failure import suggestion, usage_error
    from rpegc.stagefiles import write_bytes

    def work() -> None:
        if stage not in STAGES:
            raise usage_error("E931", f"unknown stage `{stage}`", help=suggestion(stage, STAGES))
        write_bytes("-", stage_schema(stage))

    return console.guard(work)
