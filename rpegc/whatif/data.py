"""What `rpegc whatif` finds out; the object that `--json` prints. All figures are predicted."""

from typing import Literal, get_args

from ir_schema.base import Record
from ir_schema.problem import Placement
from rpegc.figures import Figures

Kind = Literal[
    "search",
    "operator",
    "staleness",
    "sharing",
    "fusion",
    "splitting",
    "nodes",
    "network",
    "memory",
    "responses",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
How = Literal["same plan", "one move", "re-planned"]


class Effect(Record, frozen=True, kw_only=True):
    """What one change would buy.

    `same_plan` are the figures with every operator left as it is, None where the change forbids that;
    `best` those of the best plan known after the change, which is `plan`, got in the way that `how` says;
    None where no plan is known. `changes_training`: another algorithm or workload is run, so what is learned
    changes too. `gpus` is the size of the cluster; gains are changes of tokens per second
    from the plan that was given, and `indistinguishable` says whether the best plan's may be none at all: the
    interval of the difference in step time contains 0. None where the hardware file does not know its errors,
    or steps process other tokens.
    """

    kind: Kind
    change: str
    changes_training: bool
    gpus: int
    same_plan: Figures | None
    same_plan_gain_percent: float | None
    best: Figures | None
    gain_percent: float | None
    indistinguishable: bool | None
    how: How | None
    plan: dict[str, Placement]
    notes: tuple[str, ...] = ()


class WhatIf(Record, frozen=True, kw_only=True):
    """The given stage, its figures, and the effects: those that fit in memory first, by falling gain.

    `budget` is the number of evaluations of each search, 0 for none; `left_out` says which changes this
    problem does not admit, and why.
    """

    name: str
    stage: str
    stage_id: str
    gpus: int
    base: Figures
    budget: int
    effects: tuple[Effect, ...]
    left_out: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
