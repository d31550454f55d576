"""Candidates obey the constraints that check plans, and empty sets are explained."""

import itertools

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ir_schema.device import Allocation
from ir_schema.problem import PartialPlacement, Placement, SearchSpace
from passes.search.candidates import Enumeration
from passes.search.constraints import Rules, excluded_mask
from passes.search.evaluator import Evaluator
from passes.search.legality import explain, legal, plan_errors
from tests.passes.search.worked import CASES, mixture, ppo, read_case

SPACES = [(1, 1, 4), (1, 2, 4), (2, 3, 4), (1, 1, 6), (2, 2, 8), (1, 5, 2)]


def enumerate_(problem, name, **fixed):
    vertex = next(v for v in problem.graph.vertices if v.name == name)
    rules = Rules(problem, vertex, excluded_mask(problem))
    return Enumeration(Evaluator(problem), rules, PartialPlacement(**fixed))


def empty(problem, name, **fixed):
    enumeration = enumerate_(problem, name, **fixed)
    candidates = enumeration.candidates()
    assert len(candidates) == 0
    return explain(enumeration)


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}/{p.stem[:2]}")
def test_the_worked_plans_are_legal(path):
    configuration = read_case(path)
    for v in configuration.problem.graph.vertices:
        assert legal(configuration.problem, v, configuration.plan[v.name]) == []


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(SPACES),
    st.sampled_from(["paper", "megatron"]),
    st.sampled_from([12, 64, 510]),
    st.integers(1, 3),
    st.sampled_from(["actor_gen", "ref_inf", "actor_train"]),
)
def test_candidates_are_exactly_the_legal_placements(space, cost_model, prompts, minibatches, name):
    """Against every box and every layout of the machine, checked one by one."""
    problem = ppo(space, cost_model=cost_model, prompts=prompts, minibatches=minibatches, prompt_length=64)
    vertex = next(v for v in problem.graph.vertices if v.name == name)
    enumeration = enumerate_(problem, name)
    found = set(enumeration.candidates())
    for p in found:
        assert legal(problem, vertex, p) == []
    rules = enumeration.rules
    limit = enumeration.evaluator.limit_bytes
    for extent in itertools.product(*(range(1, n + 1) for n in space)):
        gpus = extent[0] * extent[1] * extent[2]
        for dp, pp in itertools.product([d for d in range(1, gpus + 1) if gpus % d == 0], repeat=2):
            if gpus % (dp * pp):
                continue
            for origin in itertools.product(*(range(s - e + 1) for s, e in zip(space, extent, strict=True))):
                for mb in (1, 2, 3, 4, 6, 8):
                    p = Placement(
                        origin=origin,
                        extent=extent,
                        data_parallel=dp,
                        pipeline_parallel=pp,
                        tensor_parallel=gpus // (dp * pp),
                        microbatches=mb,
                    )
                    if p in found or legal(problem, vertex, p):
                        continue
                    assert enumeration.evaluator.model.operator_bytes(rules.vertex, p) > limit


def test_sorted_by_time_then_degrees():
    shapes = enumerate_(ppo(), "actor_train").candidates().shapes
    assert [s.key for s in shapes] == sorted(s.key for s in shapes)
    assert len({s.key for s in shapes}) == len(shapes)


def test_fixed_fields_constrain():
    candidates = list(enumerate_(ppo(), "actor_gen", tensor_parallel=2, extent=(1, 1, 4)).candidates())
    assert candidates
    assert {(p.tensor_parallel, p.extent) for p in candidates} == {(2, (1, 1, 4))}


def test_excluded_gpus_are_not_used():
    problem = ppo(search=SearchSpace(exclude=("0.1.2",)))
    gone = Allocation(origin=(0, 1, 2), extent=(1, 1, 1))
    candidates = list(enumerate_(problem, "actor_gen").candidates())
    assert candidates
    assert not any(p.allocation.overlap(gone) for p in candidates)
    full = next(p for p in enumerate_(ppo(), "actor_gen").candidates() if p.allocation.gpus == 8)
    assert [d.code for d in legal(problem, problem.graph.vertices[0], full)] == ["E418"]


@pytest.mark.parametrize(
    ("fixed", "code", "path", "hint"),
    [
        ({"tensor_parallel": 3}, "E411", "plan.actor_gen.tensor_parallel", "nearest legal: 2, 4"),
        ({"pipeline_parallel": 3}, "E412", "plan.actor_gen.pipeline_parallel", "nearest legal: 2, 4"),
        ({"data_parallel": 4}, "E413", "plan.actor_gen.data_parallel", "nearest 508, 512"),
        ({"pipeline_parallel": 2, "microbatches": 7}, "E414", "plan.actor_gen.microbatches", "nearest"),
        ({"extent": (1, 1, 3)}, "E405", "plan.actor_gen.extent", "2, 4"),
        ({"extent": (1, 2, 2)}, "E417", "plan.actor_gen.extent", ""),
        ({"origin": (0, 0, 1), "extent": (1, 1, 2)}, "E417", "plan.actor_gen.origin", "[0, 0, 0], [0, 0, 2]"),
        (
            {"data_parallel": 3, "pipeline_parallel": 1, "tensor_parallel": 1},
            "E416",
            "plan.actor_gen",
            "nearest legal: 2",
        ),
        (
            {"extent": (1, 2, 4), "tensor_parallel": 1, "pipeline_parallel": 1},
            "E413",
            "plan.actor_gen.extent",
            "504, 512",
        ),
    ],
)
def test_an_empty_set_names_constraint_and_nearest_value(fixed, code, path, hint):
    problem = ppo(prompts=510)
    (diagnostic,) = empty(problem, "actor_gen", **fixed)
    assert diagnostic.code == code
    assert diagnostic.labels[0].path.startswith(path)
    assert hint in diagnostic.help
    assert "actor_gen" in diagnostic.message


def test_out_of_memory_names_the_smallest_layout():
    problem = ppo()
    small = msgspec.structs.replace(problem.hardware, memory_bytes=2e9)
    (diagnostic,) = empty(msgspec.structs.replace(problem, hardware=small), "actor_train")
    assert diagnostic.code == "E421"
    assert "GiB" in diagnostic.help


def test_accumulation_follows_the_cost_model():
    long = {"prompts": 64, "prompt_length": 1024}
    paper = list(enumerate_(ppo(**long), "actor_train").candidates())
    assert {p.microbatches for p in paper if p.pipeline_parallel == 1} == {1}
    megatron = ppo(cost_model="megatron", **long)
    assert any(
        p.microbatches > 1 and p.pipeline_parallel == 1
        for p in enumerate_(megatron, "actor_train").candidates()
    )
    generation = list(enumerate_(megatron, "actor_gen").candidates())
    assert {p.microbatches for p in generation if p.pipeline_parallel == 1} == {1}


def test_generation_that_does_not_fit_runs_in_waves():
    problem = ppo((1, 1, 2), cost_model="megatron", prompts=2048)
    found = list(enumerate_(problem, "actor_gen").candidates())
    assert found
    assert all(p.waves > 1 for p in found)
    evaluator = Evaluator(problem)
    vertex = problem.graph.vertices[0]
    for layout in {(p.layout, p.microbatches) for p in found}:
        same = [p for p in found if (p.layout, p.microbatches) == layout]
        fewest = min(same, key=lambda p: p.waves)
        fewer = msgspec.structs.replace(fewest, waves=fewest.waves - 1)
        assert evaluator.model.operator_bytes(vertex, fewer) > evaluator.limit_bytes


def test_incomplete_and_host_plans():
    problem = ppo()
    assert {d.code for d in plan_errors(problem, {})} == {"E403"}
    assert len(plan_errors(problem, {})) == 6
    partial = {"actor_gen": PartialPlacement(origin=(0, 0, 0))}
    assert "extent" in plan_errors(problem, partial)[0].message


def test_the_layout_must_fill_the_allocation():
    problem = ppo()
    p = Placement(
        origin=(0, 0, 0),
        extent=(1, 1, 4),
        data_parallel=2,
        pipeline_parallel=1,
        tensor_parallel=1,
        microbatches=1,
    )
    (diagnostic,) = legal(problem, problem.graph.vertices[0], p)
    assert diagnostic.code == "E405"


@pytest.mark.parametrize("name", ["actor_gen", "ref_inf", "actor_train"])
def test_five_degrees_are_enumerated_where_they_are_legal(name):
    problem = mixture(16384)
    enumeration = enumerate_(problem, name)
    shapes = enumeration.candidates().shapes
    vertex = enumeration.rules.vertex
    assert shapes
    for s in shapes:
        assert legal(problem, vertex, s.placement) == []
    assert {s.placement.expert_parallel for s in shapes} > {4, 8}
    assert {s.placement.context_parallel for s in shapes} == ({1} if name == "actor_gen" else {1, 2, 4})


def test_an_expert_degree_left_out_is_beaten_by_one_in_the_same_layout():
    enumeration = enumerate_(mixture(2048), "ref_inf")
    shapes = enumeration.candidates().shapes
    number = enumeration.evaluator.placed.index("ref_inf")
    kept = {s.placement for s in shapes}
    by_layout: dict[Placement, list] = {}
    for s in shapes:
        by_layout.setdefault(msgspec.structs.replace(s.placement, expert_parallel=1), []).append(s)
    left_out = 0
    for layout, others in by_layout.items():
        ranks = layout.data_parallel * layout.tensor_parallel * layout.context_parallel
        for ep in (1, 2, 4, 8, 16):
            p = msgspec.structs.replace(layout, expert_parallel=ep)
            if ranks % ep or p in kept:
                continue
            left_out += 1
            time_ns = enumeration.evaluator.operator_ns(number, enumeration.evaluator.shape(number, p))
            nbytes = enumeration.evaluator.model.operator_bytes(enumeration.rules.vertex, p)
            over = nbytes > enumeration.evaluator.limit_bytes
            assert over or any(s.time_ns <= time_ns and s.nbytes <= nbytes for s in others)
    assert left_out


def test_short_sequences_dense_models_and_three_dimensions_need_no_further_degrees():
    for problem, name in [
        (mixture(2048), "actor_train"),
        (ppo(cost_model="megatron"), "actor_train"),
        (ppo(cost_model="paper", response_length=16384, length_quantiles=()), "ref_inf"),
    ]:
        shapes = enumerate_(problem, name).candidates().shapes
        assert {s.placement.context_parallel for s in shapes} == {1}
    assert {s.placement.expert_parallel for s in shapes} == {1}


def test_fixed_context_and_expert_degrees_are_kept():
    shapes = enumerate_(mixture(2048), "ref_inf", context_parallel=2, expert_parallel=4).candidates().shapes
    assert {(s.placement.context_parallel, s.placement.expert_parallel) for s in shapes} == {(2, 4)}
    (diagnostic,) = empty(mixture(2048), "ref_inf", context_parallel=2, extent=(1, 1, 6))
    assert diagnostic.code in ("E405", "E413", "E417")
