"""Every code that is raised is explained, and nothing else is."""

import re
from pathlib import Path

from rpegc.diagnostics import CATALOGUE
from rpegc.text.grammar import SHAPES
from rpegc.text.parser import parse_statements

ROOT = Path(__file__).parents[3]

PACKAGES = ("ir_schema", "calib", "passes", "rpegc", "rpeg_rt")
RAISED = re.compile(r'"([EW][0-9]{3})"|\[([EW][0-9]{3})\]')


def raised_codes() -> set[str]:
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            found |= {a or b for a, b in RAISED.findall(path.read_text(encoding="utf-8"))}
    return found


def test_the_catalogue_lists_exactly_the_codes_that_are_raised() -> None:
    assert sorted(raised_codes() ^ set(CATALOGUE)) == []


def test_every_entry_explains_and_helps() -> None:
    for code, entry in CATALOGUE.items():
        text = str(entry)
        assert text.startswith(f"{code}: ")
        assert entry.title
        assert entry.why
        assert entry.fix


def statements_in(text: str) -> bool:
    """Whether an example of the catalogue is statements of the language rather than prose or a command."""
    words = text.split()
    return words[0] in SHAPES and (len(words) > 1 and (words[1][0] in '"{' or set("{:>") & set(text)))


def test_what_the_catalogue_advises_can_be_parsed() -> None:
    advised = [entry.fix.strip("\n") for entry in CATALOGUE.values() if statements_in(entry.fix)]
    assert len(advised) > 30
    for fix in advised:
        assert parse_statements(fix)


def test_examples_of_statements_can_be_parsed() -> None:
    for keyword, shape in SHAPES.items():
        (statement,) = parse_statements(shape.example)
        assert statement.keyword == keyword
