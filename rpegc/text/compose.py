"""Problem to tree: the text that elaborates to exactly this problem.

What a problem leaves at its default is not written. Models are written with the trainable ones in the
order of `graph.trainable`, which is how the text form states that order.
"""

import math
import typing
from collections.abc import Iterable
from typing import Any

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.problem import Container, Options, Problem, SearchSpace, Vertex
from rpegc.text import tree

_REFERENCES = {
    Options: ("fuse",),
    SearchSpace: ("share", "fuse"),
    Container: ("weights_of",),
    Vertex: ("model", "reads", "writes"),
}


def compose(problem: Problem) -> tree.File:
    """The tree of `problem`.

    Raises DiagnosticError E158 if the problem marks what it does not define, which text cannot say.
    """
    _refuse_undefined(problem)
    statements: list[tree.Statement] = []

    def add(keyword: str, *words: str, body: tree.Block | None = None, blank: bool = False) -> None:
        trivia = tree.Trivia(("",)) if blank and statements else tree.NO_TRIVIA
        statements.append(tree.Statement(keyword, tuple(map(tree.Word, words)), body, trivia))

    if problem.about:
        add("about", problem.about)
    options = _block(problem.options)
    if problem.options.as_printed and options.get("cost_model") is None:
        # Unnamed, it would become the printed one.
        named = _entry("cost_model", _value(problem.options.cost_model))
        options = tree.Block((*options.entries, named))
    if options.entries:
        add("options", body=options)
    sizes = zip(("racks", "nodes", "gpus"), problem.device_space, strict=True)
    space = [_entry(key, _value(size)) for key, size in sizes]
    hardware = _entry("hardware", _block(problem.hardware))
    add("cluster", body=tree.Block((*space, hardware)), blank=True)
    add("workload", body=_block(problem.workload), blank=True)
    _models(problem, add)
    for i, (name, verifier) in enumerate(problem.host.items()):
        add("verifier", name, body=_block(verifier), blank=i == 0)
    graph = problem.graph
    for i, container in enumerate(graph.containers):
        add("container", container.name, body=_block(container, "name"), blank=i == 0)
    for i, vertex in enumerate(graph.vertices):
        body = _block(vertex, "name", "role")
        if vertex.name in problem.host:
            body = tree.Block((_entry("verifier", tree.reference(vertex.name)), *body.entries))
        add("op", vertex.name, vertex.role, body=body, blank=i == 0)
    for keyword, edges in (("data", graph.data_edges), ("publish", graph.publication_edges)):
        for i, edge in enumerate(edges):
            add(keyword, edge.source, edge.target, edge.container, blank=i == 0)
    if graph.inputs:
        add("input", *graph.inputs, blank=True)
    if graph.outputs:
        add("output", *graph.outputs, blank=not graph.inputs)
    for i, (name, placement) in enumerate(problem.plan.items()):
        add("plan", name, body=_block(placement), blank=i == 0)
    if problem.search is not None:
        add("search", body=_block(problem.search), blank=True)
    if problem.run is not None:
        add("run", body=_block(problem.run), blank=True)
    return tree.File(tree.Word(problem.name), tuple(statements))


def _refuse_undefined(problem: Problem) -> None:
    """E158 for names that the graph marks without defining them, and for a model marked twice."""
    graph = problem.graph
    found = []
    for i, name in enumerate(graph.trainable):
        if name not in problem.models or name in graph.trainable[:i]:
            found.append((f"graph.trainable[{i}]", f"trainable model `{name}` is unknown or named twice"))
    for name in graph.staleness:
        if name not in problem.models:
            found.append((f"graph.staleness.{name}", f"staleness of unknown model `{name}`"))
    vertices = {vertex.name for vertex in graph.vertices}
    for name in problem.host:
        if name not in vertices:
            found.append((f"host.{name}", f"verifier of unknown vertex `{name}`"))
    if found:
        raise DiagnosticError(error("E158", message, path) for path, message in found)


def _models(problem: Problem, add: Any) -> None:
    order = [name for name in problem.models if name in problem.graph.trainable]
    names: Iterable[str] = problem.models
    if order != list(problem.graph.trainable):
        names = (*problem.graph.trainable, *(n for n in problem.models if n not in order))
    for i, name in enumerate(names):
        spec = problem.models[name]
        marks = []
        if name in problem.graph.trainable:
            marks.append(_entry("trainable", tree.Name("true")))
        if name in problem.graph.staleness:
            marks.append(_entry("staleness", _value(problem.graph.staleness[name])))
        body = tree.Block((*marks, *_block(spec, "head").entries))
        add("model", name, spec.head, body=body, blank=i == 0)


def _entry(key: str, value: tree.Value) -> tree.Entry:
    return tree.Entry(tree.Word(key), value)


def _block(record: Record, *without: str) -> tree.Block:
    """The fields of `record` that differ from their defaults, but those named `without`."""
    entries = []
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        if field.name in without or (not field.required and value == _default(field)):
            continue
        bare = _is_word(field.type) or field.name in _REFERENCES.get(type(record), ())
        entries.append(_entry(field.encode_name, _value(value, bare)))
    return tree.Block(tuple(entries))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    """What an optional field has when nothing is written."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _is_word(kind: Any) -> bool:
    """Whether the strings of a field's type come from a fixed set."""
    if typing.get_origin(kind) is typing.Literal:
        return True
    return any(_is_word(argument) for argument in typing.get_args(kind))


def _value(value: Any, bare: bool = False) -> tree.Value:
    """The tree of a field's value; strings become bare names where `bare` says so."""
    if value is None:
        return tree.Name("none")
    if isinstance(value, bool):
        return tree.Name("true" if value else "false")
    if isinstance(value, int | float):
        number = tree.Number(_digits(abs(value)))
        return tree.Negative(number) if math.copysign(1, value) < 0 else number
    if isinstance(value, str):
        return tree.reference(value) if bare else tree.Text(value)
    if isinstance(value, dict):
        return tree.Block(tuple(_entry(key, _value(item, bare)) for key, item in value.items()))
    if isinstance(value, tuple):
        return tree.List(tuple(tree.Element(_value(item, bare)) for item in value))
    if isinstance(value, Record):
        return _block(value)
    raise TypeError(f"{type(value).__name__} has no text form")


def _digits(number: int | float) -> str:
    """The shortest spelling that reads back as the same number."""
    if isinstance(number, int):
        return str(number)
    plain = repr(number)
    for precision in range(17):
        mantissa, _, exponent = f"{number:.{precision}e}".partition("e")
        short = f"{mantissa}e{int(exponent)}"
        if float(short) == number and len(short) < len(plain):
            return short
    return plain
