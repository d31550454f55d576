"""Memory of cost model `paper`: the five placements of the paper's Figure 3, by its own formulas."""

import msgspec
import pytest

from ir_schema.problem import Edge, Placement
from ir_schema.stages import Configuration
from passes.cost.memory import regions
from passes.cost.paper import PaperCost
from passes.evaluate import evaluate
from passes.verify import verify
from tests.passes.test_cases import CASES, load

replace = msgspec.structs.replace
DPO = load(CASES / "decided" / "09-dpo-sync-colocated-reshard.json")[0]


def at(origin: int, gpus: int) -> Placement:
    """`gpus` GPUs of one node, all data parallel."""
    return Placement(
        origin=(0, 0, origin),
        extent=(1, 1, gpus),
        data_parallel=gpus,
        pipeline_parallel=1,
        tensor_parallel=1,
        microbatches=1,
    )


def peaks(serve: Placement, train: Placement, tau: int):
    problem = replace(DPO.problem, graph=replace(DPO.problem.graph, staleness={"actor": tau}))
    plan = {"ref_inf": at(0, 4), "actor_inf": serve, "actor_train": train}
    return problem, plan, evaluate(Configuration(problem=problem, plan=plan)).devices


FIGURE3 = {
    "synchronous, disjoint": (at(0, 2), at(2, 2), 0, (None, None)),
    "asynchronous, disjoint": (at(0, 2), at(2, 2), 1, ("shadow", None)),
    "inference beyond training": (at(0, 4), at(2, 2), 0, (None, None)),
    "training beyond inference": (at(2, 2), at(0, 4), 1, (None, None)),
    "colocated": (at(0, 4), at(0, 4), 1, (None, None)),
}


@pytest.mark.parametrize("name", FIGURE3)
def test_figure_3(name):
    serve, train, tau, (shadow, _) = FIGURE3[name]
    problem, _, devices = peaks(serve, train, tau)
    model = PaperCost(problem)
    spec = problem.models["actor"]
    shard = model.shard(spec, train)
    for gpu in range(4):
        memory = devices[f"0.0.{gpu}"]
        actor = memory.persistent.get("actor", {})
        trains = train.origin[2] <= gpu < train.origin[2] + train.extent[2]
        serves = serve.origin[2] <= gpu < serve.origin[2] + serve.extent[2]
        assert actor.get("optimizer", 0) == (12 * shard / train.data_parallel if trains else 0)
        kept = shadow is not None and serves
        assert actor.get("shadow", 0) == (shard * 2 if kept else 0)
        assert memory.persistent["ref"] == {"frozen": shard * 2}
        if serves:
            assert memory.transient["actor_inf"]["weights"] == (0 if kept else shard * 2)
        assert ("actor_train" in memory.transient) == trains
        worst = max(sum(parts.values()) for parts in memory.transient.values())
        assert memory.peak_bytes == sum(sum(p.values()) for p in memory.persistent.values()) + worst


def test_several_operators_of_a_frozen_model_count_once_at_the_largest_shard():
    problem, plan, _ = peaks(at(0, 4), at(0, 4), 0)
    wide = replace(plan["ref_inf"], data_parallel=1, tensor_parallel=4)
    g = problem.graph
    second = replace(g.vertices[0], name="ref2", writes=("logp2",))
    problem = replace(
        problem,
        graph=replace(
            g,
            vertices=(*g.vertices, second),
            containers=(*g.containers, replace(g.containers[-1], name="logp2", weights_of=None)),
            outputs=("logp2",),
        ),
    )
    devices = evaluate(Configuration(problem=problem, plan={**plan, "ref2": wide})).devices
    shard = PaperCost(problem).shard(problem.models["ref"], plan["ref_inf"])
    assert devices["0.0.0"].persistent["ref"] == {"frozen": shard * 2}


def test_weights_already_lying_on_a_gpu_are_not_counted_again():
    """A vertex that shares GPUs with training holds M_w only where no other vertex keeps a shadow."""
    problem, plan, _ = peaks(at(0, 2), at(2, 2), 1)
    g = problem.graph
    second = replace(g.vertices[1], name="actor_inf2", writes=("again",))
    problem = replace(
        problem,
        graph=replace(
            g,
            vertices=(*g.vertices, second),
            containers=(*g.containers, replace(g.containers[-1], name="again", weights_of=None)),
            outputs=(*g.outputs, "again"),
            publication_edges=(*g.publication_edges, Edge("actor_train", "actor_inf2", "W_actor")),
        ),
    )
    assert verify(problem) == []
    devices = evaluate(Configuration(problem=problem, plan={**plan, "actor_inf2": at(1, 2)})).devices
    shard = PaperCost(problem).shard(problem.models["actor"], at(1, 2))
    assert devices["0.0.1"].persistent["actor"] == {"shadow": shard * 2}
    assert devices["0.0.1"].transient["actor_inf2"]["weights"] == 0
    assert "shadow" not in devices["0.0.2"].persistent["actor"]
    assert devices["0.0.2"].transient["actor_inf2"]["weights"] == shard * 2


def test_regions_tile_the_device_space():
    plan = {"a": at(0, 2), "b": at(1, 3)}
    boxes = regions((1, 2, 4), plan)
    seen = [c for box, _ in boxes for c in box.coordinates()]
    assert len(seen) == len(set(seen)) == 8
    for box, users in boxes:
        for c in box.coordinates():
            covered = tuple(v for v, p in plan.items() if c in set(p.allocation.coordinates()))
            assert covered == users
