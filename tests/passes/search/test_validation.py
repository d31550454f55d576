"""What a search refuses is found without one, and nothing else is."""

import msgspec
import pytest

from ir_schema.diagnostics import DiagnosticError
from ir_schema.problem import PartialPlacement, SearchSpace, Verifier
from passes.search import Search
from passes.search.validation import check_choices
from tests.passes.search.worked import CASES, case, read_case

replace = msgspec.structs.replace


def planned(problem, vertex, **fields):
    return replace(problem, plan={vertex: PartialPlacement(**fields)})


def with_host(problem):
    vertices = tuple(replace(v, model=None) if v.name == "reward_inf" else v for v in problem.graph.vertices)
    graph = replace(problem.graph, vertices=vertices)
    return replace(problem, graph=graph, host={"reward_inf": Verifier(seconds_per_response=1e-3)})


REFUSED = {
    "a plan of a verifier": (lambda p: planned(with_host(p), "reward_inf", tensor_parallel=1), "E402"),
    "tensor parallelism": (lambda p: planned(p, "actor_gen", tensor_parallel=3), "E411"),
    "pipeline parallelism": (lambda p: planned(p, "actor_gen", pipeline_parallel=7), "E412"),
    "data parallelism": (lambda p: planned(p, "actor_gen", data_parallel=7), "E413"),
    "microbatches": (lambda p: planned(p, "actor_train", microbatches=10**5), "E414"),
    "a negative extent": (lambda p: planned(p, "actor_train", extent=(1, 1, -4)), "E417"),
    "an origin": (lambda p: planned(p, "actor_train", origin=(0, 99, 0)), "E417"),
    "waves": (lambda p: planned(p, "actor_train", waves=99), "E419"),
    "experts of a dense model": (lambda p: planned(p, "actor_gen", expert_parallel=4), "E419"),
    "negative staleness": (lambda p: replace(p, search=SearchSpace(staleness={"actor": (-1,)})), "E432"),
    "no staleness": (lambda p: replace(p, search=SearchSpace(staleness={"actor": ()})), "E432"),
    "frozen staleness": (lambda p: replace(p, search=SearchSpace(staleness={"ref": (1,)})), "E432"),
    "sharing": (lambda p: replace(p, search=SearchSpace(share=(("actor", "ref"),))), "E430"),
    "fusion": (lambda p: replace(p, search=SearchSpace(fuse=(("actor_train", "ref_inf"),))), "E434"),
}


def started(configuration, changes=None, **search):
    """The problem of a configuration, starting from its plan with some placements changed."""
    plan = {**configuration.plan, **(changes or {})}
    return replace(configuration.problem, search=SearchSpace(warm_start=plan, **search))


def moved(configuration, vertex, **fields):
    return started(configuration, {vertex: replace(configuration.plan[vertex], **fields)})


WARM = {
    "of another graph": (lambda c: started(c, {"other": c.plan["ref_inf"]}), "E435"),
    "on GPUs beyond the cluster": (lambda c: moved(c, "ref_inf", origin=(0, 99, 0)), "E417"),
    "with too many microbatches": (lambda c: moved(c, "actor_train", microbatches=10**5), "E414"),
    "on excluded GPUs": (lambda c: started(c, exclude=("0.0.0",)), "E418"),
    "contradicting what is fixed": (
        lambda c: replace(started(c), plan={"ref_inf": PartialPlacement(waves=2)}),
        "E436",
    ),
}


@pytest.mark.parametrize("name", WARM)
def test_a_warm_start_that_cannot_be_one_is_refused(name):
    change, code = WARM[name]
    problem = change(case("05"))
    found = check_choices(problem)
    assert {d.code for d in found} == {code}
    assert "warm start" in found[0].message
    with pytest.raises(DiagnosticError) as caught:
        Search(method="greedy").run(problem)
    assert list(caught.value.diagnostics) == found


def test_a_legal_warm_start_is_no_finding():
    assert check_choices(started(case("05"))) == []


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("cost_model", ["paper", "megatron"])
def test_impossible_choices_are_found_as_the_search_finds_them(name, cost_model):
    change, code = REFUSED[name]
    problem = case("05").problem
    problem = change(replace(problem, options=replace(problem.options, cost_model=cost_model)))
    found = check_choices(problem)
    assert {d.code for d in found} == {code}
    with pytest.raises(DiagnosticError) as caught:
        Search(method="greedy").run(problem)
    assert list(caught.value.diagnostics) == found


def test_excluding_every_gpu_is_found_without_any_plan_in_the_file():
    problem = replace(case("05").problem, plan={})
    names = [f"{r}.{n}.{g}" for r, n, g in _coordinates(problem.device_space)]
    found = check_choices(replace(problem, search=SearchSpace(exclude=tuple(names))))
    assert {d.code for d in found} == {"E418"}
    assert check_choices(replace(problem, search=SearchSpace(exclude=tuple(names[1:])))) == []


def _coordinates(space):
    return [(r, n, g) for r in range(space[0]) for n in range(space[1]) for g in range(space[2])]


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}/{p.stem[:2]}")
def test_worked_plans_are_possible(path):
    configuration = read_case(path)
    plan = {v: PartialPlacement(**msgspec.structs.asdict(p)) for v, p in configuration.plan.items()}
    assert check_choices(replace(configuration.problem, plan=plan)) == []


def test_one_structure_that_can_be_placed_is_enough():
    problem = planned(case("05").problem, "actor_gen", tensor_parallel=3)
    assert check_choices(problem)
    assert check_choices(planned(problem, "actor_gen", tensor_parallel=1)) == []
