"""Source text and the places in it: offsets to lines and columns, paths of a problem to spans."""

import bisect
from dataclasses import dataclass, field
from functools import cached_property

from ir_schema.diagnostics import Diagnostic, Label, SourceMap, Span


def locate(path: str, source_map: SourceMap) -> Span | None:
    """The span of the entity at `path`, or of the innermost known one that contains it."""
    while path:
        if path in source_map:
            return source_map[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return None


@dataclass(frozen=True)
class Source:
    """A text that was read, under the name that messages give it."""

    name: str
    text: str
    source_map: SourceMap = field(default_factory=dict)

    @classmethod
    def decode(cls, data: bytes, name: str) -> "Source":
        """The source of `data`; bytes that are not UTF-8 are shown as replacement characters."""
        return cls(name, data.decode("utf-8-sig", errors="replace"))

    @cached_property
    def starts(self) -> list[int]:
        """Offset of the start of every line."""
        return [0, *(i + 1 for i, character in enumerate(self.text) if character == "\n")]

    def line(self, number: int) -> str:
        """Line `number` (from 1) without its end."""
        end = self.starts[number] - 1 if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end].rstrip("\r")

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1, of a character offset."""
        offset = min(max(offset, 0), len(self.text))
        number = bisect.bisect_right(self.starts, offset)
        return number, offset - self.starts[number - 1] + 1

    def span_of(self, label: Label) -> Span | None:
        """Where `label` points to in this text."""
        return label.span if label.span is not None else locate(label.path, self.source_map)

    def first_position(self, diagnostic: Diagnostic) -> int:
        """Offset of the primary label, by which findings are sorted; -1 if it points nowhere."""
        span = self.span_of(diagnostic.labels[0]) if diagnostic.labels else None
        return span.start if span is not None else -1
