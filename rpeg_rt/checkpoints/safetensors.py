"""One safetensors file: a header of names, types and shapes, and the tensors one after the other.

Tensors are mapped into memory, never read as a whole: a worker touches the slices that it needs, and many
workers write one file in place.
"""

import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rpeg_rt.failure import FileError
from rpeg_rt.precision import ITEM_BYTES

_LENGTH = struct.Struct("<Q")
_HEADER_LIMIT = 100_000_000
_NAMES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16"}
# numpy has no bfloat16: its bits are carried as integers.
_STORED: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
NUMBERS = tuple(_STORED)
"""The types of tensors that can be read, as the format spells them."""
_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64}
_BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64}
_BITS |= {name: 8 * stored.itemsize for name, stored in _STORED.items()}


class Stored(NamedTuple):
    """A tensor in a file: its type as the format spells it, its shape, and the byte at which it begins."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int

    def mapped(self) -> npt.NDArray[Any]:
        """The tensor, whose elements are read from the file when they are looked at (BF16: as bits).

        Writing to it changes this process's copy alone.
        """
        return np.memmap(self.file, _STORED[self.dtype], "c", self.begin, self.shape)


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name. Raises FileError where it is not one, or is not complete."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_LENGTH.size)
            length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else size
            if length > min(_HEADER_LIMIT, size - _LENGTH.size):
                raise FileError(f"{path} is no safetensors file, or is cut off in its header")
            text = file.read(length)
    except OSError as exc:
        raise FileError(f"cannot read {path}: {exc.strerror}") from exc
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise FileError(f"{path} is no safetensors file: its header is not JSON") from exc
    start = _LENGTH.size + length
    if not isinstance(entries, dict):
        raise FileError(f"{path} is no safetensors file: its header is no object")
    entries.pop("__metadata__", None)
    found = {name: _entry(path, name, entry, start) for name, entry in entries.items()}
    end = start
    for tensor in sorted(found.values(), key=lambda t: (t.begin, t.shape)):
        if tensor.begin != end:
            raise FileError(f"{path} is damaged: its tensors do not lie one after the other")
        end += -(-math.prod(tensor.shape) * _BITS[tensor.dtype] // 8)
    if end != size:
        raise FileError(f"{path} is damaged: it has {size} bytes, its header speaks of {end}")
    return found


def _entry(path: Path, name: str, entry: Any, start: int) -> Stored:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        if whole and end - begin == -(-math.prod(shape) * _BITS[dtype] // 8):
            return Stored(path, dtype, shape, start + begin)
    except (KeyError, TypeError, ValueError):
        pass
    raise FileError(f"{path} is damaged: what its header says of tensor `{name}` contradicts itself")


def header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """What a file begins with, whose tensors (type as numpy spells it, and shape) follow in this order."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (precision, shape) in tensors.items():
        end = offset + math.prod(shape) * ITEM_BYTES[precision]
        entries[name] = {"dtype": _NAMES[precision], "shape": shape, "data_offsets": (offset, end)}
        offset = end
    encoded = json.dumps(entries).encode()
    encoded += b" " * (-len(encoded) % 8)
    return _LENGTH.pack(len(encoded)) + encoded


def lay_out(path: Path, shapes: Mapping[str, tuple[int, ...]], precision: str) -> None:
    """Create a file of zeros. Raises FileError."""
    head = header({name: (precision, shape) for name, shape in shapes.items()})
    size = sum(math.prod(shape) for shape in shapes.values()) * ITEM_BYTES[precision]
    try:
        with path.open("wb") as file:
            file.write(head)
            file.flush()
            # Not a hole: where the disk is full, a write through the map would kill the worker.
            _allocate(file.fileno(), len(head) + size)
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
        shared = mmap.mmap(file.fileno(), 0)
    return {
        name: np.frombuffer(shared, _STORED[t.dtype], math.prod(t.shape), t.begin).reshape(t.shape)
        for name, t in read_header(path).items()
    }
