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
        target = path.resolve()
        if _is_special(target):
            target.write_bytes(data)
            return
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.chmod(name, _mode(target))
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as exc:
        raise FileError(f"cannot write {path}: {exc.strerror}") from exc


def synchronise(path: Path) -> None:
    """Have a file, or the names in a directory, on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: Path) -> None:
    """Raises FileError where `write_atomically` could not write `path`, as far as can be known before."""
    try:
        target = path.resolve()
        if target.is_dir():
            raise FileError(f"cannot write {path}: it is a directory")
        if not target.parent.is_dir():
            raise FileError(f"cannot write {path}: there is no directory {path.parent}")
        if not _is_special(target):
            tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as exc:
        raise FileError(f"cannot write {path}: {exc.strerror}") from exc


def _is_special(path: Path) -> bool:
    """Whether a path is a device, a pipe or a directory: none can be replaced by a file, and none must be."""
    return path.exists() and not path.is_file()


def _mode(path: Path) -> int:
    """Permissions of the file to be replaced, or those of a new one."""
    if path.exists():
        return path.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


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
            if keep is not None and path.is_file():
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
