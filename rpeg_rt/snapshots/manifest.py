"""The manifest of a snapshot: what lies beside it, and of which run."""

from typing import Any

import msgspec

from ir_schema.base import Record
from ir_schema.problem import Problem

VERSION = 1
MANIFEST = "manifest.json"


class Piece(Record, frozen=True, kw_only=True):
    """One file: its size in bytes and the SHA-256 of its content."""

    bytes: int
    sha256: str


class Trained(Record, frozen=True, kw_only=True):
    """What there is of one model: `versions` of its weights, ascending, the newest with the state of its
    optimizer after `updates` steps."""

    versions: tuple[int, ...]
    updates: int


class Manifest(Record, frozen=True, kw_only=True):
    """A snapshot after `step` RL steps of a run of plan `plan` with `seed`. `settings` are those of the run,
    to compare with the settings of the run that goes on; `memory` is what algorithms remember, by training
    vertex."""

    version: int
    step: int
    plan: str
    seed: int
    settings: dict[str, Any]
    models: dict[str, Trained]
    memory: dict[str, dict[str, float]]
    files: dict[str, Piece]


def settings(problem: Problem) -> dict[str, Any]:
    """What decides what a run computes: values by section, as JSON has them, defaults included."""
    return {
        "run": _plain(problem.run),
        "workload": _plain(problem.workload),
        "models": _plain(problem.models),
        "trainable": list(problem.graph.trainable),
        "trainings": {v.name: v.model for v in problem.graph.vertices if v.role == "training"},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items()}
    return [_plain(x) for x in value] if isinstance(value, tuple | list) else value
