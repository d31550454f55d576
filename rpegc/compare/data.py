"""What `rpegc compare` finds out; the object that `--json` prints. All figures are predicted."""

from typing import Literal

from ir_schema.base import Objective, Record
from ir_schema.diagnostics import Diagnostic
from ir_schema.problem import Placement
from rpegc.figures import Figures

Outcome = Literal["ok", "infeasible", "not allowed"]


class Entry(Record, frozen=True, kw_only=True):
    """The best plan that was found within one decision space.

    `outcome` is `ok`; `infeasible`, where no plan fits in memory; or `not allowed`, where nothing that the
    file allows lies in the space: then `reason` says why, and what there is to tell of a plan is None.
    `summary` says what may be decided, `structure` the structural choices made. `rpeg_gain` is the gain of
    the plan of `rpeg` over this one in tokens/s, as a fraction; `indistinguishable`: the uncertainty of the
    predictions does not tell the two step times apart (None: not known). Both are None for `rpeg` itself.
    """

    name: str
    summary: str
    outcome: Outcome
    reason: str | None = None
    figures: Figures | None = None
    rpeg_gain: float | None = None
    indistinguishable: bool | None = None
    structure: str | None = None
    evaluations: int | None = None
    termination: str | None = None
    plan: dict[str, Placement] | None = None


class Comparison(Record, frozen=True, kw_only=True):
    """The entries in the order in which they are told, that of `rpeg` last.

    `budget` (evaluations) and `time_limit` [s] are those of every single search; None where there is none.
    `rpeg` starts from the plans of the others: `start_evaluations` is what these took together, on top of its
    own. `diagnostics` say why it has no plan, if it has none.
    """

    problem: str
    gpus: int
    cost_model: str
    objective: Objective
    budget: int | None
    time_limit: float | None
    seed: int
    start_evaluations: int
    entries: tuple[Entry, ...]
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def rpeg(self) -> Entry:
        """The entry without restriction."""
        return self.entries[-1]
