"""Structural choices: only listed values, and sharing as a rewrite of graphs."""

import msgspec
import pytest

from ir_schema.diagnostics import DiagnosticError
from ir_schema.problem import Optimizer, PartialPlacement, RunConfig, SearchSpace
from passes.search.sharing import share
from passes.search.structures import structures
from passes.verify import verify
from tests.passes.search.worked import case, ppo


def chosen(problem, **kwargs):
    return [s for s, _ in structures(problem, **kwargs)]


def test_only_listed_values_are_tried():
    space = SearchSpace(staleness={"actor": (0, 2)}, fuse=(None, ("actor_train", "critic_train")))
    found = structures(ppo(search=space))
    assert {dict(s.staleness)["actor"] for s, _ in found} == {0, 2}
    assert {dict(s.staleness)["critic"] for s, _ in found} == {0}
    assert {s.fuse for s, _ in found} == {None, ("actor_train", "critic_train")}
    assert {s.split for s, _ in found} == {"auto", "never"}
    assert {s.share for s, _ in found} == {None}
    assert len(found) == 8
    for s, problem in found:
        assert problem.search is None
        assert problem.graph.staleness == dict(s.staleness)
        assert (problem.options.fuse, problem.options.split) == (s.fuse, s.split)


def test_splitting_is_a_choice_only_where_it_changes_something():
    assert {s.split for s in chosen(ppo())} == {"auto", "never"}
    assert {s.split for s in chosen(ppo(length_quantiles=()))} == {"auto"}
    assert {s.split for s in chosen(ppo(search=SearchSpace(split=("auto",))))} == {"auto"}


def test_ablations_of_structure():
    problem = ppo(search=SearchSpace(staleness={"actor": (0, 1)}))
    assert {s.split for s in chosen(problem, splitting=False)} == {"never"}
    assert {dict(s.staleness)["actor"] for s in chosen(problem, asynchrony=False)} == {0}


def test_sharing_gives_the_shared_presets_graph():
    """The worked shared case was written independently; its workload has R = 2."""
    wanted = case("11").problem
    shared = share(ppo(prompts=128), "actor", "critic")
    x16 = case("x16").problem
    assert shared.graph == x16.graph
    assert shared.models == x16.models == wanted.models
    assert verify(shared) == []


def test_sharing_moves_what_refers_to_the_models():
    problem = msgspec.structs.replace(
        ppo(),
        plan={
            "actor_train": PartialPlacement(tensor_parallel=2),
            "ref_inf": PartialPlacement(microbatches=1),
        },
        run=RunConfig(optimizers={"critic": Optimizer(learning_rate=1.0), "actor": Optimizer()}),
        options=msgspec.structs.replace(ppo().options, fuse=("actor_train", "critic_train")),
    )
    shared = share(problem, "actor", "critic")
    assert shared.options.fuse is None
    assert set(shared.plan) == {"actor_critic_train", "ref_inf"}
    assert shared.run.optimizers == {"actor_critic": Optimizer()}
    assert verify(shared) == []


def test_sharing_structures():
    space = SearchSpace(
        staleness={"actor": (0, 1), "critic": (0, 1)}, share=(None, ("actor", "critic")), split=("auto",)
    )
    found = structures(ppo(search=space))
    merged = [p for s, p in found if s.share]
    assert [p.graph.staleness for p in merged] == [{"actor_critic": 0}, {"actor_critic": 1}]
    assert len(found) == 6
    both = SearchSpace(
        share=(("actor", "critic"),), fuse=(None, ("actor_train", "critic_train")), split=("auto",)
    )
    assert len(structures(ppo(search=both))) == 1


@pytest.mark.parametrize(
    ("space", "code"),
    [
        (SearchSpace(share=(("actor", "ref"),)), "E430"),
        (SearchSpace(share=(("critic", "actor"),)), "E430"),
        (SearchSpace(staleness={"ref": (0, 1)}), "E432"),
        (SearchSpace(staleness={"actor": (-1,)}), "E432"),
        (SearchSpace(staleness={"actor": (1,)}, share=(("actor", "critic"),)), "E433"),
        (SearchSpace(fuse=(("actor_train", "actor_gen"),)), "E434"),
    ],
)
def test_impossible_choices_are_refused(space, code):
    with pytest.raises(DiagnosticError) as caught:
        structures(ppo(search=space))
    assert code in {d.code for d in caught.value.diagnostics}


def test_backbones_must_be_equal():
    problem = ppo()
    wider = msgspec.structs.replace(problem.models["critic"], ffn=1234)
    with pytest.raises(DiagnosticError, match="differ in ffn"):
        share(msgspec.structs.replace(problem, models=problem.models | {"critic": wider}), "actor", "critic")


def test_conflicting_plans_cannot_be_merged():
    plan = {
        "actor_train": PartialPlacement(tensor_parallel=2),
        "critic_train": PartialPlacement(tensor_parallel=4),
    }
    with pytest.raises(DiagnosticError, match="E431"):
        share(msgspec.structs.replace(ppo(), plan=plan), "actor", "critic")


@pytest.mark.parametrize(
    ("policy", "value", "fine"), [("a", None, True), ("a", "a", True), ("a", "b", False), (None, "b", False)]
)
def test_one_backbone_has_one_checkpoint(policy, value, fine):
    problem = ppo(search=SearchSpace(share=(("actor", "critic"),)))
    models = problem.models
    own = {"actor": policy, "critic": value}
    models = models | {m: msgspec.structs.replace(models[m], checkpoint=c) for m, c in own.items()}
    problem = msgspec.structs.replace(problem, models=models)
    if fine:
        assert {p.models["actor_critic"].checkpoint for _, p in structures(problem)} == {policy}
        return
    with pytest.raises(DiagnosticError, match="a checkpoint of its own"):
        structures(problem)
