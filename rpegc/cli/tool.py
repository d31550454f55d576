"""Commands about the compiler itself: explain, passes, completion."""

import click

from rpegc.cli import names
from rpegc.cli.console import HELP_OPTIONS, Console, console_options


@click.command("explain", context_settings=HELP_OPTIONS)
@click.argument("code", shell_complete=names.codes)
@console_options
def explain_command(*, console: Console, code: str) -> int:
    """Explain a diagnostic's code at length.

    \b
      rpegc explain E203
    """
    from rpegc.diagnostics.catalogue import read_catalogue
    from rpegc.failure import suggestion, usage_error
    from rpegc.stagefiles import print_text

    def work() -> None:
        catalogue, wanted = read_catalogue(), code.upper()
        if wanted not in catalogue:
            raise usage_error("E934", f"no diagnostic has code `{code}`", help=suggestion(wanted, catalogue))
        print_text(str(catalogue[wanted]))

    return console.guard(work)


@click.command("passes", context_settings=HELP_OPTIONS)
@click.argument("name", required=False, shell_complete=names.pass_names)
@console_options
def passes_command(*, console: Console, name: str | None) -> int:
    """List the passes and the named pipelines, or show one pass's options.

    \b
      rpegc passes
      rpegc passes search
    """
    from rpegc.catalogue import list_passes, show_pass
    from rpegc.stagefiles import print_text

    return console.guard(lambda: print_text(show_pass(name) if name else list_passes()))


@click.command("completion", context_settings=HELP_OPTIONS)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@console_options
def completion_command(*, console: Console, shell: str) -> int:
    """Print the completion script for a shell.

    \b
      rpegc completion bash > ~/.local/share/bash-completion/completions/rpegc
      source <(rpegc completion zsh)
    """
    from click.shell_completion import get_completion_class

    from rpegc.cli.group import cli
    from rpegc.stagefiles import print_text

    def work() -> None:
        kind = get_completion_class(shell)
        assert kind is not None
        print_text(kind(cli, {}, "rpegc", "_RPEGC_COMPLETE").source())

    return console.guard(work)
