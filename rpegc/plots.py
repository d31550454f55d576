"""Plots as files: the format is the end of the file's name, and matplotlib (the extra `plots`) draws."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rpegc.failure import suggestion, usage_error
from rpegc.stagefiles import check_writable, write_bytes

FORMATS = ("pdf", "png", "svg")


def check_plot(name: str) -> None:
    """Raise UsageFailure E936 (format, matplotlib) or E912 (place) if no plot can be written to `name`."""
    kind = Path(name).suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise usage_error("E936", f"`{name}` names no format of a plot", help=suggestion(kind, FORMATS))
    try:
        import matplotlib  # noqa: F401
    except ImportError as exc:
        help = "pip install 'rpeg[plots]'"
        raise usage_error("E936", "plots need the extra `plots` (matplotlib)", help=help) from exc
    check_writable(name)


def write_plot(name: str, draw: Callable[[Any], None], *, inches: tuple[float, float] = (8.0, 4.5)) -> None:
    """Write what `draw` puts on an empty matplotlib `Figure` to file `name`, without a date: equal drawings
    are equal files. Raises UsageFailure as `check_plot` does."""
    check_plot(name)
    import matplotlib
    from matplotlib.figure import Figure

    kind = Path(name).suffix.removeprefix(".").lower()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "rpeg"}):
        figure = Figure(figsize=inches, layout="constrained")
        draw(figure)
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=150, metadata=undated)
    write_bytes(name, out.getvalue())
