"""Writing and reading the trace of a run (`ir_schema.trace`) as a file."""

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path

from ir_schema.trace import Chain, Event, Line, NotATraceError, read_events
from rpeg_rt.failure import FileError
from rpeg_rt.files import LineFile


class TraceWriter:
    """Appends events to a file; every line is on its way to the disk when `write` returns.

    `observe` is told each event once it is written.
    """

    def __init__(self, path: Path, observe: Callable[[Event], None] = lambda _: None) -> None:
        self._file = LineFile(path, "trace")
        self._observe = observe
        self._chain = Chain()

    def write(self, event: Event) -> None:
        """Append one line. Raises FileError."""
        self._file.write(self._chain.line(event))
        self._observe(event)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_trace(path: Path) -> Iterator[Line]:
    """The events of a trace, checked against its chain as they are read.

    Raises FileError if it cannot be read or never was a trace, BrokenTraceError where a line does not fit.
    """
    try:
        with path.open("rb") as file:
            yield from read_events(file)
    except OSError as exc:
        raise FileError(f"cannot read the trace {path}: {exc.strerror}") from exc
    except NotATraceError as exc:
        raise FileError(f"{path} is not a trace" + (f": {exc}" if str(exc) else "")) from exc


def software_versions() -> dict[str, str]:
    """Versions of the packages that decide what a run computes, and of Python."""
    found = {"python": platform.python_version()}
    for name in ("rpeg", "torch", "megatron-core", "numpy"):
        try:
            found[name] = package_version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found
