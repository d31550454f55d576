"""JSON problems as tree values with spans, so that one conversion serves text and JSON."""

import json

import msgspec

from ir_schema.diagnostics import DiagnosticError, Span
from rpegc.text import tree
from rpegc.text.blocks import MAX_DEPTH
from rpegc.text.convert import Converter
from rpegc.text.findings import finding
from rpegc.text.lexer import Token, tokenize

_WORDS = {"null": "none", "true": "true", "false": "false"}


class JsonConverter(Converter):
    """A converter that calls values what JSON calls them."""

    block, string, none = "an object", "a string", "null"


def read_json(text: str) -> tree.Value:
    """The tree value of a JSON document: objects are blocks, `null` is `none`.

    Raises DiagnosticError E010 where the text is not JSON.
    """
    data = text.encode()
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as exc:
        if "out of range" in str(exc):
            _check_syntax(text)  # numbers of any size are JSON: whoever converts them has the better message
            return _Reader(text).value()
        # msgspec: "JSON is malformed: trailing comma in object (byte 27)", or "Input data was truncated"
        message, _, digits = str(exc).removeprefix("JSON is malformed: ").rstrip(")").partition(" (byte ")
        at = len(data[: int(digits)].decode(errors="ignore")) if digits.isdigit() else len(text)
        found = finding("E010", f"not JSON: {message}", Span(start=at, end=at + 1))
        raise DiagnosticError([found]) from exc
    return _Reader(text).value()


def _check_syntax(text: str) -> None:
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as exc:
        found = finding("E010", f"not JSON: {exc.msg}", Span(start=exc.pos, end=exc.pos + 1))
        raise DiagnosticError([found]) from exc


class _Reader:
    """Walks the tokens of valid JSON; only E009 (nested too deeply) can be found."""

    def __init__(self, text: str) -> None:
        self.tokens = iter(tokenize(text)[0])
        self.depth = 0

    def value(self) -> tree.Value:
        """Any JSON value."""
        return self.value_from(next(self.tokens))

    def value_from(self, token: Token) -> tree.Value:
        """The JSON value that starts with `token`."""
        span = token.span
        if token.kind == "string":
            return tree.Text(token.text, span=span)
        if token.kind == "number":
            return tree.Number(token.text, span=span)
        if token.kind == "word":
            return tree.Name(_WORDS[token.text], span=span)
        if token.text == "-":
            operand = self.value()
            return tree.Negative(operand, span=Span(start=span.start, end=operand.span.end))
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise DiagnosticError([finding("E009", f"nested more than {MAX_DEPTH} deep", span)])
        nested = self.block(span.start) if token.text == "{" else self.list(span.start)
        self.depth -= 1
        return nested

    def block(self, start: int) -> tree.Block:
        """The rest of an object."""
        entries: list[tree.Entry] = []
        while (token := next(self.tokens)).text != "}" or token.kind == "string":
            if token.kind == "string":
                next(self.tokens)
                key = tree.Word(token.text, span=token.span)
                value = self.value()
                entries.append(tree.Entry(key, value, span=Span(start=key.span.start, end=value.span.end)))
        return tree.Block(tuple(entries), span=Span(start=start, end=token.span.end))

    def list(self, start: int) -> tree.List:
        """The rest of an array."""
        elements: list[tree.Element] = []
        while (token := next(self.tokens)).text != "]" or token.kind == "string":
            if token.text != "," or token.kind == "string":
                value = self.value_from(token)
                elements.append(tree.Element(value, span=value.span))
        return tree.List(tuple(elements), span=Span(start=start, end=token.span.end))
