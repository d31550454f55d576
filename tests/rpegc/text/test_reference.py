"""The language reference knows every statement and every key, and its example is a problem."""

import re
from pathlib import Path

import pytest

from ir_schema.base import Record
from ir_schema.problem import (
    Container,
    Optimizer,
    Options,
    PartialPlacement,
    RunConfig,
    SearchSpace,
    Verifier,
    Workload,
)
from passes.verify import verify
from rpegc.frontend import format_text, load
from rpegc.presets import PRESETS
from rpegc.text.grammar import SHAPES

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


def test_the_example_is_a_tidy_problem() -> None:
    (example,) = re.findall(r"```rpeg\n(.*?)```", REFERENCE, flags=re.DOTALL)
    assert verify(load(example.encode(), "example", Path()).problem) == []
    assert format_text(example.encode(), "example") == example
