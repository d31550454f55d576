"""Characters to tokens. Comments and blank lines ride on the tokens, so that the formatter can keep them.

Bad characters are reported and skipped: the token stream always reaches its end.
"""

import json
import re
from dataclasses import dataclass
from typing import Literal

from ir_schema.diagnostics import Diagnostic, Span
from rpegc.text.findings import finding

Kind = Literal["word", "number", "string", "punctuation", "end"]

RESERVED = frozenset({"true", "false", "none"})

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+)
    |(?P<newline>\n)
    |(?P<comment>\#[^\n]*)
    |(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*")
    |(?P<open>"(?:[^"\\\n]|\\[^\n])*\\?)
    |(?P<punctuation>->|[{}\[\](),:=+\-*/])""",
    re.VERBOSE,
)
_STRAY = re.compile(r"""[^ \t\r\n\#A-Za-z0-9_"{}\[\](),:=+\-*/]+""")


@dataclass(slots=True)
class Token:
    """A token with its text (of a string: its content), its span, and the comments around it.

    `leading` are the comment lines since the last token (`""` is a blank line), `trailing` the comment
    behind it on the same line; `first` says that it is the first token of its line.
    """

    kind: Kind
    text: str
    span: Span
    leading: tuple[str, ...] = ()
    trailing: str = ""
    first: bool = False


def is_bare(text: str) -> bool:
    """Whether `text` can be written as a name without quotes."""
    return _BARE.fullmatch(text) is not None and text not in RESERVED


def tokenize(source: str) -> tuple[list[Token], list[Diagnostic]]:
    """All tokens of `source`, ending with one of kind `end`, and E002, E003 and E008 for bad characters."""
    tokens: list[Token] = []
    problems: list[Diagnostic] = []
    leading: list[str] = []
    newlines = 0  # since the last token or comment
    fresh = True  # no token on this line yet
    at = 0

    def note_blank_line() -> None:
        if newlines > 1 and (tokens or leading):
            leading.append("")

    def add(kind: Kind, text: str, span: Span) -> None:
        nonlocal newlines, fresh
        note_blank_line()
        tokens.append(Token(kind, text, span, leading=tuple(leading), first=fresh))
        leading.clear()
        newlines, fresh = 0, False

    while at < len(source):
        match = _TOKEN.match(source, at) or _STRAY.match(source, at)
        assert match is not None, "the two patterns cover every character"
        kind, text, span = match.lastgroup, match.group(), Span(start=at, end=match.end())
        at = match.end()
        if kind == "newline":
            newlines += 1
            fresh = True
        elif kind == "comment":
            if fresh:
                note_blank_line()
                leading.append(text.rstrip())
            else:
                tokens[-1].trailing = text.rstrip()
            newlines = 0
        elif kind == "number":
            glued = _BARE.match(source, at)
            if glued:
                at = glued.end()
                span = Span(start=span.start, end=at)
                problems.append(finding("E008", f"malformed number `{text}{glued.group()}`", span))
            add("number", text, span)
        elif kind == "string":
            content, found = _content(text, span)
            problems += found
            add("string", content, span)
        elif kind == "open":
            problems.append(finding("E002", "the string does not end on this line", span))
            add("string", text[1:], span)
        elif kind == "word":
            add("word", text, span)
        elif kind == "punctuation":
            add("punctuation", text, span)
        elif kind != "space":
            problems.append(finding("E003", f"unexpected character{'s' * (len(text) > 1)} `{text}`", span))
    add("end", "", Span(start=len(source), end=len(source)))
    return tokens, problems


def _content(text: str, span: Span) -> tuple[str, list[Diagnostic]]:
    """The content of the string literal `text`."""
    try:
        content = json.loads(text, strict=False)
        content.encode()
    except ValueError:
        message = f"malformed escape in the string {text}"
        return text[1:-1], [finding("E008", message, span, help="escapes are those of JSON, such as `\\n`")]
    return content, []
