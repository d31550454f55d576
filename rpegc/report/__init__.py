"""The report of a plan: what was decided and what it is predicted to cost, as data and as one HTML page.

`build` gathers everything from a stage, `render` puts it into a page that needs nothing else: no network,
no other file. The page draws from the embedded data alone, so both say the same.
"""

from rpegc.report.build import build
from rpegc.report.data import Report
from rpegc.report.page import render

__all__ = ["Report", "build", "render"]
