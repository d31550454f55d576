"""What a search may spend and leave out: the options of the pass `search`."""

import os
from dataclasses import dataclass
from typing import Literal

Method = Literal["none", "greedy", "concurrent", "sa", "auto"]

UNLIMITED = 2**53


@dataclass(frozen=True)
class Settings:
    """See `Search`, which documents every option."""

    method: Method = "auto"
    budget: int | None = 20_000
    seed: int = 0
    time_limit: float | None = None
    threads: int | None = None
    no_splitting: bool = False
    no_asynchrony: bool = False
    fixed_microbatches: bool = False
    no_pair_moves: bool = False
    no_warm_restarts: bool = False
    uniform_choice: bool = False
    no_polish: bool = False
    hard_memory: bool = False
    geometric_cooling: bool = False

    def __post_init__(self) -> None:
        if self.budget is None and self.time_limit is None:
            raise ValueError("without `budget` there must be a `time_limit`")
        if self.budget is not None and self.budget < 1:
            raise ValueError("`budget` must be at least 1")
        if self.time_limit is not None and not self.time_limit > 0:
            raise ValueError("`time_limit` must be positive")
        if self.threads is not None and self.threads < 1:
            raise ValueError("`threads` must be at least 1")

    @property
    def evaluations(self) -> int:
        """What `budget` allows; without one, more than any search makes."""
        return UNLIMITED if self.budget is None else self.budget

    @property
    def cores(self) -> int:
        """Threads that evaluate: `threads`, by default one per core that this process may use."""
        return self.threads or len(os.sched_getaffinity(0))
