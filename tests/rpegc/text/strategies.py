"""Random trees in the form the parser returns, and random records of any type."""

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from ir_schema.base import Record
from ir_schema.problem import Graph, Problem
from rpegc.text import tree
from rpegc.text.grammar import SHAPES

bare = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True) | st.sampled_from(
    ["true", "none", "data", "search", "run"]
)
words = st.builds(tree.Word, bare | st.text(max_size=6))
comments = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=10).map(
    lambda text: f"#{text}".rstrip()
)
numbers = st.from_regex(r"[0-9]{1,3}(_[0-9]{3})?(\.[0-9]{1,2})?(e-?[0-9])?", fullmatch=True)


@st.composite
def comment_lines(draw: st.DrawFn, *, start: bool, end: bool) -> tuple[str, ...]:
    """Comment and blank lines, without blank ones at the start or the end unless allowed."""
    if draw(st.integers(0, 3)):
        return ("",) if start and end and draw(st.booleans()) else ()
    lines: list[str] = []
    for comment in draw(st.lists(comments, min_size=1, max_size=2)):
        if draw(st.booleans()) and (lines or start):
            lines.append("")
        lines.append(comment)
    if end and draw(st.booleans()):
        lines.append("")
    return tuple(lines)


@st.composite
def trivia(draw: st.DrawFn, *, first: bool) -> tree.Trivia:
    trailing = draw(comments) if draw(st.integers(0, 5)) == 0 else ""
    return tree.Trivia(draw(comment_lines(start=not first, end=True)), trailing)


expressions = st.recursive(
    st.builds(tree.Number, numbers)
    | st.builds(tree.Name, bare)
    | st.builds(tree.Call, st.builds(tree.Word, bare), words),
    lambda inner: (
        st.builds(tree.Negative, inner) | st.builds(tree.Operation, st.sampled_from("+-*/"), inner, inner)
    ),
    max_leaves=6,
)


@st.composite
def lists(draw: st.DrawFn, values: st.SearchStrategy[tree.Value]) -> tree.List:
    items = draw(st.lists(values, max_size=3))
    elements = tuple(tree.Element(v, draw(trivia(first=i == 0))) for i, v in enumerate(items))
    return tree.List(elements, draw(comment_lines(start=bool(items), end=False)))


@st.composite
def blocks(draw: st.DrawFn, values: st.SearchStrategy[tree.Value]) -> tree.Block:
    items = draw(st.lists(values, max_size=3))
    entries = tuple(tree.Entry(draw(words), v, draw(trivia(first=i == 0))) for i, v in enumerate(items))
    return tree.Block(entries, draw(comment_lines(start=bool(items), end=False)), draw(st.booleans()))


values = st.recursive(
    expressions | st.builds(tree.Text, st.text(max_size=8)),
    lambda inner: lists(inner) | blocks(inner),
    max_leaves=8,
)


@st.composite
def statements(draw: st.DrawFn, first: bool) -> tree.Statement:
    keyword = draw(st.sampled_from(sorted(SHAPES)))
    parts = SHAPES[keyword].parts
    count = sum(p in ("name", "string") for p in parts) + ("names" in parts) * draw(st.integers(1, 3))
    names = tuple(draw(words) for _ in range(count))
    body = draw(blocks(values)) if "block" in parts else None
    return tree.Statement(keyword, names, body, draw(trivia(first=first)))


@st.composite
def files(draw: st.DrawFn) -> tree.File:
    count = draw(st.integers(0, 4))
    return tree.File(
        draw(words),
        tuple(draw(statements(i == 0)) for i in range(count)),
        header=draw(trivia(first=True)),
        graph=draw(trivia(first=True)),
        inner=draw(comment_lines(start=count > 0, end=False)),
        dangling=draw(comment_lines(start=True, end=False)),
    )


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type, sensible or not."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([st.none() if a is type(None) else of_type(a) for a in arguments])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, arguments))
    if origin is dict:
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, Record):
        return records(kind)
    return {
        bool: st.booleans(),
        int: st.integers(-(2**63) + 1, 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: bare | st.text(max_size=6),
    }[kind]


@st.composite
def records(draw: st.DrawFn, kind: type[Record]) -> Record:
    """A record with required fields and some of the others."""
    given = {}
    for field in msgspec.structs.fields(kind):
        if field.required or draw(st.integers(0, 2)) == 0:
            given[field.name] = draw(of_type(field.type))
    return kind(**given)


@st.composite
def typed_problems(draw: st.DrawFn) -> Problem:
    """A problem whose types are right and whose marks are defined, and nothing else."""
    problem = draw(records(Problem))
    assert isinstance(problem, Problem)
    graph: Graph = problem.graph
    models = st.sampled_from(sorted(problem.models)) if problem.models else st.nothing()
    vertices = [v.name for v in graph.vertices]
    trainable = draw(st.lists(models, unique=True, max_size=len(problem.models))) if problem.models else []
    staleness = draw(st.dictionaries(models, st.integers(-3, 5), max_size=2)) if problem.models else {}
    host = dict(zip(vertices, problem.host.values(), strict=False))
    graph = msgspec.structs.replace(graph, trainable=tuple(trainable), staleness=staleness)
    return msgspec.structs.replace(problem, graph=graph, host=host)
