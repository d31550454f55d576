"""Diagnostics for people and programs: where a finding stands, how it is shown, what its code means."""

from rpegc.diagnostics.render import FORMATS, render
from rpegc.diagnostics.source import Source, locate

__all__ = ["FORMATS", "Source", "locate", "render"]
