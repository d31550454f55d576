"""Search: from a problem to the configuration with the best predicted score (semantics: Search).

The plan in the file constrains the search field by field. For every structure that the file allows, the
greedy and the concurrent plan are scored, and a warm start if the file has one; methods `sa` and `auto` start
from them. Their result is therefore never worse than any of these. (They are scored whatever the budget.)
How the two methods go on is told in `docs/search.md`.
"""

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import DiagnosticError
from ir_schema.problem import Problem
from ir_schema.stages import Configuration, SearchReport
from passes.base import Pass
from passes.search.exploration import explore
from passes.search.legality import complete, legal, plan_errors
from passes.search.progress import WATCH, Progress, Watch
from passes.search.report import fusion_note
from passes.search.settings import Settings

__all__ = ["WATCH", "Progress", "Search", "Watch", "explore", "legal"]


def take(problem: Problem) -> Configuration:
    """The configuration that the file itself gives, its structural options as they are written.

    Raises DiagnosticError when its plan is incomplete or breaks a constraint. Memory is not asked: a plan
    that does not fit can still be scored.
    """
    found = plan_errors(problem, problem.plan)
    if found:
        raise DiagnosticError(found)
    chosen = msgspec.structs.replace(problem, plan={}, search=None)
    plan = {v: complete(p) for v, p in problem.plan.items()}
    notes = tuple(fusion_note(chosen, plan))
    return Configuration(problem=chosen, plan=plan, search=SearchReport(method="none", notes=notes))


@dataclass(frozen=True)
class Search(Settings, Pass[Problem, Configuration]):
    """Problem to configuration.

    `method` is `none` (the plan in the file), `greedy`, `concurrent`, `sa` (simulated annealing) or `auto`
    (systematic search; the optimum where all plans can be looked at). `budget` counts evaluations that are
    not in the cache (none: as many as `time_limit` allows). `sa` anneals with half of it, split evenly over
    structures, and polishes with all that annealing leaves. `time_limit` [s] is an additional cap. `seed`
    starts the random choices. `threads` evaluate (none: one per core); their number changes no result.

    The others take something away, to measure what it is worth (ablations A1 to A9):
    `no_splitting` leaves generation and inference as whole operators; `no_asynchrony` keeps every staleness
    at 0; `fixed_microbatches` does not search their number; `hard_memory` rejects plans that do not fit
    instead of charging for the excess. These are `sa`'s alone:
    `no_pair_moves` changes one operator at a time;
    `no_warm_restarts` restarts every chain from the heuristic plan, not from one of the best found;
    `uniform_choice` moves any operator as likely as one on the critical path; `no_polish` anneals with the
    whole budget;
    `geometric_cooling` lowers the temperature over a chain instead of keeping it.
    """

    name: ClassVar[str] = "search"
    summary: ClassVar[str] = "choose structure, placement and layouts"
    source: ClassVar[type[Record]] = Problem
    target: ClassVar[type[Record]] = Configuration

    def run(self, stage: Problem) -> Configuration:
        """The best configuration found.

        Raises DiagnosticError E402 to E419 when the plan in the file breaks a constraint or leaves nothing
        to choose from, E420 and E421 when nothing fits in memory, E430 to E436 for impossible choices.
        """
        return take(stage) if self.method == "none" else explore(stage, self)
