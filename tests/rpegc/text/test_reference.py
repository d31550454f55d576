"""The language reference knows every statement and every key, and its example is a problem."""

import re
from pathlib import Path

import msgspec
import pytest

from calib.hardware import hardware_names
from ir_schema.base import Record
from ir_schema.model import ModelSpec
from ir_schema.problem import (
    Container,
    Optimizer,
    Options,
    PartialPlacement,
    RunConfig,
    SearchSpace,
    Verifier,
    Vertex,
    Workload,
)
from passes.verify import verify
from rpegc.frontend import format_text, load
from rpegc.presets import PRESETS
from rpegc.text.grammar import SHAPES
from rpegc.text.printer import word

REFERENCE = (Path(__file__).parents[3] / "docs/language.md").read_text(encoding="utf-8")
BLOCKS = (Container, Optimizer, Options, PartialPlacement, RunConfig, SearchSpace, Verifier, Workload)


def test_every_statement_and_preset_is_described() -> None:
    for keyword in SHAPES:
        assert f"| `{keyword} " in REFERENCE
    for name, preset in PRESETS.items():
        assert all(f"`{word}`" in REFERENCE for word in (name, *preset.roles))


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.__name__)
def test_every_key_is_described(kind: type[Record]) -> None:
    keys = set(kind.__struct_fields__) - {"name"}
    assert [key for key in sorted(keys) if f"`{key}`" not in REFERENCE] == []


def shown(default: object) -> str:
    """A default as the text form writes it; of a block or list what is in it by default is said elsewhere."""
    match default:
        case None:
            return "none"
        case bool():
            return str(default).lower()
        case str():
            return word(default)
        case dict() | Record():
            return "{}"
        case tuple():
            return str(list(default))
        case _:
            return repr(default)


def row(keyword: str, kind: type[Record], *without: str) -> str:
    """The row of the table of defaults for the keys of `kind`."""
    fields = [f for f in msgspec.structs.fields(kind) if f.name not in without]
    needed = [f"`{f.name}`" for f in fields if f.required]
    values = {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in fields}
    optional = [f"`{f.name} = {shown(values[f.name])}`" for f in fields if not f.required]
    return f"| `{keyword}` | {', '.join(needed)} | {', '.join(optional)} |"


TABLE = (
    ("options", Options),
    ("workload", Workload),
    ("model", ModelSpec, "head"),
    ("verifier", Verifier),
    ("container", Container, "name"),
    ("op", Vertex, "name", "role"),
    ("plan", PartialPlacement),
    ("search", SearchSpace),
    ("run", RunConfig),
    ("optimizer", Optimizer),
)


def test_defaults_are_those_of_the_records() -> None:
    rows = ["| block | needed | defaults |", "| --- | --- | --- |", *(row(*entry) for entry in TABLE)]
    table = "\n".join(rows)
    assert table in REFERENCE, f"the table of defaults in docs/language.md should be\n{table}"


def test_shipped_hardware_is_listed() -> None:
    assert [name for name in hardware_names() if f"`{name}`" not in REFERENCE] == []


def test_the_example_is_a_tidy_problem() -> None:
    (example,) = re.findall(r"```rpeg\n(.*?)```", REFERENCE, flags=re.DOTALL)
    assert verify(load(example.encode(), "example", Path()).problem) == []
    assert format_text(example.encode(), "example") == example
