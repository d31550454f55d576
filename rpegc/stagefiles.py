"""Reading and writing files: `-` for the standard streams, atomic writes, names of saved stages."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from rpegc.failure import usage_error


def read_bytes(name: str) -> bytes:
    """The content of file `name`, `-` being standard input. Raises UsageFailure E911."""
    try:
        if name == "-":
            return sys.stdin.buffer.read()
        return Path(name).read_bytes()
    except OSError as exc:
        raise usage_error("E911", f"cannot read `{name}`: {reason(exc)}") from exc


def write_bytes(name: str, data: bytes) -> None:
    """Write `data` to file `name` all or nothing, `-` being standard output. Raises UsageFailure E912."""
    try:
        if name == "-":
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        path = Path(name).resolve()
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a device or a pipe cannot be replaced, and must not be
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, data)
    except OSError as exc:
        raise usage_error("E912", f"cannot write `{name}`: {reason(exc)}") from exc


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
