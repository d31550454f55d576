"""Laws that hold for every tree, text and problem."""

import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_schema.diagnostics import DiagnosticError
from ir_schema.envelope import pretty
from ir_schema.problem import Problem
from passes.verify import verify
from rpegc.frontend import format_text, load
from rpegc.text import tree
from rpegc.text.lexer import tokenize
from rpegc.text.parser import parse
from rpegc.text.printer import print_file
from tests.rpegc.text.strategies import files, typed_problems
from tests.strategies import problems

ROOT = Path(__file__).parents[3]

HERE = Path()
CASES = sorted((ROOT / "tests/cases").glob("*/*.json"))
EXAMPLES = sorted((ROOT / "examples").glob("*.rpeg"))


@given(files())
@settings(max_examples=150, deadline=None)
def test_parsing_printed_trees(file: tree.File) -> None:
    text = print_file(file)
    assert parse(text) == file
    assert print_file(parse(text)) == text


@given(typed_problems())
@settings(max_examples=30, deadline=None)
def test_problems_survive_both_forms(problem: Problem) -> None:
    data = pretty(problem)
    from_json = load(data, "problem.json", HERE)
    text = format_text(data, "problem.json")
    from_text = load(text.encode(), "problem.rpeg", HERE)
    assert from_json.problem == problem
    assert from_text.problem == problem
    assert pretty(from_json.problem) == pretty(from_text.problem)
    assert format_text(text.encode(), "problem.rpeg") == text


@given(problems())
@settings(max_examples=20, deadline=None)
def test_well_formed_problems_survive_both_forms(problem: Problem) -> None:
    text = format_text(pretty(problem), "problem.json")
    assert pretty(load(text.encode(), "problem.rpeg", HERE).problem) == pretty(problem)


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_cases_survive_both_forms(path: Path) -> None:
    case = msgspec.json.decode(path.read_bytes())
    if "graph" not in case:
        pytest.skip("not a problem")
    case.pop("expected", None)
    loaded = load(msgspec.json.encode(case), path.name, HERE)
    text = format_text(pretty(loaded.problem), path.name)
    assert load(text.encode(), "case.rpeg", HERE).problem == loaded.problem


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_broken_text_is_diagnosed(data: st.DataObject) -> None:
    """Pieces cut out of, doubled in or put into a file give a tree or findings that point into it."""
    text = EXAMPLES[0].read_text()
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 40)))
    piece = data.draw(st.sampled_from(["", text[at:end] * 2, "{", "}", "[", '"', "=", ",", "#", "@", "op "]))
    broken = text[:at] + piece + text[end:]
    try:
        parse(broken)
    except DiagnosticError as exc:
        for found in exc.diagnostics:
            assert found.labels
            span = found.labels[0].span
            assert span is not None
            assert 0 <= span.start <= span.end <= len(broken)


POOL = [
    "{",
    "}",
    "[",
    "]",
    "=",
    ",",
    ":",
    "->",
    "-",
    "0",
    "3",
    "1.5",
    '"x"',
    "none",
    "true",
    "actor",
    "op",
    "X",
]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_exchanged_words_are_diagnosed(data: st.DataObject) -> None:
    """With a few tokens exchanged a file gives a problem that can be verified, or findings."""
    text = data.draw(st.sampled_from(EXAMPLES)).read_text()
    tokens = tokenize(text)[0][:-1]
    for at in sorted(
        data.draw(st.lists(st.integers(0, len(tokens) - 1), min_size=1, max_size=3)), reverse=True
    ):
        span = tokens[at].span
        text = text[: span.start] + data.draw(st.sampled_from(POOL)) + text[span.end :]
    with contextlib.suppress(DiagnosticError):
        verify(load(text.encode(), "exchanged", ROOT / "examples").problem)


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_is_read_or_diagnosed(text: str) -> None:
    for source in (text, f"rpeg 1\ngraph g {{\n{text}\n}}", f"{{{text}"):
        with contextlib.suppress(DiagnosticError):
            load(source.encode(), "any", HERE)
