"""Models by name: facts that ship with the package, and `config.json` files on disk.

A shipped file holds a `ModelSpec` without its head (which a problem chooses), the published number of
parameters where one was found, and where both come from. Such files are data: adding one needs no code.
"""

import difflib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from ir_schema.base import Head, Record
from ir_schema.config_reader import decode_config
from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.hugging_face import import_config
from ir_schema.model import ModelSpec


class Facts(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One shipped model: its `spec` (a ModelSpec without `head`), the total number of parameters as published
    for the language model (untied, unpadded storage apart), and the sources."""

    source: str
    published_parameters: int | None = None
    published_source: str = ""
    spec: dict[str, Any]

    def model(self, head: Head) -> ModelSpec:
        """The model with `head`. Raises msgspec.ValidationError where the facts are malformed."""
        return msgspec.convert({**self.spec, "head": head}, ModelSpec)


def model_names() -> list[str]:
    """Short names of all shipped models, sorted."""
    folder = resources.files("rpegc.models")
    return sorted(
        entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")
    )


def load_facts(name: str) -> Facts:
    """The shipped facts called `name`. Raises DiagnosticError E320, with the nearest names, without them."""
    names = model_names()
    if name not in names:
        near = difflib.get_close_matches(name.lower(), names, n=3)
        guess = f"did you mean {' or '.join(f'`{n}`' for n in near)}? " if near else ""
        listed = f"`rpegc model` lists the {len(names)} that are shipped"
        raise DiagnosticError(
            [
                error(
                    "E320",
                    f"unknown model `{name}`",
                    "models",
                    help=f"{guess}{listed}; or give the path of a Hugging Face config (`./config.json`)",
                )
            ]
        )
    return msgspec.json.decode((resources.files("rpegc.models") / f"{name}.json").read_bytes(), type=Facts)


def load_model(name: str, head: Head, directory: Path | None = None) -> ModelSpec:
    """The model called `name` with `head`: a shipped short name, or the path (it contains a slash or ends in
    `.json`) of a `config.json`, or of a folder that holds one, relative to `directory` (default: the working
    directory).

    Raises DiagnosticError E320 (no such model or file), E321 (a family that is not understood) or E322 (a
    malformed config).
    """
    if "/" not in name and not name.endswith(".json"):
        return load_facts(name).model(head)
    path = (directory or Path()) / name
    if path.is_dir():
        path, name = path / "config.json", f"{name.rstrip('/')}/config.json"
    try:
        data = path.read_bytes()
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        raise DiagnosticError(
            [error("E320", f"cannot read model config `{name}`: {reason}", "models")]
        ) from exc
    return import_config(decode_config(data, name), head, name)
