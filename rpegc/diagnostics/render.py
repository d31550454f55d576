"""Renderers of diagnostics: one finding in, text out. They know sources, not passes or terminals."""

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator

from ir_schema.diagnostics import Diagnostic, Span
from rpegc.diagnostics.source import Source

TAB = 4
WIDEST, CONTEXT = 140, 40
LONGEST = 1000
_COLOURS = {"error": "1;31", "warning": "1;33", "note": "1;36"}
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # controls, formats, surrogates, separators
_BLUE, _BOLD = "1;34", "1"


def render(
    diagnostics: Iterable[Diagnostic], source: Source | None = None, format: str = "full", color: bool = False
) -> str:
    """All findings in one of `FORMATS`, ending with a newline; an empty string if there are none.

    `source` is what labels point into; without it, or where a label points nowhere, only words are shown.
    `color` (ANSI escapes) matters to `full` and `concise`.
    """
    return "".join(FORMATS[format](found, source, color) + "\n" for found in diagnostics)


def full(found: Diagnostic, source: Source | None, color: bool) -> str:
    """The message, the source lines with carets under every label, notes and help."""
    paint = _painter(color)
    head = paint(f"{found.severity}[{found.code}]", _COLOURS[found.severity])
    lines = [head + paint(f": {_short(found.message)}", _BOLD)]
    places = [] if source is None else _places(found, source)
    margin = ""
    if source is not None and places:
        margin = " " * len(str(max(source.position(span.start)[0] for span, _, _ in places)))
        lines += _excerpt(source, places, margin, _COLOURS[found.severity], paint)
    elif source is not None and source.name:
        lines.append(paint(" --> ", _BLUE) + _visible(source.name))
    gutter = f"{margin} {paint('=', _BLUE)} "
    for kind, text in [*(("note", n) for n in found.notes), *([("help", found.help)] if found.help else [])]:
        first, *rest = _short(text).splitlines() or [""]
        lines.append(f"{gutter}{paint(kind, _BOLD)}: {first}")
        lines += [" " * (len(margin) + 3 + len(kind) + 2) + line for line in rest]
    return "\n".join(lines) + "\n"


def concise(found: Diagnostic, source: Source | None, color: bool) -> str:
    """`file:line:col: error[E203]: message`"""
    where = ""
    if source is not None and source.name:
        where = f"{_visible(source.name)}: "
        for span, _, _ in _places(found, source)[:1]:
            line, column = source.position(span.start)
            where = f"{_visible(source.name)}:{line}:{column}: "
    kind = _painter(color)(f"{found.severity}[{found.code}]", _COLOURS[found.severity])
    return f"{where}{kind}: {_short(found.message)}"


def as_json(found: Diagnostic, source: Source | None, color: bool = False) -> str:
    """One JSON object with the primary place on top and all labels, for programs."""
    labels: list[dict[str, str | int]] = []
    for label in found.labels:
        place = _range(source, source.span_of(label)) if source is not None else {}
        labels.append({"path": label.path, "text": label.text, **place})
    first = {k: v for k, v in labels[0].items() if k not in ("path", "text")} if labels else {}
    value = {
        "severity": found.severity,
        "code": found.code,
        "message": found.message,
        "file": source.name if source is not None else None,
        **first,
        "labels": labels,
        "help": found.help,
        "notes": list(found.notes),
    }
    return json.dumps(value, ensure_ascii=False)


def github(found: Diagnostic, source: Source | None, color: bool = False) -> str:
    """A GitHub workflow command, which annotates the changed file."""
    kind = "notice" if found.severity == "note" else found.severity
    fields = [f"title={_escaped(found.code, field=True)}"]
    if source is not None and source.name:
        fields.insert(0, f"file={_escaped(source.name, field=True)}")
        for span, _, _ in _places(found, source)[:1]:
            place = _range(source, span)
            keys = (("line", "line"), ("endLine", "end_line"), ("col", "column"), ("endColumn", "end_column"))
            fields[1:1] = [f"{name}={place[key]}" for name, key in keys]
    text = _short(found.message) + (f"\nhelp: {found.help}" if found.help else "")
    return f"::{kind} {','.join(fields)}::{_escaped(text)}"


FORMATS: dict[str, Callable[[Diagnostic, Source | None, bool], str]] = {
    "full": full,
    "concise": concise,
    "json": as_json,
    "github": github,
}


def _places(found: Diagnostic, source: Source) -> list[tuple[Span, str, bool]]:
    """(span, text, primary) of the labels that point into the source, the primary one first."""
    spans = ((source.span_of(label), label.text) for label in found.labels)
    known = [(span, text) for span, text in spans if span is not None]
    return [(span, text, i == 0) for i, (span, text) in enumerate(known)]


def _excerpt(
    source: Source,
    places: list[tuple[Span, str, bool]],
    margin: str,
    colour: str,
    paint: Callable[[str, str], str],
) -> list[str]:
    """The lines of source that labels point into, each with its labels below."""
    line, column = source.position(places[0][0].start)
    bar = paint("|", _BLUE)
    lines = [f"{margin}{paint('-->', _BLUE)} {_visible(source.name)}:{line}:{column}", f"{margin} {bar}"]
    by_line: dict[int, list[tuple[Span, str, bool]]] = {}
    for place in places:
        by_line.setdefault(source.position(place[0].start)[0], []).append(place)
    last = 0
    for number in sorted(by_line):
        if last and number > last + 1:
            lines.append(paint("...", _BLUE))
        last = number
        code, shift = _window(source.line(number), source.position(by_line[number][0][0].start)[1] - 1)
        label = paint(str(number).rjust(len(margin)), _BLUE)
        lines.append(f"{label} {bar} {_visible(code)}".rstrip())
        drawn: list[tuple[range, str, bool]] = []
        for span, text, primary in by_line[number]:
            start = min(max(source.position(span.start)[1] - 1 - shift, 0), len(code))
            end = min(start + max(span.end - span.start, 1), max(len(code), start + 1))
            before = _width(_visible(code[:start]))
            marks = max(_width(_visible(code[:end])) - before, 1)
            drawn.append((range(before, before + marks), text, primary))
        lines += [f"{margin} {bar} {row}" for row in _rows(drawn, colour, paint)]
    lines.append(f"{margin} {bar}")
    return lines


def _rows(
    places: list[tuple[range, str, bool]], colour: str, paint: Callable[[str, str], str]
) -> Iterator[str]:
    """The lines of marks under one line: (columns, text, primary) each. What has no text shares the first
    line; where it overlaps what is drawn there already it says nothing new."""
    silent: list[tuple[range, bool]] = []
    for columns, text, primary in places:
        if not text and not any(columns.start < c.stop and c.start < columns.stop for c, _ in silent):
            silent.append((columns, primary))
    row, end = "", 0
    for columns, primary in sorted(silent, key=lambda mark: mark[0].start):
        sign = ("^" if primary else "-") * len(columns)
        row += " " * (columns.start - end) + paint(sign, colour if primary else _BLUE)
        end = columns.stop
    if row:
        yield row
    for columns, text, primary in places:
        if text:
            sign, tone = ("^", colour) if primary else ("-", _BLUE)
            yield " " * columns.start + paint(sign * len(columns), tone) + paint(f" {_visible(text)}", tone)


def _short(text: str) -> str:
    """`text` without the middle of what is very long, a name in a broken file for instance."""
    half = LONGEST // 2
    short = text if len(text) <= LONGEST else f"{text[:half]} … {text[-half:]}"
    return "\n".join(_visible(line) for line in short.split("\n"))


def _visible(text: str) -> str:
    """`text` with tabs as spaces and what a terminal would obey instead of showing as escapes, `\\x1b`."""
    shown = text
    if not text.isprintable():
        shown = "".join(_escape(c) if unicodedata.category(c) in _UNSEEN and c != "\t" else c for c in text)
    return shown.expandtabs(TAB)


def _escape(character: str) -> str:
    """`character` by its number."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _window(code: str, focus: int) -> tuple[str, int]:
    """The part of a very long line around column `focus`, and how far it was shifted to the left."""
    if len(code) <= WIDEST:
        return code, 0
    low = max(0, min(focus - CONTEXT, len(code) - WIDEST))
    head, tail = "…" if low else "", "…" if low + WIDEST < len(code) else ""
    return head + code[low : low + WIDEST] + tail, low - len(head)


def _range(source: Source | None, span: Span | None) -> dict[str, int]:
    if source is None or span is None:
        return {}
    line, column = source.position(span.start)
    end_line, end_column = source.position(span.end)
    return {"line": line, "column": column, "end_line": end_line, "end_column": end_column}


def _width(text: str) -> int:
    """Columns that `text` takes on a terminal."""
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text
    )


def _painter(color: bool) -> Callable[[str, str], str]:
    return (lambda text, code: f"\033[{code}m{text}\033[0m") if color else (lambda text, code: text)


def _escaped(text: str, field: bool = False) -> str:
    """Escapes of workflow commands."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if field else text
