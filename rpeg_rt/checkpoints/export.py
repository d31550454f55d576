"""The checkpoint of a trained model: laid out by the controller, filled in place by the workers."""

import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ir_schema.base import Record
from ir_schema.model import ModelSpec
from ir_schema.problem import Problem
from rpeg_rt.checkpoints import saved_name
from rpeg_rt.checkpoints.config import CLASSES, family_of, written
from rpeg_rt.checkpoints.directory import lay_out_tensors, write_json
from rpeg_rt.data.tokenizers import GENERATION, Tokenizer
from rpeg_rt.engine.architecture import canonical_shapes
from rpeg_rt.failure import FileError
from rpeg_rt.files import make_directory, synchronise

ORIGIN = "rpeg.json"
"""The file beside the weights that says where they are from."""


class Origin(Record, frozen=True, kw_only=True):
    """Where weights are from: the end of a run of `steps` RL steps under `plan` with `seed`."""

    plan: str
    seed: int
    steps: int


def unwritable(problem: Problem) -> list[str]:
    """Why trained models cannot be exported; empty where all can."""
    found = []
    for name in problem.graph.trainable:
        family, lacking = family_of(problem.models[name])
        if family is None:
            what = "; ".join(f"`{key}` = {ours}, not {theirs}" for key, ours, theirs in lacking)
            found.append(
                f"model `{name}` cannot be saved: no family of {', '.join(CLASSES)} describes it ({what}); "
                "run without --save or change the model"
            )
    return found


def make_room(directory: Path, models: Iterable[str]) -> None:
    """Make the directory that checkpoints of `models` will be written into. Raises FileError, also where one
    of them would replace what is there."""
    make_directory(directory)
    for name in models:
        place = directory / name
        if place.exists() and not (place.is_dir() and not any(place.iterdir())):
            raise FileError(f"{place} exists already; give --save another directory, or remove it")


def is_from(directory: Path, origins: Collection[Origin]) -> bool:
    """Whether `directory` has a checkpoint, whole as all are, that is from one of `origins`."""
    try:
        return msgspec.json.decode((directory / ORIGIN).read_bytes(), type=Origin) in origins
    except (OSError, msgspec.DecodeError):
        return False


@contextmanager
def new_checkpoint(
    directory: Path, spec: ModelSpec, precision: str, tokenizer: Tokenizer | None, origin: Origin | None
) -> Iterator[Path]:
    """A checkpoint of the model with zeros for weights, to be filled, and the tokenizer's files and `origin`
    beside them; it is at `directory` when that is done, and until then where this says. Raises FileError."""
    family, _ = family_of(spec)
    assert family is not None, "refused before the start"
    part = directory.with_name(f".{directory.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        eos = None if tokenizer is None else tokenizer.eos
        write_json(part / "config.json", written(spec, family, precision, eos))
        for name, content in ({} if tokenizer is None else tokenizer.files).items():
            if spec.has_lm_head or name != GENERATION:
                (part / name).write_bytes(content)
        if origin is not None:
            (part / ORIGIN).write_bytes(msgspec.json.format(msgspec.json.encode(origin)) + b"\n")
        shapes = {saved_name(name, family): shape for name, shape in canonical_shapes(spec).items()}
        lay_out_tensors(part, shapes, precision)
        yield part
        for path in (*part.iterdir(), part):
            synchronise(path)
        part.replace(directory)
        synchronise(directory.parent)
    except OSError as exc:
        raise FileError(f"cannot write the checkpoint {directory}: {exc.strerror}") from exc
