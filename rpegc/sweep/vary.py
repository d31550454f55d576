"""`--vary KEY=VALUE,VALUE,…`: a place in a problem file and the values that are put there.

A key is `block.key`, or `keyword.NAME.key` for statements that have a name (`model.actor.arch`); it may go on
into nested blocks (`run.optimizer.learning_rate`). Values are values of the language. They are put into the
syntax tree, so presets are expanded after them, and the language itself finds what is wrong with them: until
then their spans are those of a text behind the end of the file, which tells them from the file's own.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from ir_schema.diagnostics import Diagnostic, Label, Span
from rpegc.failure import UsageFailure, suggestion, usage_error_at
from rpegc.text import tree
from rpegc.text.blocks import BlockParser, SyntaxFault
from rpegc.text.grammar import SHAPES

OPTION = "--vary"
BLOCKS = tuple(keyword for keyword, shape in SHAPES.items() if "block" in shape.parts)
_STEP = re.compile(r'\s*(?:"(?P<quoted>[^"]*)"|(?P<bare>[^.="]*?))\s*(?P<end>[.=]|$)')
_UNQUOTED = re.compile(r"[A-Za-z0-9_][-./]+[A-Za-z_]|[A-Za-z_][-./]+[0-9]")
"""What looks like a name that needs quotes."""


@dataclass(frozen=True)
class Choice:
    """One value of a variation and how it was written, a string without its quotes."""

    text: str
    value: tree.Value


@dataclass(frozen=True)
class Variation:
    """One `--vary`: its text, the steps of its key, and its values; spans start at `offset`."""

    text: str
    offset: int
    steps: tuple[tree.Word, ...]
    choices: tuple[Choice, ...]

    @property
    def key(self) -> str:
        """The key as messages and columns call it."""
        return ".".join(step.text for step in self.steps)

    def holds(self, span: Span) -> bool:
        """Whether `span` lies in the text of this variation."""
        return self.offset <= span.start <= self.offset + len(self.text)

    def fault(self, found: Diagnostic) -> UsageFailure:
        """`found`, whose first label points to this variation, as a fault of the command line."""
        here = [(x.text, x.span) for x in found.labels if x.span is not None and self.holds(x.span)]
        labels = tuple(Label(text=text, span=self._local(span)) for text, span in here)
        help, values = found.help, self.text.partition("=")[2]
        if not help and '"' not in values and _UNQUOTED.search(values):
            help = f"strings need quotes, and these quotes of the shell: `--vary '{self.key}=\"…\"'`"
        told = msgspec.structs.replace(found, labels=labels, help=help)
        return UsageFailure([told], source_name=OPTION, source_text=self.text)

    def refuse(self, message: str, span: Span, help: str = "") -> UsageFailure:
        """A fault of the command line at `span`."""
        source = (OPTION, self.text)
        return usage_error_at("E932", message, source=source, span=self._local(span), help=help)

    def _local(self, span: Span) -> Span:
        return Span(start=span.start - self.offset, end=min(span.end - self.offset, len(self.text)))


def read_variations(texts: Iterable[str], offset: int) -> tuple[Variation, ...]:
    """The variations that the `--vary` options in `texts` ask for; their spans begin at `offset`.

    Raises UsageFailure: E932 for a malformed key, no values or one key twice, E002 to E009 for malformed
    values.
    """
    found: list[Variation] = []
    for text in texts:
        variation = _read(text, offset)
        if variation.key in {other.key for other in found}:
            whole = Span(start=variation.steps[0].span.start, end=variation.steps[-1].span.end)
            raise variation.refuse(f"`{variation.key}` is varied twice", whole, "list all values in one")
        found.append(variation)
        offset += len(text) + 1
    return tuple(found)


def _read(text: str, offset: int) -> Variation:
    blank = Variation(text, offset, (), ())
    everything = Span(start=offset, end=offset + len(text))
    example = "for example `--vary cluster.nodes=2,4,8`"
    steps: list[tree.Word] = []
    at, end = 0, "."
    while end == ".":
        match = _STEP.match(text, at)
        if match is None:
            raise blank.refuse("malformed key", everything, example)
        kind = "quoted" if match["quoted"] is not None else "bare"
        span = Span(start=offset + match.start(kind), end=offset + match.end(kind))
        if not match[kind]:
            raise blank.refuse("expected a name in the key", span, example)
        steps.append(tree.Word(match[kind], span=span))
        at, end = match.end(), match["end"]
    if end != "=" or not text[at:].strip():
        last = Span(start=offset + len(text), end=offset + len(text) + 1)
        raise blank.refuse("no values are given", last, example)
    keyed = replace(blank, steps=tuple(steps))
    return replace(keyed, choices=_choices(keyed, at))


def _choices(variation: Variation, at: int) -> tuple[Choice, ...]:
    """The values that stand in the text from `at` on, by the language's own parser."""
    parser = BlockParser(" " * (variation.offset + at) + variation.text[at:])
    choices: list[Choice] = []
    try:
        while not choices or parser.next_is(","):
            if choices:
                parser.advance()
            start = parser.token.span.start
            value = parser.value()
            end = parser.tokens[parser.at - 1].span.end
            text = value.value if isinstance(value, tree.Text) else parser.source[start:end]
            choices.append(Choice(text, value))
        if parser.token.kind != "end":
            parser.fail("`,` or the end")
    except SyntaxFault:
        pass
    if parser.problems:
        found = parser.problems[0]
        told = found.message.replace("the end of the file", "the end")
        raise variation.fault(msgspec.structs.replace(found, message=told))
    return tuple(choices)


def place(file: tree.File, variation: Variation) -> Span:
    """Where in `file` the key of `variation` stands, or the innermost thing around it that does."""
    statement, path = _find(file, variation)
    if statement is None:
        return file.name.span
    span, block = statement.span, statement.body
    for step in path:
        entries = block.entries if isinstance(block, tree.Block) else ()
        entry = next((e for e in entries if e.key.text == step.text), None)
        if entry is None:
            break
        span, block = entry.span, entry.value if isinstance(entry.value, tree.Block) else None
    return span


def substitute(file: tree.File, variation: Variation, value: tree.Value) -> tree.File:
    """`file` with `value` at the key of `variation`, whether or not it stood there.

    Statements that stand once, and `plan` statements, are added where the file has none. Raises UsageFailure
    E932 where the key leads to no statement or not into a block.
    """
    statement, path = _find(file, variation)
    if statement is not None:
        body = _put(statement.body or tree.Block(()), path, value, variation)
        changed = tuple(replace(s, body=body) if s is statement else s for s in file.statements)
        return replace(file, statements=changed)
    words = variation.steps[1 : -len(path)]
    body = _put(tree.Block((), span=value.span), path, value, variation)
    added = tree.Statement(variation.steps[0].text, words, body, span=variation.steps[0].span)
    return replace(file, statements=(*file.statements, added))


def _find(file: tree.File, variation: Variation) -> tuple[tree.Statement | None, tuple[tree.Word, ...]]:
    """The statement that a key leads to (None: it is to be added), and the rest of the key.

    Raises UsageFailure E932 for a keyword, a name or a rest that cannot be.
    """
    keyword, *rest = variation.steps
    if keyword.text not in BLOCKS:
        help = suggestion(keyword.text, BLOCKS)
        raise variation.refuse(f"no statement `{keyword.text}` has keys to vary", keyword.span, help)
    named = SHAPES[keyword.text].parts[0] == "name"
    if len(rest) < 1 + named:
        form = f"{keyword.text}.NAME.KEY" if named else f"{keyword.text}.KEY"
        raise variation.refuse(f"`{variation.key}` is not a whole key", keyword.span, f"write `{form}=…`")
    statements = [s for s in file.statements if s.keyword == keyword.text]
    if not named:
        return (statements[0] if statements else None), tuple(rest)
    name, *path = rest
    for statement in statements:
        if statement.words[0].text == name.text:
            return statement, tuple(path)
    if keyword.text != "plan":
        help = suggestion(name.text, (s.words[0].text for s in statements))
        raise variation.refuse(f"the file has no `{keyword.text} {name.text}`", name.span, help)
    return None, tuple(path)


def _put(
    block: tree.Block, path: tuple[tree.Word, ...], value: tree.Value, variation: Variation
) -> tree.Block:
    key, *rest = path
    old = next((e for e in block.entries if e.key.text == key.text), None)
    if rest:
        inner = tree.Block((), span=key.span) if old is None else old.value
        if not isinstance(inner, tree.Block):
            raise variation.refuse(f"`{key.text}` is no block", key.span, "its value has no keys to vary")
        value = _put(inner, tuple(rest), value, variation)
    entry = tree.Entry(key, value, span=Span(start=key.span.start, end=value.span.end))
    entries = tuple(entry if e is old else e for e in block.entries)
    return replace(block, entries=entries if old is not None else (*entries, entry))
