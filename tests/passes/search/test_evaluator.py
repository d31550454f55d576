"""The fast evaluator and the readable passes agree to the nanosecond and to the byte."""

import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ir_schema.problem import Placement
from ir_schema.stages import Configuration
from passes.evaluate import evaluate
from passes.search.evaluator import Evaluator
from passes.search.skeleton import critical_path
from passes.search.space import build
from passes.search.structures import structures
from tests.passes.search.worked import CASES, mixture, read_case
from tests.strategies import configurations, placements

relaxed = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


def assert_same(evaluator: Evaluator, configuration: Configuration) -> None:
    slow, fast = evaluate(configuration), evaluator.evaluate(configuration.plan)
    assert fast.makespan_ns == slow.makespan_ns
    assert fast.peak_bytes == slow.max_peak_bytes
    assert fast.score == slow.score_tokens_per_s
    assert fast.score * fast.penalty == slow.score_pen
    assert fast.utilisation == slow.utilisation
    assert fast.feasible == slow.memory_feasible
    run = evaluator.run(configuration.plan)
    assert evaluator.peak(configuration.plan) == slow.max_peak_bytes
    assert critical_path(run) == list(slow.critical_path)
    assert run.order == list(slow.placement_order)


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}/{p.stem[:2]}")
def test_worked_cases(path):
    configuration = read_case(path)
    assert_same(Evaluator(configuration.problem), configuration)


@relaxed
@given(st.booleans().flatmap(lambda printed: configurations(as_printed=printed)), st.data())
def test_random_plans(configuration, data):
    """Several plans of one problem, so that what is kept from one plan is right for the next."""
    problem = configuration.problem
    if not problem.options.as_printed and data.draw(st.booleans()):
        options = msgspec.structs.replace(problem.options, cost_model="megatron")
        problem = msgspec.structs.replace(problem, options=options)
        configuration = msgspec.structs.replace(configuration, problem=problem)
    evaluator = Evaluator(problem)
    pool = [data.draw(placements(problem.device_space)) for _ in range(3)] + list(configuration.plan.values())
    assert_same(evaluator, configuration)
    for _ in range(4):
        plan = {v: data.draw(st.sampled_from(pool)) for v in configuration.plan}
        if data.draw(st.booleans()):
            plan = {
                v: msgspec.structs.replace(p, waves=data.draw(st.sampled_from([1, 2])))
                if problem.graph.vertices[evaluator.analysis.index[v]].role == "generation"
                else p
                for v, p in plan.items()
            }
        assert_same(evaluator, msgspec.structs.replace(configuration, plan=plan))


@relaxed
@given(configurations(), st.data())
def test_plans_with_equal_keys_are_worth_the_same(configuration, data):
    """Mirror a plan along some axes, and move it cyclically: the key says whether anything changed."""
    problem = configuration.problem
    evaluator = Evaluator(problem)
    flips = [data.draw(st.booleans()) for _ in range(3)]

    def moved(p: Placement) -> Placement:
        origin = tuple(
            s - e - o if flip else o
            for flip, o, e, s in zip(flips, p.origin, p.extent, problem.device_space, strict=True)
        )
        return msgspec.structs.replace(p, origin=origin)

    plan = {v: moved(p) for v, p in configuration.plan.items()}
    assert evaluator.canonical(plan) == evaluator.canonical(configuration.plan)
    assert evaluator.evaluate(plan) == evaluator.evaluate(configuration.plan)
    pool = [data.draw(placements(problem.device_space)) for _ in range(4)]
    others = [{v: data.draw(st.sampled_from(pool)) for v in plan} for _ in range(12)]
    by_key: dict[object, list] = {}
    for other in others:
        by_key.setdefault(evaluator.canonical(other), []).append(evaluator.evaluate(other))
    for found in by_key.values():
        assert all(e == found[0] for e in found)


def test_layouts_of_five_degrees():
    ((structure, problem),) = structures(mixture(16384))
    space, _ = build(0, structure, problem)
    rng = random.Random(7)
    degrees = set()
    for _ in range(12):
        plan = {v: space.candidates[v].sample(rng) for v in space.vertices}
        degrees |= {(p.context_parallel > 1, p.expert_parallel > 1) for p in plan.values()}
        assert_same(space.evaluator, Configuration(problem=problem, plan=plan))
    assert len(degrees) == 4
