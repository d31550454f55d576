"""The files of a checkpoint: `model.safetensors`, or several that `model.safetensors.index.json` lists."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from rpeg_rt.checkpoints.safetensors import Stored, lay_out, read_header, writable_tensors
from rpeg_rt.failure import FileError
from rpeg_rt.precision import ITEM_BYTES

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000


def read_tensors(directory: Path) -> dict[str, Stored]:
    """All tensors of a checkpoint by name, from the headers of its files. Raises FileError."""
    if (directory / SINGLE).exists():
        return read_header(directory / SINGLE)
    path = directory / INDEX
    if not path.exists():
        raise FileError(f"{directory} has neither {SINGLE} nor {INDEX}; other formats are not read")
    weight_map = _weight_map(path)
    found: dict[str, Stored] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise FileError(f"{path} names `{file}`, which is not a file beside it")
        for name, tensor in read_header(directory / file).items():
            if weight_map.get(name) != file:
                raise FileError(f"{directory / file} has tensor `{name}`, which {INDEX} has not there")
            found[name] = tensor
    absent = sorted(weight_map.keys() - found.keys())
    if absent:
        raise FileError(f"{path} speaks of tensor `{absent[0]}`, which {weight_map[absent[0]]} has not")
    return found


def _weight_map(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        if weight_map and all(isinstance(x, str) for pair in weight_map.items() for x in pair):
            return dict(weight_map)
    except OSError as exc:
        raise FileError(f"cannot read {path}: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise FileError(f"{path} is damaged: it has no `weight_map` from tensors to files")


def lay_out_tensors(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], precision: str, shard_bytes: int = SHARD_BYTES
) -> None:
    """Create the files of a checkpoint, filled with zeros, of at most `shard_bytes` of tensors each (or one
    tensor). Raises FileError."""
    files: list[dict[str, tuple[int, ...]]] = [{}]
    room = total = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * ITEM_BYTES[precision]
        if files[-1] and room + size > shard_bytes:
            files.append({})
            room = 0
        files[-1][name] = shape
        room += size
        total += size
    if len(files) == 1:
        lay_out(directory / SINGLE, shapes, precision)
        return
    weight_map = {}
    for i, part in enumerate(files, 1):
        file = f"model-{i:05d}-of-{len(files):05d}.safetensors"
        lay_out(directory / file, part, precision)
        weight_map.update(dict.fromkeys(part, file))
    write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object for people to read. Raises FileError."""
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as exc:
        raise FileError(f"cannot write {path}: {exc.strerror}") from exc


def writable_checkpoint(directory: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a laid-out checkpoint as arrays whose elements are those of its files."""
    found: dict[str, npt.NDArray[Any]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        found |= writable_tensors(path)
    return found
