"""Differences are found by name: an insertion is one addition, whatever it does to ids."""

import msgspec
import pytest

from ir_schema.device import Allocation
from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration, Lowered, Node
from passes.assemble import assemble
from passes.evaluate import evaluate
from rpegc.diff import difference, render
from tests.rpegc.conftest import configured, measured

ALL = Allocation(origin=(0, 0, 0), extent=(1, 2, 4))


def placement(tensor: int) -> Placement:
    return Placement(
        origin=(0, 0, 0),
        extent=(1, 1, tensor),
        data_parallel=1,
        pipeline_parallel=1,
        tensor_parallel=tensor,
        microbatches=1,
    )


@pytest.fixture
def configuration(problem: Problem) -> Configuration:
    plan = {v.name: placement(2) for v in problem.graph.vertices}
    return Configuration(problem=msgspec.structs.replace(problem, plan={}), plan=plan)


def lowered(configuration: Configuration, *names: str) -> Lowered:
    """A chain of Ops called `names`."""
    nodes = [
        Node(
            id=i,
            kind="Op",
            vertex=name,
            vertex_index=0,
            step=0,
            phase=1,
            allocation=ALL,
            predecessors=(i - 1,) if i else (),
        )
        for i, name in enumerate(names)
    ]
    return Lowered(configuration=configuration, nodes=tuple(nodes))


def test_a_stage_equals_itself(configuration: Configuration) -> None:
    found = difference(configuration, configuration)
    assert found.same
    assert render(found) == "the same configuration"


def test_placement_comes_first(configuration: Configuration) -> None:
    other = msgspec.structs.replace(configuration, plan={**configuration.plan, "ref_inf": placement(4)})
    found = difference(configuration, other)
    assert found.headline == ("ref_inf: [0,0,0]+[1,1,2] dp1 pp1 tp2 mb1 => [0,0,0]+[1,1,4] dp1 pp1 tp4 mb1",)
    changed = {c.path: (c.before, c.after, c.percent) for c in found.changes}
    assert changed["plan.ref_inf.tensor_parallel"] == (2, 4, 100.0)
    assert "~ plan.ref_inf.tensor_parallel: 2 => 4 (+100 %)" in render(found)


def test_an_inserted_node_is_one_addition(configuration: Configuration) -> None:
    found = difference(lowered(configuration, "a", "c"), lowered(configuration, "a", "b", "c"))
    assert [(c.kind, c.path) for c in found.changes] == [
        ("changed", "nodes[Op c@0].predecessors"),
        ("added", "nodes[Op b@0]"),
    ]


def test_vertices_are_matched_by_name_and_their_order_counts(problem: Problem) -> None:
    vertices = problem.graph.vertices
    swapped = msgspec.structs.replace(
        problem, graph=msgspec.structs.replace(problem.graph, vertices=vertices[::-1])
    )
    assert [c.path for c in difference(problem, swapped).changes] == ["graph.vertex_order"]


def test_edges_are_removed_and_added(problem: Problem) -> None:
    edges = problem.graph.data_edges
    fewer = msgspec.structs.replace(
        problem, graph=msgspec.structs.replace(problem.graph, data_edges=edges[1:])
    )
    [found] = difference(problem, fewer).changes
    e = edges[0]
    assert (found.kind, found.path) == (
        "removed",
        f"graph.data_edges[{e.source} -> {e.target} : {e.container}]",
    )
    [found] = difference(fewer, problem).changes
    assert found.kind == "added"


def test_stat_counts(configuration: Configuration) -> None:
    other = msgspec.structs.replace(configuration, plan={**configuration.plan, "ref_inf": placement(4)})
    assert render(difference(configuration, other), stat=True).splitlines()[-2:] == [
        "2 changed",
        "       2  plan",
    ]


def test_different_stages_cannot_be_compared(problem: Problem, configuration: Configuration) -> None:
    with pytest.raises(ValueError, match="a `problem` cannot be compared with a `configuration`"):
        difference(problem, configuration)


@pytest.mark.parametrize(
    ("spread", "words"),
    [(0.3, ", indistinguishable: 90 % interval"), (0.001, ", distinguishable: 90 % interval")],
)
def test_it_is_said_whether_a_difference_is_more_than_predictions_are_off(
    problem: Problem, spread: float, words: str
) -> None:
    given = configured(measured(problem, spread))
    reference = given.plan["ref_inf"]
    other = msgspec.structs.replace(
        reference,
        data_parallel=2 * reference.data_parallel,
        tensor_parallel=reference.tensor_parallel // 2,
    )
    changed = msgspec.structs.replace(given, plan={**given.plan, "ref_inf": other})
    before, after = evaluate(given), evaluate(changed)
    assert before.step_time_s != after.step_time_s
    for pair in ((before, after), (assemble(before), assemble(after))):
        [told] = [line for line in difference(*pair).headline if line.startswith("step time")]
        assert words in told


def test_no_significance_is_invented(problem: Problem) -> None:
    given = evaluate(configured(problem))
    [told] = difference(given, msgspec.structs.replace(given, step_time_s=1.0)).headline
    assert "distinguishable" not in told
