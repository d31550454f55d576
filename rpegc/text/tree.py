"""The syntax tree of a `.rpeg` file: what was written, with comments, and where.

Two trees are equal when they say the same with the same comments: spans do not count. Lists and blocks
keep the order of the file. JSON problems are read into the same values, so that one conversion serves
both forms.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from ir_schema.diagnostics import Span
from rpegc.text.lexer import is_bare

NOWHERE = Span(start=0, end=0)


@dataclass(frozen=True, slots=True)
class Located:
    """Anything that stands somewhere in the source."""

    span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Trivia:
    """What surrounds an item without meaning anything: comment lines before it (`""` is a blank line)
    and the comment after it on its last line. Comments include their `#`."""

    leading: tuple[str, ...] = ()
    trailing: str = ""


NO_TRIVIA = Trivia()


@dataclass(frozen=True, slots=True)
class Word(Located):
    """A name in a fixed place (of a statement, a key); quotes are a matter of spelling, not meaning."""

    text: str


@dataclass(frozen=True, slots=True)
class Number(Located):
    """A number as it was spelt, without sign."""

    text: str


@dataclass(frozen=True, slots=True)
class Text(Located):
    """A quoted string; `value` is its content."""

    value: str


@dataclass(frozen=True, slots=True)
class Name(Located):
    """A bare word used as a value: a reference, one of a set of words, `true`, `false` or `none`."""

    text: str


@dataclass(frozen=True, slots=True)
class Negative(Located):
    """`- operand`."""

    operand: "Value"


@dataclass(frozen=True, slots=True)
class Operation(Located):
    """`left operator right` with one of `+ - * /`."""

    operator: str
    left: "Value"
    right: "Value"


@dataclass(frozen=True, slots=True)
class Call(Located):
    """`function(argument)`."""

    function: Word
    argument: Word


@dataclass(frozen=True, slots=True)
class Element(Located):
    """One element of a list."""

    value: "Value"
    trivia: Trivia = NO_TRIVIA


@dataclass(frozen=True, slots=True)
class List(Located):
    """`[a, b]`; `dangling` are the comments before the closing bracket."""

    elements: tuple[Element, ...]
    dangling: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry(Located):
    """`key = value`."""

    key: Word
    value: "Value"
    trivia: Trivia = NO_TRIVIA


@dataclass(frozen=True, slots=True)
class Block(Located):
    """`{ key = value, ... }`; `dangling` are the comments before the closing brace.

    `spread` says that the author began a new line for the first entry; like a span it is layout, not meaning.
    """

    entries: tuple[Entry, ...]
    dangling: tuple[str, ...] = ()
    spread: bool = field(default=False, compare=False)

    def get(self, key: str) -> "Value | None":
        """The value of the first entry named `key`."""
        return next((e.value for e in self.entries if e.key.text == key), None)


def terms(operation: Operation) -> Iterator[Operation]:
    """The operations of a chain such as `a + b - c`, the first one first; each is `left` of the next.

    A chain may be long, so it is walked in a loop: what is as deep as it is nested may recurse.
    """
    chain = [operation]
    while isinstance(chain[-1].left, Operation):
        chain.append(chain[-1].left)
    return reversed(chain)


Value = Number | Text | Name | Negative | Operation | Call | List | Block


@dataclass(frozen=True, slots=True)
class Statement(Located):
    """`keyword words... { body }`; the keyword's shape says which words and whether there is a body.

    The span is that of the head, without the body.
    """

    keyword: str
    words: tuple[Word, ...] = ()
    body: Block | None = None
    trivia: Trivia = NO_TRIVIA


@dataclass(frozen=True, slots=True)
class File(Located):
    """A whole file: the header `rpeg 1`, then one `graph NAME { statements }`."""

    name: Word
    statements: tuple[Statement, ...]
    header: Trivia = NO_TRIVIA
    graph: Trivia = NO_TRIVIA
    inner: tuple[str, ...] = ()
    dangling: tuple[str, ...] = ()


Tree = TypeVar("Tree")


def reference(text: str) -> Name | Text:
    """The value that refers to the entity named `text`."""
    return Name(text) if is_bare(text) else Text(text)


def moved(node: Tree, span: Span) -> Tree:
    """`node` with every span in it replaced by `span` (for text that was generated)."""

    def visit(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(visit(v) for v in value)
        if not is_dataclass(value) or isinstance(value, type):
            return value
        children = {f.name: visit(getattr(value, f.name)) for f in fields(value) if f.name != "span"}
        return type(value)(**children, **({"span": span} if isinstance(value, Located) else {}))

    result: Tree = visit(node)
    return result
