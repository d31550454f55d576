"""Commands on problem files: check and fmt."""

from functools import partial

import click

from ir_schema.diagnostics import DiagnosticError
from rpegc.cli.console import HELP_OPTIONS, Console, console_options
from rpegc.diagnostics import Source


@click.command("check", context_settings=HELP_OPTIONS)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@console_options
def check_command(*, console: Console, files: tuple[str, ...]) -> int:
    """Find mistakes in problem files without planning anything; `-` is stdin.

    Exit code 0: none; 1: some; 2: trouble.

    \b
      rpegc check ppo.rpeg
      rpegc check --message-format github examples/*.rpeg
    """
    from passes.search.validation import check_choices
    from passes.verify import Verify, warnings
    from rpegc.inputs import parse_problem, problem_bytes

    def check(name: str) -> None:
        data = problem_bytes(name)
        console.source = Source.decode(data, name)
        read = parse_problem(data, name)
        console.source = read.source
        problem = Verify().run(read.run.stage)  # type: ignore[arg-type]
        found = check_choices(problem)
        if found:
            raise DiagnosticError(found)
        console.report(warnings(problem))
        console.say(f"{name}: no mistakes")

    return max([console.guard(partial(check, name)) for name in files])


@click.command("fmt", context_settings=HELP_OPTIONS)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--expand", is_flag=True, help="Write presets out as operators, containers and edges.")
@click.option("--check", "checking", is_flag=True, help="Write nothing; exit code 1 if a file would change.")
@click.option("-w", "--write", is_flag=True, help="Rewrite the files instead of printing to stdout.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON form instead of text.")
@console_options
def fmt_command(
    *,
    console: Console,
    files: tuple[str, ...],
    expand: bool,
    checking: bool,
    write: bool,
    as_json: bool,
) -> int:
    """Print problem files in their canonical text form; `-` is stdin.

    A JSON problem becomes text, and with --json a text becomes JSON, without loss.

    \b
      rpegc fmt -w ppo.rpeg
      rpegc fmt --expand ppo.rpeg
      rpegc fmt problem.json > problem.rpeg
    """
    from rpegc.failure import EXIT_INPUT, usage_error
    from rpegc.frontend import format_json, format_text
    from rpegc.inputs import directory_of, problem_bytes
    from rpegc.stagefiles import write_bytes

    def fmt(name: str) -> int:
        data = problem_bytes(name)
        console.source = Source.decode(data, name)
        if as_json:
            out = format_json(data, name, directory_of(name))
        else:
            out = format_text(data, name, expand=expand).encode()
        if checking:
            if out != data:
                console.say(f"{name}: would change")
            return EXIT_INPUT if out != data else 0
        if write and data.lstrip().startswith(b"{") != as_json:
            message = f"`-w` would change the form of `{name}`"
            raise usage_error("E932", message, help="print it to a new file")
        if not write:
            write_bytes("-", out)
        elif out != data:
            write_bytes(name, out)
        return 0

    if checking and write:
        raise click.UsageError("--check and --write exclude each other")
    if write and "-" in files:
        raise click.UsageError("--write needs files: standard input cannot be rewritten")
    return max([console.guard(partial(fmt, name)) for name in files])
