"""Writing files: as a whole, so that a reader sees the old content or the new, or line by line."""

import os
import tempfile
from collections.abc import Callable, Iterator
from io import FileIO
from itertools import takewhile
from pathlib import Path

from rpeg_rt.failure import FileError


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` beside `path` and move it into place. Raises FileError."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as exc:
        raise FileError(f"cannot write {path}: {exc.strerror}") from exc


def make_directory(path: Path) -> None:
    """Create the directory `path` and those above it, where they are missing. Raises FileError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise FileError(f"cannot create the directory {path}: {exc.strerror}") from exc


class LineFile:
    """A new file of lines: each is on its way to the disk when `write` returns.

    `what` names it in the FileError that is raised where it cannot be created or written. It takes the place
    of an earlier one, of which those of the first lines stay that are to be kept, if any.
    """

    def __init__(self, path: Path, what: str, keep: Callable[[bytes], bool] | None = None) -> None:
        self.path, self._what = path, what
        try:
            if keep is not None and path.exists():
                lines = path.read_bytes().splitlines(keepends=True)
                kept: Iterator[bytes] = takewhile(keep, lines)
                write_atomically(path, b"".join(kept))
            self._file: FileIO = path.open("wb" if keep is None else "ab", buffering=0)
        except OSError as exc:
            raise self._error(exc) from exc

    def write(self, line: bytes) -> None:
        """Append a line, which ends in a line feed. Raises FileError."""
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as exc:
            raise self._error(exc) from exc

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _error(self, exc: OSError) -> FileError:
        return FileError(f"cannot write the {self._what} {self.path}: {exc.strerror}")
