"""What the parser accepts, and how it goes on after errors."""

import pytest

from ir_schema.diagnostics import DiagnosticError
from rpegc.text.blocks import MAX_DEPTH
from rpegc.text.convert import Converter
from rpegc.text.parser import parse
from rpegc.text.printer import print_file
from rpegc.text.sections import NOTHING


def errors(source: str) -> list[tuple[str, str]]:
    """(code, labelled text) of every error in `source`."""
    with pytest.raises(DiagnosticError) as caught:
        parse(source)
    found = []
    for d in caught.value.diagnostics:
        span = d.labels[0].span
        assert span is not None
        found.append((d.code, source[span.start : span.end]))
    return found


def in_graph(body: str) -> str:
    return f"rpeg 1\ngraph g {{\n{body}\n}}\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", [("E007", ""), ("E004", "")]),
        ("rpeg 2\ngraph g {}", [("E007", "2")]),
        ("graph g {}", [("E007", "graph")]),
        ("rpeg 1\ngraph g {} graph h {}", [("E004", "graph")]),
        ("rpeg 1\ngraph g {", [("E005", "{")]),
        (in_graph("worklod { prompts = 3 }"), [("E006", "worklod")]),
        (in_graph("data a b : Y"), [("E004", "b")]),
        (in_graph("3"), [("E004", "3")]),
        (in_graph('about "never'), [("E002", '"never')]),
        (in_graph("workload { prompts = 4k }"), [("E008", "4k")]),
        (in_graph('about "\\x"'), [("E008", '"\\x"')]),
        (in_graph("run { a = 1 b = 2 }"), [("E004", "b")]),
        (in_graph("run { a = [1 2] }"), [("E004", "2")]),
        (in_graph("run { a = $ 1 }"), [("E003", "$")]),
        (in_graph("run { a = " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + " }"), [("E009", "[")]),
        (in_graph("run { a = " + "(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH + " }"), [("E009", "1")]),
        (in_graph("run { a = (1 + 2 }"), [("E005", "(")]),
    ],
)
def test_errors_point_at_the_fault(source: str, expected: list[tuple[str, str]]) -> None:
    assert errors(source) == expected


def test_several_errors_in_one_run() -> None:
    source = in_graph(
        """
  workload { prompts 3, rollouts = , prompt_length = 1 }
  clustr { }
  data a -> : Y
  model m : lm { layers = 1 }
  op x inference { }
"""
    )
    assert [code for code, _ in errors(source)] == ["E004", "E004", "E006", "E004", "E004"]


def test_an_unclosed_block_ends_where_the_next_statement_starts() -> None:
    source = in_graph("  workload { prompts = 3\n  cluster { racks = 1 }\n  dta a -> b : c")
    assert errors(source) == [("E005", "{"), ("E006", "dta")]


def test_keywords_are_keys_and_names_elsewhere() -> None:
    file = parse(in_graph("data data -> plan : run\nrun {\n  plan = 1\n  run = [\n    search,\n    op ] }"))
    assert [w.text for w in file.statements[0].words] == ["data", "plan", "run"]
    body = file.statements[1].body
    assert body is not None
    assert [e.key.text for e in body.entries] == ["plan", "run"]


def test_no_more_than_twenty_errors() -> None:
    assert len(errors(in_graph("data a\n" * 50))) == 20


def test_a_flat_expression_may_be_long() -> None:
    body = "  container c {\n    elements = 1" + " + 2 * 3 - 1" * 5000 + "\n  }"
    source = in_graph(body).replace("\n", "\n\n", 1)
    file = parse(source)
    assert print_file(file) == source
    (entry,) = (entry for statement in file.statements for entry in (statement.body or NOTHING).entries)
    assert Converter().number(entry.value) == 1 + 5 * 5000
