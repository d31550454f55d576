"""Tree to canonical text: two spaces, one statement a line, blocks on one line where they fit and the
author did not spread them.

Laws (property-tested): `parse(print(t)) == t` for every tree that the parser can return, and printing
what was parsed from printed text changes nothing.
"""

import json
from collections.abc import Sequence

from rpegc.text import tree
from rpegc.text.grammar import SHAPES, VERSION
from rpegc.text.lexer import is_bare

WIDTH = 100
INDENT = "  "
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


def print_file(file: tree.File) -> str:
    """The canonical text of `file`."""
    lines = [*file.header.leading, _trailed(f"rpeg {VERSION}", file.header), ""]
    lines += [*file.graph.leading, f"graph {_word(file.name)} {{"]
    lines += _indented(print_statements(file.statements))
    lines += _indented(file.inner)
    lines += [_trailed("}", file.graph), *file.dangling]
    return "\n".join(lines) + "\n"


def print_statements(statements: Sequence[tree.Statement]) -> list[str]:
    """The lines of `statements`."""
    lines: list[str] = []
    for statement in statements:
        lines += [*statement.trivia.leading, *_statement(statement)]
    return lines


def quoted(text: str) -> str:
    """The string literal whose content is `text`."""
    return json.dumps(text, ensure_ascii=False)


def word(text: str) -> str:
    """The name `text`, quoted where it must be."""
    return text if is_bare(text) else quoted(text)


def _statement(statement: tree.Statement) -> list[str]:
    head, signs = statement.keyword, iter(statement.words)
    for part in SHAPES[statement.keyword].parts:
        if part == "->":
            head += " ->"
        elif part == ":":
            head += " :"
        elif part == "name":
            head += " " + _word(next(signs))
        elif part == "string":
            head += " " + quoted(next(signs).text)
        elif part == "names":
            head += " " + ", ".join(map(_word, signs))
    if statement.body is None:
        return [_trailed(head, statement.trivia)]
    lines = _value(statement.body, f"{head} ", INDENT)
    return [*lines[:-1], _trailed(lines[-1], statement.trivia)]


def _value(value: tree.Value, before: str, margin: str, after: str = "") -> list[str]:
    """The lines of `value` behind `before`, on one line if that fits; `margin` is where it stands."""
    flat = _flat(value)
    if flat is not None and len(margin) + len(before) + len(flat) + len(after) <= WIDTH:
        return [before + flat + after]
    if isinstance(value, tree.Block):
        lines = [before + "{"]
        for entry in value.entries:
            body = _value(entry.value, f"{_word(entry.key)} = ", margin + INDENT)
            lines += _indented([*entry.trivia.leading, *body[:-1], _trailed(body[-1], entry.trivia)])
        return [*lines, *_indented(value.dangling), "}" + after]
    if isinstance(value, tree.List):
        lines = [before + "["]
        for element in value.elements:
            body = _value(element.value, "", margin + INDENT, after=",")
            lines += _indented([*element.trivia.leading, *body[:-1], _trailed(body[-1], element.trivia)])
        return [*lines, *_indented(value.dangling), "]" + after]
    return [before + _expression(value) + after]


def _flat(value: tree.Value) -> str | None:
    """`value` on one line; None if comments or blank lines in it forbid that, or its author spread it."""
    if isinstance(value, tree.Block):
        if value.dangling or (value.spread and value.entries):
            return None
        if any(e.trivia != tree.NO_TRIVIA for e in value.entries):
            return None
        parts = [(_word(e.key) + " = ", _flat(e.value)) for e in value.entries]
        inner = ", ".join(key + flat for key, flat in parts if flat is not None)
        return None if any(flat is None for _, flat in parts) else f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, tree.List):
        if value.dangling or any(e.trivia != tree.NO_TRIVIA for e in value.elements):
            return None
        flats = [_flat(e.value) for e in value.elements]
        return None if None in flats else f"[{', '.join(f for f in flats if f is not None)}]"
    return _expression(value)


def _expression(value: tree.Value, level: int = 0) -> str:
    """An expression in the context of an operator of precedence `level`."""
    if isinstance(value, tree.Number):
        return value.text
    if isinstance(value, tree.Text):
        return quoted(value.value)
    if isinstance(value, tree.Name):
        return value.text
    if isinstance(value, tree.Negative):
        return f"-{_expression(value.operand, 3)}"
    if isinstance(value, tree.Call):
        return f"{value.function.text}({_word(value.argument)})"
    if isinstance(value, tree.Operation):
        first, *others = tree.terms(value)
        own = _PRECEDENCE[first.operator]
        text = _operation(first, _expression(first.left, own))
        for operation in others:
            outer = _PRECEDENCE[operation.operator]
            text = _operation(operation, f"({text})" if own < outer else text)
            own = outer
        return f"({text})" if own < level else text
    raise TypeError(f"{type(value).__name__} is not an expression")


def _operation(operation: tree.Operation, left: str) -> str:
    """`operation` with its left side as printed."""
    return f"{left} {operation.operator} {_expression(operation.right, _PRECEDENCE[operation.operator] + 1)}"


def _word(written: tree.Word) -> str:
    return word(written.text)


def _trailed(line: str, trivia: tree.Trivia) -> str:
    return f"{line}  {trivia.trailing}" if trivia.trailing else line


def _indented(lines: Sequence[str]) -> list[str]:
    return [INDENT + line if line else line for line in lines]
