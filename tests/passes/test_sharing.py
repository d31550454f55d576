"""Processors that the workers of a node share: a step takes no less than they need for all its operators."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration, Scheduled
from passes.cost import model_for
from passes.evaluate import evaluate
from passes.uncertainty import uncertainty
from rpegc.invariants import violations
from tests.passes.cost.ppo import place, problem

replace = msgspec.structs.replace
relaxed = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
ACTOR = ("actor_gen", "ref_inf", "actor_train")
CRITIC = ("reward_inf", "critic_inf", "critic_train")


def shared(processors: float, **fields: float) -> Problem:
    """PPO of small models on two nodes of 8 workers, which share so many processors a node."""
    base = problem("llama-3.2-1b", prompts=16, length_quantiles=())
    hardware = replace(base.hardware, node_processors=processors, **fields)
    return replace(base, hardware=hardware, device_space=(1, 2, 8))


def scheduled(p: Problem, plan: dict[str, Placement]) -> Scheduled:
    found = evaluate(Configuration(problem=p, plan=plan))
    assert not list(violations(found))
    return found


def beside(actor: Placement, critic: Placement, gpu: int, node: int = 0) -> dict[str, Placement]:
    """The actor's operators on the first GPUs of the machine, those of the critic elsewhere."""
    moved = replace(critic, origin=(0, node, gpu))
    return dict.fromkeys(ACTOR, actor) | dict.fromkeys(CRITIC, moved)


def last(plan: Scheduled) -> int:
    return max(n.finish_ns for n in plan.nodes)


def alone_ns(p: Problem, plan: dict[str, Placement], names: tuple[str, ...]) -> int:
    """What operators without communication take in a step, each of them alone on its processors."""
    model, vertices = model_for(p), {v.name: v for v in p.graph.vertices}
    return sum(round(1e9 * sum(model.operator(vertices[n], plan[n]).values())) for n in names)


def test_what_runs_at_once_takes_the_processors_time_together() -> None:
    # Four workers on one processor, each of them busy for as long as its operators take by themselves.
    p = shared(1.0)
    plan = beside(place(), place(), gpu=1)
    found = scheduled(p, plan)
    need = alone_ns(p, plan, ACTOR + CRITIC) * p.options.steps
    assert last(found) < 0.9 * need
    assert found.makespan_ns == pytest.approx(need, rel=1e-9)
    assert found.makespan_both_reserved_ns == found.makespan_ns
    assert found.step_time_s == found.makespan_ns * 1e-9 / p.options.steps


def test_contention_counts_for_all_that_runs_at_once() -> None:
    p = shared(1.25, contention=0.5)
    plan = beside(place(), place(), gpu=1)
    need = alone_ns(shared(0.0), plan, ACTOR + CRITIC) * p.options.steps
    assert scheduled(p, plan).makespan_ns == pytest.approx(need * (1 + 0.5 * 0.25) / 1.25, rel=1e-9)


def test_nodes_have_processors_of_their_own() -> None:
    p = shared(1.0)
    crowded, apart = (scheduled(p, beside(place(), place(), gpu=1 - n, node=n)) for n in (0, 1))
    assert crowded.makespan_ns > last(crowded)
    assert apart.makespan_ns == last(apart)


def test_without_shared_processors_the_makespan_is_the_last_finish() -> None:
    p = shared(0.0)
    found = scheduled(p, beside(place(dp=4), place(dp=4), gpu=4))
    assert found.makespan_ns == last(found)


def test_an_interval_is_one_of_the_predicted_step_time() -> None:
    p = shared(1.0)
    found = scheduled(p, beside(place(), place(), gpu=1))
    spread = uncertainty(found)
    assert spread.step_time_low_s is not None
    assert spread.step_time_high_s is not None
    assert spread.step_time_low_s < found.step_time_s < spread.step_time_high_s


LAYOUTS = st.builds(
    lambda dp, pp, tp: place(dp, pp, tp, mb=pp), *(st.sampled_from([1, 2]) for _ in ("dp", "pp", "tp"))
)
PROCESSORS = st.sampled_from([1.0, 2.0, 3.0, 8.0])
SHARES = st.fixed_dictionaries({"contention": st.floats(0, 1.5), "message_work": st.floats(0, 1)})


@relaxed
@given(LAYOUTS, PROCESSORS, SHARES)
def test_one_operator_at_a_time_needs_no_more_than_its_own_time(layout, processors, shares) -> None:
    """What runs alone knows of its own workers; the bound for all operators together adds nothing."""
    plan = dict.fromkeys(ACTOR + CRITIC, layout)
    found = scheduled(shared(processors, **shares), plan)
    assert found.makespan_ns <= last(found) + len(found.nodes)


@relaxed
@given(LAYOUTS, LAYOUTS, PROCESSORS, SHARES)
def test_beside_each_other_is_between_the_schedule_and_one_after_another(a, b, processors, shares) -> None:
    p, plan = shared(processors, **shares), beside(a, b, gpu=8 - b.allocation.gpus)
    found = scheduled(p, plan)
    operators = sum(n.time_ns for n in found.nodes if n.kind == "Op")
    assert last(found) <= found.makespan_ns <= max(last(found), operators + len(found.nodes))
