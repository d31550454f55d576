"""Weights on disk as safetensors, written in place by many workers: no process ever holds a whole model.

The controller lays the file out from the canonical names and shapes; every worker then writes the slices
that it holds.
"""

import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rpeg_rt.failure import FileError
from rpeg_rt.precision import ITEM_BYTES

_LENGTH = struct.Struct("<Q")
_NAMES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16"}
# numpy has no bfloat16: its bits are carried as integers.
_STORED: dict[str, np.dtype[Any]] = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "BF16": np.dtype("<u2")}


def lay_out(path: Path, shapes: Mapping[str, tuple[int, ...]], precision: str) -> None:
    """Create a safetensors file of zeros. Raises FileError."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + math.prod(shape) * ITEM_BYTES[precision]
        header[name] = {"dtype": _NAMES[precision], "shape": shape, "data_offsets": (offset, end)}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    try:
        with path.open("wb") as file:
            file.write(_LENGTH.pack(len(encoded)) + encoded)
            file.flush()
            # Not a hole: where the disk is full, a write through the map would kill the worker.
            _allocate(file.fileno(), _LENGTH.size + len(encoded) + offset)
    except OSError as exc:
        raise FileError(f"cannot write weights {path}: {exc.strerror}") from exc


def _allocate(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


def writable_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a laid-out file as arrays whose elements are those of the file."""
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    (length,) = _LENGTH.unpack_from(mapped)
    header = json.loads(mapped[_LENGTH.size : _LENGTH.size + length])
    start = _LENGTH.size + length
    found: dict[str, npt.NDArray[Any]] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            shape = tuple(entry["shape"])
            first = start + entry["data_offsets"][0]
            stored = _STORED[entry["dtype"]]
            found[name] = np.frombuffer(mapped, stored, math.prod(shape), first).reshape(shape)
    return found
