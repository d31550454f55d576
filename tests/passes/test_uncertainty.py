"""Intervals of step times and of their differences, against sampling and scheduling done here."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calib.hardware import load_hardware
from ir_schema.envelope import encode_stage
from ir_schema.hardware import Provenance
from ir_schema.problem import SearchSpace
from ir_schema.stages import Configuration, Scheduled
from passes import uncertainty as module
from passes.evaluate import evaluate
from passes.search import Search
from passes.uncertainty import COVERAGE, difference, relation, spread_of, uncertainty, unknown
from tests.passes.search.worked import case, ppo
from tests.strategies import configurations

replace = msgspec.structs.replace
relaxed = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))

COLOCATED = "01-ppo-sync-colocated"
SPLIT = "03-ppo-async-disjoint-split"
SPREAD = {"generation": 0.2, "inference": 0.1, "training": 0.05, "transfers": 0.3}


def with_spread(configuration: Configuration, **spread: float) -> Configuration:
    """The configuration on a machine of which this was measured, under cost model `megatron`."""
    problem = configuration.problem
    hardware = replace(problem.hardware, provenance=Provenance(name="here", spread=spread))
    options = replace(problem.options, cost_model="megatron", as_printed=False)
    return replace(configuration, problem=replace(problem, hardware=hardware, options=options))


def scheduled(name: str, **spread: float) -> Scheduled:
    return evaluate(with_spread(case(name), **(spread or SPREAD)))


def interval(plan: Scheduled) -> tuple[float, float]:
    found = uncertainty(plan)
    assert found.step_time_low_s is not None
    assert found.step_time_high_s is not None
    return found.step_time_low_s, found.step_time_high_s


@pytest.mark.parametrize("name", [COLOCATED, SPLIT])
def test_without_spread_the_interval_is_the_prediction(name):
    plan = scheduled(name, **dict.fromkeys(SPREAD, 0.0))
    assert interval(plan) == pytest.approx((plan.step_time_s, plan.step_time_s), rel=1e-12)


def test_one_error_alone_has_the_quantiles_of_its_distribution():
    """All of the step but generation is exact, and runs one after another: the rest is added to it."""
    plan = scheduled(COLOCATED, generation=0.2, inference=0.0, training=0.0, transfers=0.0)
    steps = plan.configuration.problem.options.steps
    generation = (
        sum(n.time_ns for n in plan.nodes if n.vertex == "actor_gen" and n.kind == "Op") * 1e-9 / steps
    )
    rest = plan.step_time_s - generation
    off = math.exp(1.6448536 * 0.2)
    expected = rest + generation / off, rest + generation * off
    assert interval(plan) == pytest.approx(expected, rel=2e-3)


def test_independent_errors_add_up_as_those_of_random_numbers():
    """Operators of a colocated plan run one after another, all in one layout."""
    plan = scheduled(COLOCATED)
    steps = plan.configuration.problem.options.steps
    roles = {v.name: v.role for v in plan.configuration.problem.graph.vertices}
    seconds: dict[str, float] = {}
    for n in plan.nodes:
        kind = roles[n.vertex] if n.kind == "Op" else "transfers"
        seconds[kind] = seconds.get(kind, 0.0) + n.time_ns * 1e-9 / steps
    assert sum(seconds.values()) == pytest.approx(plan.step_time_s)
    placements = plan.configuration.plan.values()
    assert len({(p.layout, p.microbatches) for p in placements}) == 1
    rng = np.random.default_rng(1)
    total = sum(t * np.exp(SPREAD[kind] * rng.standard_normal(200_000)) for kind, t in seconds.items())
    low, high = np.quantile(total, [0.05, 0.95])
    assert interval(plan) == pytest.approx((low, high), abs=0.05 * (high - low))


@relaxed
@given(configurations(), st.integers(0, module.DRAWS - 1))
def test_a_draw_is_the_schedule_with_other_durations(configuration, draw):
    """Start times anew: after all predecessors and after whatever was placed before on any of the GPUs."""
    plan = evaluate(with_spread(configuration, **SPREAD))
    problem = plan.configuration.problem
    errors = module._Errors(problem, plan.configuration.plan)
    free: dict[str, int] = {}
    finish: dict[int, int] = {}
    for x in plan.placement_order:
        node = plan.nodes[x]
        begin = max([0, *(finish[p] for p in node.predecessors), *(free.get(g, 0) for g in node.reserved)])
        finish[x] = begin + round(node.time_ns * float(errors.factors(node)[draw]))
        free |= dict.fromkeys(node.reserved, finish[x])
    expected = max(finish.values()) * 1e-9 / problem.options.steps
    assert module._step_times(plan)[draw] == pytest.approx(expected, rel=1e-9)


@relaxed
@given(configurations(), st.floats(0.01, 0.5), st.floats(1.0, 3.0))
def test_more_spread_reaches_further_and_the_prediction_is_inside(configuration, size, factor):
    some, more = (
        evaluate(with_spread(configuration, **dict.fromkeys(SPREAD, s))) for s in (size, factor * size)
    )
    low, high = interval(some)
    assert low <= some.step_time_s <= high
    assert interval(more)[1] >= high
    assert interval(some) == (low, high)


@relaxed
@given(configurations())
def test_a_plan_is_not_told_from_itself(configuration):
    plan = evaluate(with_spread(configuration, **SPREAD))
    assert difference(plan, plan) == (0.0, 0.0)
    assert relation(plan, plan) == "indistinguishable"


def test_slower_nodes_take_the_interval_with_them():
    plan = scheduled(SPLIT)
    slower = replace(
        plan,
        nodes=tuple(replace(n, time_ns=8 * n.time_ns) for n in plan.nodes),
        step_time_s=8 * plan.step_time_s,
    )
    assert interval(slower) == pytest.approx([8 * t for t in interval(plan)], rel=1e-6)


def changed_inference(**spread: float) -> tuple[Scheduled, Scheduled]:
    """A colocated plan, and it with the reference model in another layout."""
    given = with_spread(case(COLOCATED), **spread)
    reference = given.plan["ref_inf"]
    data, tensor = 2 * reference.data_parallel, reference.tensor_parallel // 2
    other = replace(reference, data_parallel=data, tensor_parallel=tensor)
    return evaluate(given), evaluate(replace(given, plan=given.plan | {"ref_inf": other}))


def test_errors_that_both_plans_share_cancel():
    plan, other = changed_inference(**SPREAD)
    assert plan.step_time_s != other.step_time_s
    found = difference(plan, other)
    uncertain = changed_inference(**SPREAD | {"generation": 0.4, "training": 0.4})
    assert difference(*uncertain) == pytest.approx(found, abs=1e-8)
    (low, high), (first, last) = found, interval(plan)
    assert 0 < high - low < (last - first) / 2


def test_which_plan_is_faster_shows_as_errors_shrink():
    seen = []
    for spread in (0.5, 0.001):
        plan, other = changed_inference(**dict.fromkeys(SPREAD, spread))
        seen.append((relation(plan, other), relation(other, plan)))
    faster = "faster" if plan.step_time_s < other.step_time_s else "slower"
    slower = {"faster": "slower", "slower": "faster"}[faster]
    assert seen == [("indistinguishable", "indistinguishable"), (faster, slower)]


def test_what_nobody_measured_has_no_interval():
    plan = scheduled(COLOCATED, generation=0.1, inference=0.1)
    found = uncertainty(plan)
    assert (found.step_time_low_s, found.step_time_high_s) == (None, None)
    assert found.note == "no interval: hardware file `here` has no errors of training"
    assert relation(plan, plan) is None
    paper = evaluate(case(COLOCATED))
    assert "not of `paper`" in uncertainty(paper).note


def test_transfers_that_nobody_measured_count_as_exact_and_it_is_said():
    spread = {role: size for role, size in SPREAD.items() if role != "transfers"}
    assert uncertainty(scheduled(SPLIT, **spread)).note == "transfers between operators count as exact"
    assert uncertainty(scheduled(SPLIT)).note == ""


def test_residuals_say_what_no_spread_does():
    """A mean absolute error of 0.0857 is a standard deviation of 0.0857 sqrt(pi / 2) = 0.1074."""
    h100, a100 = (spread_of(load_hardware(name)) for name in ("h100", "a100-80"))
    assert h100.operator("training", {"gemm": 2.0}) == pytest.approx(0.1074, abs=1e-4)
    assert h100.operator("generation", {"tp": 2.0}) == pytest.approx(0.3351 * 1.2533, rel=1e-3)
    mixed = math.hypot(3 * 0.0857, 1 * 0.3351) / 4 * 1.2533
    assert h100.operator("inference", {"gemm": 1.0, "bubble": 2.0, "dp": 1.0}) == pytest.approx(
        mixed, rel=1e-3
    )
    assert a100.operator("training", {"gemm": 1.0, "tp": 9.0}) == pytest.approx(0.0532 * 1.2533, rel=1e-3)
    assert spread_of(load_hardware("gh200")).transfers == pytest.approx(0.1173 * 1.2533, rel=1e-3)
    assert unknown(replace(ppo(cost_model="megatron"), hardware=load_hardware("cpu-2core")))


def searched(spread: dict[str, float]) -> Configuration:
    problem = ppo((1, 1, 4), cost_model="megatron", search=SearchSpace(split=("never",)))
    hardware = replace(problem.hardware, provenance=Provenance(name="here", spread=spread))
    return Search(budget=60, threads=1).run(replace(problem, hardware=hardware))


def test_the_search_says_which_plans_it_cannot_tell_apart():
    none, some, all_ = (
        searched({}), searched(dict.fromkeys(SPREAD, 1e-6)), searched(dict.fromkeys(SPREAD, 0.5))
    )  # fmt: skip
    assert none.plan == some.plan == all_.plan
    assert none.search is not None
    assert none.search.ties is None
    assert b'"ties"' not in encode_stage(none)
    best = evaluate(none).score_tokens_per_s
    for found, tied in ((some, lambda score: score >= best * (1 - 1e-5)), (all_, lambda _: True)):
        ties = found.search.ties
        assert ties.coverage == COVERAGE
        assert ties.baselines == tuple(n for n, score in found.search.baselines.items() if tied(score))
        assert 0 <= ties.indistinguishable <= ties.kept
    assert all_.search.ties.indistinguishable == all_.search.ties.kept > 0
    assert some.search.ties.indistinguishable < some.search.ties.kept
