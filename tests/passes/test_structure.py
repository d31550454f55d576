"""A fusion that was asked for either happens or is said to have no effect, and why."""

import msgspec
import pytest

from ir_schema.problem import PartialPlacement
from passes.analysis import Analysis
from passes.search import take
from passes.structure import fused_pair, fusion_obstacle
from tests.passes.test_cases import CASES, load

FUSED = load(CASES / "decided" / "13-ppo-fused-training.json")[0]
replace = msgspec.structs.replace


def with_fuse(pair):
    problem = FUSED.problem
    return replace(problem, options=replace(problem.options, fuse=pair))


def moved(**changes):
    return {**FUSED.plan, "critic_train": replace(FUSED.plan["critic_train"], **changes)}


@pytest.mark.parametrize(
    ("pair", "plan", "why"),
    [
        (("critic_train", "actor_train"), FUSED.plan, None),
        (None, FUSED.plan, None),
        (("actor_train", "critic_inf"), FUSED.plan, "not training vertices"),
        (("actor_train", "actor_train"), FUSED.plan, "not training vertices"),
        (("actor_train", "critic_train"), moved(extent=(1, 1, 4)), "different allocations"),
        (("actor_train", "critic_train"), moved(data_parallel=4, pipeline_parallel=2), "different layouts"),
    ],
)
def test_obstacles(pair, plan, why):
    analysis = Analysis(with_fuse(pair))
    obstacle = fusion_obstacle(analysis, plan)
    assert (why in obstacle) if why else obstacle is None
    expected = ("actor_train", "critic_train") if pair and not why else None
    assert fused_pair(analysis, plan) == expected


def test_the_report_says_so():
    fixed = {v: msgspec.convert(msgspec.to_builtins(p), PartialPlacement) for v, p in FUSED.plan.items()}
    taken = take(replace(with_fuse(("actor_train", "critic_inf")), plan=fixed))
    assert taken.search.notes == (
        "fusing actor_train and critic_inf has no effect: they are not training vertices of two models",
    )
    assert take(replace(FUSED.problem, plan=fixed)).search.notes == ()
