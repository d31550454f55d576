"""The page: a template, a style sheet and scripts of this package around the report's data."""

import html
import re
from importlib.resources import files

from ir_schema.envelope import canonical
from rpegc.report.data import Report

SCRIPTS = ("base.js", "chart.js", "gantt.js", "graph.js", "sections.js", "main.js")


def render(report: Report) -> bytes:
    """One self-contained HTML page. Its content policy forbids it to load anything."""
    parts = {
        "title": html.escape(report.name),
        "style": _asset("style.css"),
        "script": "\n".join(_asset(name) for name in SCRIPTS),
        "data": embedded(report),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("page.html")).encode()


def embedded(report: Report) -> str:
    """The report as JSON that no HTML parser can leave: `<` is written as an escape."""
    return canonical(report).decode().replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (files("rpegc.report") / "assets" / name).read_text(encoding="utf-8")
