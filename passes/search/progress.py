"""Watching a search from outside and asking it to stop.

A search may be watched by whoever set `WATCH` in the current context: the command line shows progress, and
on Ctrl-C sets `stop`, upon which the search returns the best plan it has.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """How far a search is. Scores [tokens/s] are those of plans that fit in memory, 0 where none is known."""

    method: str
    evaluations: int
    cache_hits: int
    budget: int
    seconds: float
    structure: int
    structures: int
    best: float
    greedy: float
    concurrent: float

    @property
    def rate(self) -> float:
        """Evaluations per second."""
        return self.evaluations / self.seconds if self.seconds > 0 else 0.0

    def gain(self, over: float) -> float | None:
        """Relative gain of the best plan over a score; None if either is missing."""
        return self.best / over - 1 if over > 0 and self.best > 0 else None


@dataclass
class Watch:
    """`on_progress` is called after every improvement and about every `interval` seconds."""

    on_progress: Callable[[Progress], None] | None = None
    interval: float = 0.2
    stop: bool = field(default=False)


WATCH: ContextVar[Watch | None] = ContextVar("rpeg_search_watch", default=None)
