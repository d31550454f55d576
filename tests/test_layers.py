"""Imports run one way: rpegc -> passes -> calib -> ir_schema, and rpeg_rt -> ir_schema."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "ir_schema": set(),
    "calib": {"ir_schema"},
    "passes": {"calib", "ir_schema"},
    "rpegc": {"passes", "calib", "ir_schema"},
    "rpeg_rt": {"ir_schema"},
}


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every import, wherever in the file it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." if node.level else (node.module or "").split(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    forbidden = MAY_IMPORT.keys() - MAY_IMPORT[package] - {package}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for line, name in imported(path.read_text())
        if name in forbidden or name == "."
    ]
    assert not wrong


def test_imports_are_seen_wherever_they_stand() -> None:
    source = "import a.b\ndef f():\n    from c.d import e\n    from . import g\n"
    assert list(imported(source)) == [(1, "a"), (3, "c"), (4, ".")]
