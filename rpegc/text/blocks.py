"""Tokens to values, lists and blocks, with the comments around their items: the lower half of the parser.

Recovery: a broken entry is skipped to the next entry of its block. Comments inside an item that belong to
none of its parts move in front of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from ir_schema.diagnostics import Label, Span
from rpegc.text import tree
from rpegc.text.findings import finding
from rpegc.text.grammar import SHAPES
from rpegc.text.lexer import Token, tokenize

MAX_DEPTH = 30

Parsed = TypeVar("Parsed")


class SyntaxFault(Exception):
    """An error was reported; whoever can resume does."""


class BlockParser:
    """State of one parse: the position, the findings, and comments that no item has claimed yet."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens, self.problems = tokenize(source)
        self.at = 0
        self.depth = 0
        self.loose: list[str] = []
        self.trailing = ""

    # tokens

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

    def next_is(self, text: str, ahead: int = 0) -> bool:
        """Whether a punctuation mark or bare word comes next (or `ahead` tokens later)."""
        token = self.tokens[min(self.at + ahead, len(self.tokens) - 1)]
        return token.kind in ("punctuation", "word") and token.text == text

    def advance(self) -> Token:
        """Consume the next token; its comments become loose unless an item takes them."""
        token = self.token
        self.loose += [line for line in (self.trailing, *token.leading) if line]
        self.trailing = token.trailing
        if token.kind != "end":
            self.at += 1
        return token

    def fail(self, expected: str, help: str = "") -> NoReturn:
        """Report that something else was expected here, unless a stray character just before explains it."""
        token = self.token
        before = len(self.source[: token.span.start].rstrip())
        stray = (label.span for found in self.problems if found.code == "E003" for label in found.labels)
        if any(span is not None and span.end == before for span in stray):
            raise SyntaxFault
        found = "the end of the file" if token.kind == "end" else f"`{token.text}`"
        if token.kind == "string":
            found = "a string"
        self.problems.append(finding("E004", f"expected {expected}, found {found}", token.span, help=help))
        raise SyntaxFault

    def expect(self, mark: str) -> Token:
        """Consume the punctuation mark `mark`."""
        if not (self.token.kind == "punctuation" and self.token.text == mark):
            self.fail(f"`{mark}`")
        return self.advance()

    def word(self, what: str = "a name") -> tree.Word:
        """Consume a name, bare or quoted."""
        if self.token.kind not in ("word", "string") or self.starts_statement():
            self.fail(what)
        token = self.advance()
        return tree.Word(token.text, span=token.span)

    def starts_statement(self) -> bool:
        """Whether a line that looks like a statement starts here."""
        token, following = self.token, self.tokens[min(self.at + 1, len(self.tokens) - 1)]
        if not (token.first and token.kind == "word" and token.text in SHAPES):
            return False
        return following.kind in ("word", "string") or following.text == "{"

    # comments

    def begin(self) -> tuple[list[str], list[str]]:
        """Start an item: keep what belongs to its surroundings and take the comments in front of it."""
        if self.trailing:
            self.loose.append(self.trailing)
            self.trailing = ""
        outer, self.loose = self.loose, []
        leading = list(self.token.leading)
        self.token.leading = ()
        return outer, leading

    def finish(self, begun: tuple[list[str], list[str]], first: bool) -> tree.Trivia:
        """End an item: its comments, with loose ones moved in front. `first` in a block has no blank line."""
        outer, leading = begun
        leading += self.loose
        if first:
            leading = _without_edges(leading, end=False)
        trivia = tree.Trivia(tuple(leading), self.trailing)
        self.loose, self.trailing = outer, ""
        return trivia

    def closing_comments(self, first: bool) -> tuple[str, ...]:
        """The comments before the closing bracket that comes next; none of its items has them."""
        lines = list(self.token.leading)
        self.token.leading = ()
        return tuple(_without_edges(lines, start=first))

    # blocks and values

    def block(self) -> tree.Block:
        """{ key = value, ... }"""
        opening = self.expect("{")
        spread = self.token.first
        entries = tuple(self.items("}", opening, self.entry))
        dangling = self.closing_comments(first=not entries)
        end = self.close("}", opening)
        return tree.Block(entries, dangling, spread, span=Span(start=opening.span.start, end=end))

    def list(self) -> tree.List:
        """[ value, ... ]"""
        opening = self.expect("[")
        elements = tuple(self.items("]", opening, self.element))
        dangling = self.closing_comments(first=not elements)
        end = self.close("]", opening)
        return tree.List(elements, dangling, span=Span(start=opening.span.start, end=end))

    def items(self, end: str, opening: Token, rule: Callable[[bool], Parsed]) -> Iterator[Parsed]:
        """Items up to the closing bracket `end`, each followed by a comma or a new line."""
        first = True
        while not self.next_is(end):
            self.refuse_unclosed(end, opening)
            start = self.at
            outer = self.loose
            try:
                yield rule(first)
                first = False
            except SyntaxFault:
                self.loose, self.trailing = outer, ""
                self.skip_item(start, end)

    def refuse_unclosed(self, end: str, opening: Token) -> None:
        """Report a bracket that is still open where the file ends or the next statement starts."""
        if self.token.kind == "end" or self.starts_statement():
            self.unclosed(end, opening)

    def skip_item(self, start: int, end: str) -> None:
        """Go to the next item of the block or list, or to its end."""
        if self.problems[-1].code == "E005":
            raise SyntaxFault
        depth = sum(nesting(t) for t in self.tokens[start : self.at])
        while self.token.kind != "end":
            if depth <= 0 and (self.next_is("}") or self.next_is("]")):
                if not self.next_is(end):
                    raise SyntaxFault
                return
            if self.token.first and self.at > start and self.next_is("=", 1) and depth <= 0:
                return
            if self.starts_statement():
                raise SyntaxFault
            depth += nesting(self.token)
            self.at += 1
            if (
                depth <= 0
                and self.tokens[self.at - 1].text == ","
                and self.tokens[self.at - 1].kind == "punctuation"
            ):
                return
        raise SyntaxFault

    def separate(self, end: str) -> None:
        """Consume the comma behind an item, or see that a new line or the closing bracket follows."""
        if self.next_is(","):
            self.advance()
        elif not (self.next_is(end) or (self.token.first and end == "}") or self.token.kind == "end"):
            self.fail("`,` or a new line" if end == "}" else f"`,` or `{end}`")

    def close(self, mark: str, opening: Token) -> int:
        """Consume the closing bracket of `opening`; the offset of its end."""
        if not self.next_is(mark):
            self.unclosed(mark, opening)
        return self.advance().span.end

    def unclosed(self, mark: str, opening: Token) -> NoReturn:
        """Report that the closing bracket `mark` of `opening` is missing here."""
        here = Label(span=self.token.span, text=f"`{mark}` is missing before this")
        self.problems.append(finding("E005", f"`{opening.text}` is never closed", opening.span, also=(here,)))
        raise SyntaxFault

    def entry(self, first: bool) -> tree.Entry:
        """key = value"""
        begun = self.begin()
        key = self.word("a key")
        if not self.next_is("="):
            self.fail("`=`", help=f"`{key.text}` needs a value: `{key.text} = ...`")
        self.advance()
        value = self.value()
        self.separate("}")
        span = Span(start=key.span.start, end=value.span.end)
        return tree.Entry(key, value, self.finish(begun, first), span=span)

    def element(self, first: bool) -> tree.Element:
        """One value of a list."""
        begun = self.begin()
        value = self.value()
        self.separate("]")
        return tree.Element(value, self.finish(begun, first), span=value.span)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Refuse input that would exhaust the stack."""
        self.depth += 1
        try:
            if self.depth > MAX_DEPTH:
                message = f"nested more than {MAX_DEPTH} deep"
                self.problems.append(finding("E009", message, self.token.span))
                raise SyntaxFault
            yield
        finally:
            self.depth -= 1

    def value(self) -> tree.Value:
        """Any value."""
        with self.nested():
            if self.next_is("{"):
                return self.block()
            if self.next_is("["):
                return self.list()
            if self.token.kind == "string":
                token = self.advance()
                return tree.Text(token.text, span=token.span)
            return self.sum()

    def sum(self) -> tree.Value:
        """product { (+|-) product }"""
        return self.chain(("+", "-"), lambda: self.chain(("*", "/"), self.factor))

    def chain(self, operators: tuple[str, ...], operand: Callable[[], tree.Value]) -> tree.Value:
        """A left-associative chain of binary operations."""
        left = operand()
        while self.token.kind == "punctuation" and self.token.text in operators:
            operator = self.advance().text
            right = operand()
            left = tree.Operation(operator, left, right, span=Span(start=left.span.start, end=right.span.end))
        return left

    def factor(self) -> tree.Value:
        """A number, a name, a call, a negative or a parenthesis."""
        token = self.token
        if token.kind == "number":
            self.advance()
            return tree.Number(token.text, span=token.span)
        if self.next_is("-"):
            self.advance()
            with self.nested():
                operand = self.factor()
            return tree.Negative(operand, span=Span(start=token.span.start, end=operand.span.end))
        if self.next_is("("):
            opening = self.advance()
            with self.nested():
                inner = self.sum()
            self.close(")", opening)
            return inner
        if token.kind != "word":
            self.fail("a value")
        name = self.advance()
        if not self.next_is("("):
            return tree.Name(name.text, span=name.span)
        opening = self.advance()
        argument = self.word("the name of a model")
        end = self.close(")", opening)
        function = tree.Word(name.text, span=name.span)
        return tree.Call(function, argument, span=Span(start=name.span.start, end=end))


def nesting(token: Token) -> int:
    """By how much `token` opens (1) or closes (-1) a block or list."""
    if token.kind != "punctuation":
        return 0
    return {"{": 1, "[": 1, "}": -1, "]": -1}.get(token.text, 0)


def _without_edges(lines: list[str], *, start: bool = True, end: bool = True) -> list[str]:
    """`lines` without blank lines at its start and end."""
    while start and lines and not lines[0]:
        lines = lines[1:]
    while end and lines and not lines[-1]:
        lines = lines[:-1]
    return lines
