"""Diagnostics for people and programs: where a finding stands, how it is shown, what its code means."""

from typing import TYPE_CHECKING, Any

from rpegc.diagnostics.render import FORMATS, render
from rpegc.diagnostics.source import Source, locate

if TYPE_CHECKING:
    from rpegc.diagnostics.catalogue import Explanation

    CATALOGUE: dict[str, Explanation]

__all__ = ["CATALOGUE", "FORMATS", "Source", "locate", "render"]


def __getattr__(name: str) -> Any:
    """`CATALOGUE` is read when it is first asked for: most runs explain nothing."""
    if name != "CATALOGUE":
        raise AttributeError(name)
    from rpegc.diagnostics.catalogue import read_catalogue

    globals()[name] = catalogue = read_catalogue()
    return catalogue
