"""Tables and quantities as people read them on a terminal, and tables as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> str:
    """Rows under a header in aligned columns, those in `right` aligned to the right."""
    cells = [list(map(str, row)) for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        padded = [
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """The table as CSV: None is an empty cell, truth `true` or `false`, and floats are told in full."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(header)
    for row in rows:
        lines.writerow([str(c).lower() if isinstance(c, bool) else c for c in row])
    return out.getvalue().encode()


def indent(text: str, by: str = "  ") -> str:
    """Every line of `text` moved to the right."""
    return "\n".join(by + line if line else line for line in text.splitlines())


def duration(seconds: float) -> str:
    """`1.234 s`, `12.3 ms`, `45 us`: four digits at most that mean something."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
        if abs(seconds) * scale >= 1 or unit == "ns":
            return f"{seconds * scale:.4g} {unit}" if abs(seconds) < 1e4 else f"{seconds:.0f} s"
    raise AssertionError


def rate(tokens: float) -> str:
    """Tokens/s with four digits or all before the point."""
    return f"{tokens:.0f}" if tokens >= 1e4 else f"{tokens:.4g}"


def size(count: float) -> str:
    """Bytes in binary units: `79.2 GiB`."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.4g} B"


def change(before: float, after: float) -> str:
    """`+3.1 %` from `before` to `after`; nothing when there is nothing to relate to."""
    return f"{100 * (after - before) / abs(before):+.2g} %" if before else ""
