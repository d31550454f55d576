"""Finding passes: names are unique, and a plugin that cannot be used is named with its owner."""

from collections.abc import Callable
from importlib import metadata
from types import SimpleNamespace

import pytest

from rpegc import registry
from rpegc.catalogue import list_passes
from rpegc.failure import UsageFailure
from tests.rpegc.fakes import Tune

Register = Callable[..., None]


class Entry(SimpleNamespace):
    """An entry point of distribution `owner` that loads `found`, or raises it."""

    def __init__(self, name: str, owner: str, found: object) -> None:
        super().__init__(name=name, value="x:y", dist=SimpleNamespace(name=owner, version="1"), found=found)

    def load(self) -> object:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    def replace(*entries: Entry) -> None:
        monkeypatch.setattr(metadata, "entry_points", lambda group: list(entries))

    return replace


def test_a_registered_pass_is_loaded(register: Register) -> None:
    register(Entry("tune", "plugin", Tune))
    assert registry.load_pass("tune") is Tune


def test_a_name_registered_twice_names_both_owners(register: Register) -> None:
    register(Entry("tune", "one", Tune), Entry("tune", "two", Tune))
    with pytest.raises(UsageFailure, match=r"E925.*by one 1 and by two 1"):
        registry.load_pass("tune")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (ImportError("no such thing"), "ImportError: no such thing"),
        (object(), "is not a dataclass derived from"),
        (SimpleNamespace, "is not a dataclass derived from"),
        (Tune, "calls itself `tune`"),
    ],
)
def test_a_plugin_that_cannot_be_used(register: Register, found: object, reason: str) -> None:
    register(Entry("other", "plugin", found), Entry("tune", "rpeg", Tune))
    with pytest.raises(UsageFailure) as caught:
        registry.load_pass("other")
    [diagnostic] = caught.value.diagnostics
    assert diagnostic.code == "E926"
    assert "plugin 1" in diagnostic.message
    assert reason in diagnostic.notes[0]
    listing = list_passes()
    assert "change the horizon" in listing
    assert reason in listing


def test_an_unknown_pass_is_suggested(register: Register) -> None:
    register(Entry("tune", "plugin", Tune))
    with pytest.raises(UsageFailure) as caught:
        registry.load_pass("tuna")
    assert caught.value.diagnostics[0].help == "did you mean `tune`?"
