"""Writing files so that a reader sees the old content or the new, never half of it."""

import os
import tempfile
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
