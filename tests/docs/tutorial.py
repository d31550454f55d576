"""A tutorial that can be executed: Markdown with files to write and commands with their output.

A fenced block "```rpeg NAME" is the content of file NAME. A block "```console" holds commands, each after
`$ ` (`> ` continues one), and below each what it prints on both streams. `…` in a line of output stands for
any text, for what depends on the clock or the machine; everything else must be printed exactly.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
ANY = "…"


@dataclass(frozen=True)
class File:
    """Content to be written to file `name`."""

    name: str
    content: str


@dataclass(frozen=True)
class Command:
    """A shell command, the lines that it is said to print, and where those stand in the tutorial."""

    text: str
    output: tuple[str, ...]
    start: int
    end: int


def parts(text: str) -> Iterator[File | Command]:
    """The files and commands of a tutorial in their order. Raises ValueError for another kind of block."""
    for block in FENCE.finditer(text):
        kind, _, name = block["info"].partition(" ")
        if kind == "console":
            yield from _commands(block["body"], block.start("body"))
        elif kind == "rpeg" and name:
            yield File(name, block["body"])
        elif kind:
            raise ValueError(f"a block of kind `{block['info']}` is neither a file nor commands")


def _commands(body: str, offset: int) -> Iterator[Command]:
    lines = body.splitlines(keepends=True)
    if lines and not lines[0].startswith("$ "):
        raise ValueError(f"a console block starts with a command, not with {lines[0]!r}")
    at = 0
    while at < len(lines):
        words = [lines[at][2:]]
        offset += len(lines[at])
        at += 1
        while at < len(lines) and lines[at].startswith("> "):
            words.append(lines[at][2:])
            offset += len(lines[at])
            at += 1
        start, output = offset, []
        while at < len(lines) and not lines[at].startswith("$ "):
            output.append(lines[at].rstrip("\n"))
            offset += len(lines[at])
            at += 1
        yield Command("".join(words), tuple(output), start, offset)


def matches(expected: str, line: str) -> bool:
    """Whether a printed line is the expected one."""
    return re.fullmatch(".*".join(map(re.escape, expected.split(ANY))), line) is not None


def same(expected: tuple[str, ...], printed: list[str]) -> bool:
    """Whether everything printed is expected, and the other way round."""
    return len(expected) == len(printed) and all(map(matches, expected, printed))


def blessed(expected: tuple[str, ...], printed: list[str]) -> list[str]:
    """What to write instead of `expected`: what was printed, with the elisions that still fit."""
    elided = [line for line in expected if ANY in line]
    return [next((e for e in elided if matches(e, line)), line) for line in printed]


def rewritten(text: str, execute: Callable[[File | Command], list[str]]) -> str:
    """The tutorial with the output that its commands print now."""
    found, at = [], 0
    for part in parts(text):
        printed = execute(part)
        if isinstance(part, Command):
            lines = list(part.output) if same(part.output, printed) else blessed(part.output, printed)
            found += [text[at : part.start], *(f"{line}\n" for line in lines)]
            at = part.end
    return "".join([*found, text[at:]])
