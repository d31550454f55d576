"""The examples are what a user starts from: they load, are well formed, and are kept in canonical form."""

from pathlib import Path

import pytest

from passes.verify import verify
from rpegc.frontend import format_text, load
from rpegc.text.parser import parse

ROOT = Path(__file__).parents[2]

EXAMPLES = sorted((ROOT / "examples").glob("*.rpeg"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_well_formed_and_tidy(path: Path) -> None:
    data = path.read_bytes()
    assert verify(load(data, path.name, path.parent).problem) == []
    assert format_text(data, path.name).encode() == data


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_comments_survive_formatting_and_expansion(path: Path) -> None:
    text = path.read_text()
    comments = {line.strip() for line in text.splitlines() if line.strip().startswith("#")}
    for expand in (False, True):
        printed = format_text(text.encode(), path.name, expand=expand)
        assert comments <= {line.strip() for line in printed.splitlines()}
        assert parse(printed)


def test_the_promised_examples_exist() -> None:
    names = {path.stem for path in EXAMPLES}
    promised = "ppo_tiny ppo_13b_gh200 ppo_70b_gh200_256 grpo_8b_h100 dpo_8b_h100 ppo_shared_8b"
    assert set(promised.split()) <= names
