"""Tokens to tree: recursive descent that carries on after an error, so that one run finds several.

Recovery: a broken statement is skipped to the next line that starts with a keyword.
"""

from collections.abc import Callable, Iterator

import msgspec

from ir_schema.diagnostics import Diagnostic, DiagnosticError, Span
from rpegc.failure import suggestion
from rpegc.text import tree
from rpegc.text.blocks import BlockParser, Parsed, SyntaxFault, nesting
from rpegc.text.findings import finding
from rpegc.text.grammar import SHAPES, VERSION, Part

MAX_ERRORS = 20


def parse(source: str) -> tree.File:
    """The tree of a file. Raises DiagnosticError with every syntax error found (E002 to E009)."""
    return _complete(source, Parser.file)


def parse_statements(source: str) -> tuple[tree.Statement, ...]:
    """The statements of a fragment without header and graph. Raises like `parse`."""
    return _complete(source, lambda parser: parser.fragment())


def _complete(source: str, rule: "Callable[[Parser], Parsed]") -> Parsed:
    parser = Parser(source)
    try:
        result = rule(parser)
    except SyntaxFault:
        result = None
    if parser.problems or result is None:
        raise DiagnosticError(_worth_telling(parser.problems)[:MAX_ERRORS])
    return result


def _worth_telling(problems: list[Diagnostic]) -> list[Diagnostic]:
    """`problems` in the order of the text. A string that swallowed the rest of its line explains whatever
    bracket is missing."""
    swallowed = any(found.code == "E002" for found in problems)
    told = [found for found in problems if not (swallowed and found.code == "E005")]
    return sorted(told, key=lambda found: found.labels[0].span.start if found.labels[0].span else 0)


class Parser(BlockParser):
    """Parses files and fragments of files."""

    def file(self) -> tree.File:
        """rpeg 1 graph name { statements }"""
        begun = self.begin()
        start = self.token
        if self.next_is("rpeg"):
            self.advance()
        version = self.token
        if start.text != "rpeg" or version.kind != "number":
            self.problems.append(finding("E007", f"the file must start with `rpeg {VERSION}`", start.span))
        elif version.text != VERSION:
            message = f"this release reads `rpeg {VERSION}`, not `rpeg {version.text}`"
            self.problems.append(finding("E007", message, version.span))
        if version.kind == "number":
            self.advance()
        header = self.finish(begun, first=True)
        begun = self.begin()
        if not self.next_is("graph"):
            self.fail("`graph NAME {`")
        self.advance()
        name = self.word("the name of the graph")
        opening = self.expect("{")
        statements = tuple(self.statements())
        inner = self.closing_comments(first=not statements)
        self.close("}", opening)
        graph = self.finish(begun, first=True)
        dangling = self.closing_comments(first=False)
        if self.token.kind != "end":
            self.fail("the end of the file", help="a file holds one graph")
        return tree.File(name, statements, header, graph, inner, dangling)

    def fragment(self) -> tuple[tree.Statement, ...]:
        """Statements up to the end of the text."""
        statements = tuple(self.statements())
        if self.token.kind != "end":
            self.fail("a statement")
        return statements

    def statements(self) -> Iterator[tree.Statement]:
        """Statements up to a closing brace or the end of the file."""
        first = True
        while self.token.kind != "end" and not self.next_is("}"):
            start = self.at
            outer = self.loose
            try:
                yield self.statement(first)
                first = False
            except SyntaxFault:
                self.loose, self.trailing = outer, ""
                self.skip_statement(start)

    def skip_statement(self, start: int) -> None:
        """Go to the next line that starts with a keyword, or to the brace that closes the graph."""
        self.at = max(self.at, start)
        if self.at == start and self.token.kind != "end":
            self.at += 1
        depth = sum(nesting(t) for t in self.tokens[start : self.at])
        while self.token.kind != "end":
            if self.starts_statement():
                return
            if self.next_is("}") and depth <= 0:
                return
            depth += nesting(self.token)
            self.at += 1

    def statement(self, first: bool) -> tree.Statement:
        """keyword words block, by the keyword's shape."""
        begun = self.begin()
        start = self.token
        shape = SHAPES.get(start.text) if start.kind == "word" else None
        if shape is None:
            if start.kind != "word":
                self.fail("a statement", help=f"statements start with one of {', '.join(SHAPES)}")
            help = suggestion(start.text, SHAPES)
            self.problems.append(finding("E006", f"unknown statement `{start.text}`", start.span, help=help))
            raise SyntaxFault
        self.advance()
        words: list[tree.Word] = []
        body = None
        end = start.span.end
        try:
            for part in shape.parts:
                if part == "block":
                    body = self.block()
                else:
                    words += self.part(part)
                    end = self.tokens[self.at - 1].span.end
        except SyntaxFault:
            last = self.problems[-1]
            if last.code == "E004" and not last.help:
                self.problems[-1] = msgspec.structs.replace(last, help=f"for example `{shape.example}`")
            raise
        span = Span(start=start.span.start, end=end)
        return tree.Statement(start.text, tuple(words), body, self.finish(begun, first), span=span)

    def part(self, part: Part) -> list[tree.Word]:
        """One part of a statement's head."""
        if part in ("->", ":"):
            self.expect(part)
            return []
        if part == "string" and self.token.kind != "string":
            self.fail("a string")
        words = [self.word()]
        while part == "names" and self.next_is(","):
            self.advance()
            words.append(self.word())
        return words
