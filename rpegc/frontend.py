"""From bytes to a problem: text, bare JSON problems and problem stage files, told apart by content.

Whatever the form, the source map leads from paths of the problem to spans of the text that was read, so
that the findings of later passes point into the user's file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ir_schema.base import Head
from ir_schema.diagnostics import Diagnostic, DiagnosticError, SourceMap, Span, error
from ir_schema.envelope import decode_stage, pretty
from ir_schema.hardware import Hardware
from ir_schema.model import ModelSpec
from ir_schema.problem import Problem
from rpegc import presets
from rpegc.diagnostics.source import Source, locate
from rpegc.text.compose import compose
from rpegc.text.convert import Rejected
from rpegc.text.elaborate import elaborate
from rpegc.text.findings import finding
from rpegc.text.json_values import JsonConverter, read_json
from rpegc.text.parser import parse
from rpegc.text.printer import print_file
from rpegc.text.sections import Resolver, final_options
from rpegc.text.tree import Block, File

LEGEND = "fields"
"""Key of a JSON problem that explains the others to a reader; it is not part of the problem."""


@dataclass(frozen=True)
class Loaded:
    """A problem with the text it came from; `tree` is None if that was JSON.

    `parent` is the id of the stage file that was read, if it was one.
    """

    problem: Problem
    source: Source
    tree: File | None = None
    parent: str | None = None

    @property
    def source_map(self) -> SourceMap:
        """Paths of the problem to spans of `text`."""
        return self.source.source_map

    @property
    def text(self) -> str:
        """The text that was read."""
        return self.source.text


def load(data: bytes, filename: str, directory: Path, options: Mapping[str, Any] | None = None) -> Loaded:
    """The problem in `data`, which messages call `filename`.

    `directory` is what paths in the file are relative to; `options` override fields of the problem's
    options (steps, split, fuse, as_printed, cost_model), before container sizes are computed from them.
    Raises DiagnosticError; its spans point into `Source.decode(data, filename)`.
    """
    text = decode(data)
    if _is_json(text):
        return _load_json(data, text, filename, options or {})
    file = parse(text)
    problem, source_map = build(file, directory, options)
    return Loaded(problem, Source(filename, text, source_map), file)


def build(file: File, directory: Path, options: Mapping[str, Any] | None = None) -> tuple[Problem, SourceMap]:
    """The problem that a tree describes, its presets expanded, and where its parts stand.

    `directory` and `options` are those of `load`. Raises DiagnosticError, its labels with spans.
    """
    expanded, found = presets.expand(file, as_printed=(options or {}).get("as_printed"))
    return elaborate(expanded, resolver(directory), options, found)


def format_text(data: bytes, filename: str, *, expand: bool = False) -> str:
    """The canonical text of a problem in any form; `expand` writes presets out.

    Text needs only to be well-formed, not to name things that exist. Raises DiagnosticError.
    """
    text = decode(data)
    if _is_json(text):
        loaded = _load_json(data, text, filename, {})
        try:
            return print_file(compose(loaded.problem))
        except DiagnosticError as exc:
            raise DiagnosticError(_placed(d, loaded.source_map) for d in exc.diagnostics) from exc
    file = parse(text)
    if expand:
        file, found = presets.expand(file)
        if found:
            raise DiagnosticError(found)
    return print_file(file)


def _placed(found: Diagnostic, source_map: SourceMap) -> Diagnostic:
    """`found` with the spans of its labels, for a caller that has no source map."""
    labels = (msgspec.structs.replace(x, span=x.span or locate(x.path, source_map)) for x in found.labels)
    return msgspec.structs.replace(found, labels=tuple(labels))


def format_json(data: bytes, filename: str, directory: Path) -> bytes:
    """The JSON form (interchange) of a problem in any form. Raises DiagnosticError."""
    return pretty(load(data, filename, directory).problem)


def resolver(directory: Path) -> Resolver:
    """Names looked up among what ships with the compiler; paths are relative to `directory`."""

    def model(name: str, head: Head) -> ModelSpec:
        from rpegc.models import load_model

        return load_model(name, head, directory)

    def hardware(name: str) -> Hardware:
        from calib.hardware import load_hardware

        return load_hardware(name, directory)

    def parameters(problem: Problem, name: str) -> int:
        from passes.cost import model_for

        return model_for(problem).parameters(name)

    return Resolver(model, hardware, parameters)


def decode(data: bytes) -> str:
    """The text of a file. Raises DiagnosticError E001 at the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        at = len(data[: exc.start].decode("utf-8-sig"))
        found = finding("E001", "the file is not UTF-8 text", Span(start=at, end=at + 1))
        raise DiagnosticError([found]) from exc


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _load_json(data: bytes, text: str, filename: str, options: Mapping[str, Any]) -> Loaded:
    value = read_json(text)
    assert isinstance(value, Block), "it starts with a brace"
    parent = None
    if value.get("schema") is not None and isinstance(value.get("body"), Block):
        envelope, stage = decode_stage(data)
        if not isinstance(stage, Problem):
            message = f"`{envelope.schema}` is a later stage than a problem"
            raise DiagnosticError([error("E913", message, help="resume from it with `--from FILE`")])
        parent = envelope.id
        body = value.get("body")
        assert isinstance(body, Block)
        value = body
    told = tuple(entry for entry in value.entries if entry.key.text != LEGEND)
    converter = JsonConverter()
    try:
        problem = converter.record(Block(told, span=value.span), Problem, "", value.span)
    except Rejected:
        source = Source(filename, text)
        raise DiagnosticError(sorted(converter.problems, key=source.first_position)) from None
    named = "options.cost_model" in converter.source_map
    problem = msgspec.structs.replace(problem, options=final_options(problem.options, options, named))
    return Loaded(problem, Source(filename, text, converter.source_map), parent=parent)
