"""Reading and writing files: `-` for the standard streams, atomic writes, names of saved stages."""

import contextlib
import os
import shlex
import sys
import tempfile
from pathlib import Path

from rpegc.failure import UsageFailure, usage_error


def read_bytes(name: str) -> bytes:
    """The content of file `name`, `-` being standard input. Raises UsageFailure E911."""
    try:
        if name == "-":
            return sys.stdin.buffer.read()
        return Path(name).read_bytes()
    except OSError as exc:
        raise usage_error("E911", f"cannot read `{name}`: {reason(exc)}") from exc


def make_directory(path: Path) -> None:
    """Make directory `path` unless it exists. Raises UsageFailure E912."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise usage_error("E912", f"cannot make the directory `{path}`: {reason(exc)}") from exc


def check_writable(name: str) -> None:
    """Raise UsageFailure E912 if file `name` cannot be written: it is a directory, or would stand in one that
    does not exist or that nobody may write to."""
    if name == "-":
        return
    folder = Path(name).parent
    if not folder.exists():
        raise usage_error(
            "E912",
            f"cannot write `{name}`: there is no directory `{folder}`",
            help=f"`mkdir -p {shlex.quote(str(folder))}` makes it",
        )
    if Path(name).is_dir():
        raise usage_error("E912", f"cannot write `{name}`: is a directory")
    # Files are replaced, which is up to their directory; devices and pipes are not.
    if not os.access(folder, os.W_OK) and (Path(name).is_file() or not Path(name).exists()):
        raise usage_error("E912", f"cannot write `{name}`: permission denied in `{folder}`")


def check_table(csv_file: str | None, *, as_json: bool) -> None:
    """Raise UsageFailure E932 if a table as CSV and one as JSON would both go to stdout, E912 if the CSV file
    would stand in a directory that does not exist."""
    if csv_file == "-" and as_json:
        raise usage_error("E932", "`--json` and `--csv -` both need stdout", help="write the CSV to a file")
    if csv_file is not None:
        check_writable(csv_file)


def print_text(text: str) -> None:
    """Write a line or more of text to standard output. Raises UsageFailure E912."""
    write_bytes("-", f"{text}\n".encode(errors="replace"))


def write_bytes(name: str, data: bytes) -> None:
    """Write `data` to file `name` all or nothing, `-` being standard output. Raises UsageFailure E912."""
    check_writable(name)
    try:
        if name == "-":
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        path = Path(name).resolve()
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a device or a pipe cannot be replaced, and must not be
            return
        _replace(path, data)
    except OSError as exc:
        if name == "-":
            raise lost_output(exc) from exc
        raise usage_error("E912", f"cannot write `{name}`: {reason(exc)}") from exc


def lost_output(exc: OSError) -> UsageFailure:
    """The failure E912 of standard output, which is written to no more: its rest is dropped at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return usage_error("E912", f"cannot write to standard output: {reason(exc)}")


def _replace(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).chmod(_mode(path))
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _mode(path: Path) -> int:
    """Permissions of the file to be replaced, or those of a new one."""
    if path.exists():
        return path.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def reason(exc: OSError) -> str:
    """What the system says, in lower case and without the number and the path."""
    return (exc.strerror or str(exc)).lower()


def saved_name(index: int, pass_name: str, stage: str) -> str:
    """File name under `--save-stages`: `04-lower.lowered.json`; the input has index 0."""
    return f"{index:02}-{pass_name}.{stage}.json"
