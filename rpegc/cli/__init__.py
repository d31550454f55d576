"""The command line of `rpegc`: `rpegc FILE …` compiles, `rpegc COMMAND …` does one of the other things.

The first argument decides: a command's name, or else it belongs to the compiler proper. Start-up is kept
fast: modules here import click and little else, everything heavier is imported by the command that runs.
"""

import importlib.util
import os
import sys
from pathlib import Path

PACKAGES = ("ir_schema", "calib", "passes", "rpegc", "rpeg_rt")


def foreign_packages() -> dict[str, str]:
    """Packages of ours that Python would import from somewhere else, with what it would import.

    Names such as `passes` are common; a directory of that name in front of ours on the path hides it.
    """
    home = Path(__file__).resolve().parents[2]
    foreign = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        origin = None if spec is None else spec.origin
        if origin is None or Path(origin).resolve().parents[1] != home:
            foreign[name] = (
                origin or "nothing" if spec is None or origin else "a directory without __init__.py"
            )
    return foreign


def open_streams() -> None:
    """Give the standard streams that were closed (`>&-`) a file: writing output then fails as an OSError,
    what is said is lost, and no file opened later becomes standard output by its number."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def main() -> None:
    """Entry point of the `rpegc` script: run the command and exit with its code."""
    prepare()
    from rpegc.cli.group import run

    sys.exit(run(sys.argv[1:]))


def calib_main() -> None:
    """Entry point of the `rpeg-calib` script."""
    prepare()
    from rpegc.calibration.cli import run

    sys.exit(run(sys.argv[1:]))


def prepare() -> None:
    """Make sure that there are streams and that our packages are ours; exit with code 2 otherwise."""
    open_streams()
    foreign = foreign_packages()
    if foreign:
        for name, origin in foreign.items():
            print(f"error[E910]: `{name}` is not part of this installation: it is {origin}", file=sys.stderr)
        print(
            f"  = help: rpegc is installed in {Path(__file__).resolve().parents[2]}; rename what hides it, "
            "or start rpegc from another directory",
            file=sys.stderr,
        )
        sys.exit(2)
