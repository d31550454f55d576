"""The invariants hold of what the passes make of every worked case, and each notices what breaks it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ir_schema.base import Record
from ir_schema.problem import PartialPlacement
from ir_schema.stages import Configuration, Executable, Scheduled
from passes.assemble import assemble
from passes.evaluate import evaluate
from passes.unroll import unroll
from rpegc.invariants import violations
from tests.rpegc.conftest import CASES, case_problem, configured

replace: Callable[..., Any] = msgspec.structs.replace


@pytest.fixture(scope="module")
def configuration() -> Configuration:
    return configured(case_problem(CASES / "decided" / "03-ppo-async-disjoint-split.json"))


@pytest.fixture(scope="module")
def scheduled(configuration: Configuration) -> Scheduled:
    return evaluate(configuration)


@pytest.fixture(scope="module")
def executable(scheduled: Scheduled) -> Executable:
    return assemble(scheduled)


@pytest.mark.parametrize("path", sorted(CASES.glob("*/*.json")), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_the_passes_make_sound_stages(path: Any) -> None:
    c = configured(case_problem(path))
    s = evaluate(c)
    for stage in (c, unroll(c), s, assemble(s)):
        assert violations(stage) == []


def with_node(stage: Any, index: int, field: str = "nodes", **changes: Any) -> Record:
    """The stage with one node changed."""
    nodes = list(getattr(stage, field))
    nodes[index] = replace(nodes[index], **changes)
    return replace(stage, **{field: tuple(nodes)})


def test_configuration(configuration: Configuration) -> None:
    name, placement = next(iter(configuration.plan.items()))

    def changed(**changes: Any) -> list[str]:
        plan = {**configuration.plan, name: replace(placement, **changes)}
        return violations(replace(configuration, plan=plan))

    assert any(v.startswith(f"`{name}`") for v in changed(origin=(9, 0, 0)))
    assert any("GPUs" in v for v in changed(data_parallel=2 * placement.data_parallel))
    plan = {k: v for k, v in configuration.plan.items() if k != name}
    assert violations(replace(configuration, plan=plan)) == [f"`{name}` has no placement"]
    assert violations(replace(configuration, plan={**configuration.plan, "x": placement})) == [
        "there is a placement for `x`, which does not exist"
    ]
    workload = replace(configuration.problem.workload, epochs=0)
    ill = replace(configuration.problem, workload=workload)
    assert any(v.startswith("E303") for v in violations(replace(configuration, problem=ill)))
    kept = replace(configuration.problem, plan={name: PartialPlacement()})
    assert violations(replace(configuration, problem=kept)) == [
        "a configuration's problem still has a search space or a partial plan"
    ]


def test_encoding(configuration: Configuration) -> None:
    broken = replace(configuration, problem=replace(configuration.problem, name=3))
    assert any("cannot be encoded and decoded" in v for v in violations(broken))


def test_unrolled(configuration: Configuration) -> None:
    u = unroll(configuration)
    vertices = (u.vertices[1], u.vertices[0], *u.vertices[2:])
    assert len(violations(replace(u, vertices=vertices))) == 2
    back = replace(u.edges[0], source=u.edges[0].target, target=u.edges[0].source)
    assert any(v.startswith("there is a cycle") for v in violations(replace(u, edges=(*u.edges, back))))
    stray = replace(u.edges[0], source=10**6)
    assert any("joins unknown vertices" in v for v in violations(replace(u, edges=(*u.edges, stray))))


def test_nodes(scheduled: Scheduled) -> None:
    assert any("has id 7" in v for v in violations(with_node(scheduled, 0, id=7)))
    assert any("negative payload" in v for v in violations(with_node(scheduled, 0, payload_bytes=-1)))
    assert any("unknown predecessor" in v for v in violations(with_node(scheduled, 0, predecessors=(10**6,))))
    assert any("there is a cycle" in v for v in violations(with_node(scheduled, 0, predecessors=(0,))))


def test_costs(scheduled: Scheduled) -> None:
    assert any("negative duration" in v for v in violations(with_node(scheduled, 0, time_ns=-1)))
    assert any("are not those of" in v for v in violations(replace(scheduled, devices={})))
    name, memory = next(iter(scheduled.devices.items()))
    devices = {**scheduled.devices, name: replace(memory, peak_bytes=memory.peak_bytes + 1)}
    assert violations(replace(scheduled, devices=devices)) == [
        f"the peak of GPU {name} is not the sum of its parts"
    ]


def test_schedule(scheduled: Scheduled) -> None:
    node = next(n for n in scheduled.nodes if n.predecessors and n.time_ns and n.start_ns)
    early = with_node(scheduled, node.id, start_ns=0, finish_ns=node.time_ns)
    found = violations(early)
    assert any("starts before its predecessor" in v for v in found)
    assert any("at the same time" in v for v in found)
    assert any("and ends at" in v for v in violations(with_node(scheduled, node.id, finish_ns=0)))
    assert violations(replace(scheduled, makespan_ns=1)) == ["the makespan is not the largest finish"]
    assert violations(replace(scheduled, placement_order=())) == [
        "the placement order does not name every node once"
    ]
    assert violations(replace(scheduled, critical_path=(10**6,))) == [
        "the critical path names an unknown node"
    ]


def test_template(executable: Executable) -> None:
    index, node = next((i, n) for i, n in enumerate(executable.template) if n.edges)
    edge = node.edges[0]

    def changed(**changes: Any) -> list[str]:
        edges = (replace(edge, **changes), *node.edges[1:])
        return violations(with_node(executable, index, "template", edges=edges))

    assert changed(source=10**6) == [f"template node {index} depends on the unknown node {10**6}"]
    assert changed(distance=-1) == [f"template node {index} has a negative step distance"]
    assert any("there is a cycle" in v for v in changed(source=index, distance=0))
    assert any("has id" in v for v in violations(with_node(executable, 0, "template", id=5)))
