"""Memory of cost model `megatron`: parts by hand, and who holds which weights when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_schema.device import Allocation
from ir_schema.problem import Layout
from ir_schema.stages import Configuration
from passes.cost import parameters
from passes.cost.megatron_memory import cache_bytes, logit_bytes, training_state, weight_bytes
from passes.evaluate import evaluate
from rpegc.models import load_model
from tests.passes.cost.ppo import cost, place, problem, replace, vertex
from tests.strategies import configurations

LLAMA = load_model("llama-3.1-8b", "lm")
ROLES = ("actor_gen", "ref_inf", "actor_train")


def layout(dp=1, pp=1, tp=1, cp=1, ep=1):
    return place(dp, pp, tp, cp=cp, ep=ep).layout


def test_training_state_of_mixed_and_single_precision():
    n = parameters.total(LLAMA)
    assert training_state(LLAMA, layout(dp=4)) == {
        "weights": 2 * n,
        "gradients": 4 * n,
        "optimizer": 12 * n / 4,
    }
    single = replace(LLAMA, bytes_per_parameter=4)  # the weights are their own master copy
    assert training_state(single, layout(dp=4)) == {
        "weights": 4 * n,
        "gradients": 4 * n,
        "optimizer": 8 * n / 4,
    }
    double = replace(LLAMA, bytes_per_parameter=8)
    assert training_state(double, layout()) == {"weights": 8 * n, "gradients": 8 * n, "optimizer": 16 * n}


def test_expert_state_shards_over_other_ranks_than_dense():
    spec = load_model("qwen3-30b-a3b", "lm")
    shard = parameters.largest_shard(spec, layout(dp=8, ep=4))
    state = training_state(spec, layout(dp=8, ep=4))
    assert state["optimizer"] == 12 * (shard.dense / 8 + shard.expert / 2)
    wide = layout(dp=4, tp=2, ep=8)
    shard = parameters.largest_shard(spec, wide)
    assert training_state(spec, wide)["optimizer"] == 12 * (shard.dense / 4 + shard.expert)


def test_cache_by_local_heads():
    per_token = 2 * 8 * 128 * 2 * 32
    assert cache_bytes(LLAMA, layout(), 10) == 10 * per_token
    assert cache_bytes(LLAMA, layout(tp=8), 10) == 10 * per_token / 8
    assert cache_bytes(LLAMA, layout(dp=1, tp=16), 10) == 10 * per_token / 8  # one head stays on every rank
    assert cache_bytes(LLAMA, layout(pp=4, tp=2), 10) == 10 * per_token / 8
    deepseek = load_model("deepseek-v3", "lm")
    assert cache_bytes(deepseek, layout(), 1) == cache_bytes(deepseek, layout(tp=8), 1) == 61 * 576 * 2


def test_logits_and_their_copy():
    assert logit_bytes(LLAMA, layout(tp=4), 100) == 100 * 128512 / 4 * 6
    assert logit_bytes(LLAMA, layout(cp=2), 100) == 50 * 128256 * 6
    assert logit_bytes(replace(LLAMA, head="scalar"), layout(), 100) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ROLES), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])
)
def test_more_tensor_ranks_and_replicas_need_less(name, pp, tp, dp):
    m = cost()
    v = vertex(m, name)

    def need(**k):
        shape = {"pp": pp, "tp": tp, "dp": dp, "mb": 8 if pp > 1 or name == "actor_train" else 1} | k
        return m.operator_bytes(v, place(**shape))

    assert need(tp=2 * tp) < need()
    assert need(dp=2 * dp) < need()


def test_accumulation_and_context_parallelism_shrink_activations():
    m = cost()
    v = vertex(m, "actor_train")

    def transient(p):
        return sum(m.residency.transient(v, p).values())

    assert transient(place(dp=4, mb=16)) == pytest.approx(transient(place(dp=4, mb=8)) / 2)
    assert transient(place(dp=2, cp=2, mb=16)) == pytest.approx(transient(place(dp=2, mb=16)) / 2)
    halves = cost(minibatches=2)
    assert sum(halves.residency.transient(v, place(dp=4, mb=8)).values()) == pytest.approx(
        transient(place(dp=4, mb=16))
    )


def test_the_first_stage_keeps_a_microbatch_per_stage_and_the_last_its_logits():
    m = cost(length_quantiles=())
    critic, actor = vertex(m, "critic_train"), vertex(m, "actor_train")
    p = place(dp=2, pp=4, mb=64)
    tokens = 512 / 2 / 64 * 1280
    assert m.residency.transient(critic, p)["layer_inputs"] == 4 * tokens * 8 * 4096 * 2
    found = m.residency.transient(actor, p)
    assert found["logits"] == 512 / 2 / 64 * 1024 * 128256 * 6
    assert found["layer_inputs"] == tokens * 8 * 4096 * 2


def test_waves_bound_the_cache():
    m = cost()
    v = vertex(m, "actor_gen")
    caches = [m.residency.transient(v, place(dp=4, waves=w))["kv_cache"] for w in (1, 2, 3)]
    assert caches == [c * 1280 * 2 * 8 * 128 * 2 * 32 for c in (128, 64, 43)]


PPO = ("actor_gen", "ref_inf", "reward_inf", "critic_inf", "actor_train", "critic_train")


def peaks(plan, tau=0, **workload):
    found = cost(tau=tau, **workload).memory(plan, [])
    return {box.origin: memory for box, memory in found}


def colocated(**changes):
    train = {name: place(dp=8, tp=4, mb=8) for name in PPO}
    train["actor_gen"] = place(dp=8, tp=4)
    return train | changes


def test_one_layout_needs_no_copies():
    (memory,) = peaks(colocated()).values()
    assert set(memory.persistent["actor"]) == {"weights", "gradients", "optimizer"}
    assert set(memory.persistent["ref"]) == {"weights"}
    assert all(t["weights"] == t["other_weights"] == 0 for t in memory.transient.values())
    assert memory.peak_bytes == memory.persistent_bytes + memory.transient_bytes


def test_visiting_weights_are_there_from_training_to_their_readers():
    visitor = place(dp=16, tp=2)
    (memory,) = peaks(colocated(actor_gen=visitor)).values()
    nbytes = round(weight_bytes(LLAMA, visitor.layout))
    assert memory.transient["actor_gen"]["weights"] == nbytes
    there = {name for name, parts in memory.transient.items() if parts["other_weights"]}
    # The critic may train after the actor, when the actor's next generation is already installed; everything
    # that lies between the generation and the actor's training comes when it is gone.
    assert there == {"critic_train"}
    assert memory.transient["critic_train"]["other_weights"] == nbytes


def test_a_generation_keeps_its_cache_while_other_weights_arrive():
    (memory,) = peaks(colocated(critic_inf=place(dp=16, tp=2, mb=8))).values()
    there = {name for name, parts in memory.transient.items() if parts["other_weights"]}
    assert {"actor_gen", "actor_train", "ref_inf", "reward_inf"} == there
    assert memory.transient["critic_inf"]["weights"] > 0


@pytest.mark.parametrize("tau", [1, 2])
def test_rings_hold_tau_copies_even_where_training_stands(tau):
    (memory,) = peaks(colocated(), tau=tau).values()
    serving = memory.persistent["actor"]["serving"]
    assert serving == round(tau * weight_bytes(LLAMA, place(dp=8, tp=4).layout))
    assert all(t["weights"] == t["other_weights"] == 0 for t in memory.transient.values())
    elsewhere = {name: place(dp=2, tp=4, mb=8, node=3) for name in PPO} | {"actor_gen": place(dp=2, tp=4)}
    found = peaks(elsewhere, tau=tau)
    assert set(found[0, 0, 0].persistent["actor"]) == {"serving"}
    assert set(found[0, 3, 0].persistent["actor"]) == {"weights", "gradients", "optimizer"}


def test_frozen_copies_count_once_per_distinct_layout():
    p = problem()
    shared = replace(
        p,
        models={k: v for k, v in p.models.items() if k != "reward"},
        graph=replace(
            p.graph,
            vertices=tuple(replace(v, model="ref") if v.model == "reward" else v for v in p.graph.vertices),
        ),
    )
    from passes.cost.megatron import MegatronCost

    (one,) = [d for _, d in MegatronCost(shared).memory(colocated(), [])]
    (two,) = [d for _, d in MegatronCost(shared).memory(colocated(ref_inf=place(dp=16, tp=2, mb=8)), [])]
    quarter, half = (weight_bytes(LLAMA, layout(tp=t)) for t in (4, 2))
    assert one.persistent["ref"] == {"weights": round(quarter)}
    assert two.persistent["ref"] == {"weights": round(quarter + half)}


def test_regions_of_a_disjoint_plan():
    plan = {name: place(dp=2, tp=4, mb=8, node=i % 3) for i, name in enumerate(PPO)}
    plan["actor_gen"] = place(dp=2, tp=4)
    found = cost().memory(plan, [])
    assert sum(box.gpus for box, _ in found) == 32
    empty = [memory for box, memory in found if box.origin == (0, 3, 0)]
    assert [m.peak_bytes for m in empty] == [0]


def test_fused_training_adds_up_and_handovers_hold_both_ends():
    train = {name: place(dp=2, tp=4, mb=8) for name in PPO}
    train["actor_gen"] = place(dp=2, tp=4)
    base = problem()
    fused = replace(base, options=replace(base.options, fuse=("actor_train", "critic_train"), steps=2))
    devices = evaluate(Configuration(problem=fused, plan=train)).devices
    apart = evaluate(Configuration(problem=base, plan=train)).devices["0.0.0"].transient
    together = devices["0.0.0"].transient["actor_train+critic_train"]
    for part in ("layer_inputs", "layer", "logits"):
        assert together[part] == apart["actor_train"][part] + apart["critic_train"][part]


def test_serving_vertices_hand_weights_over():
    p = problem()
    # A second reader of the actor, in another layout on the same GPUs.
    graph = replace(
        p.graph,
        vertices=tuple(
            replace(v, model="actor", reads=("W_actor", "Y")) if v.name == "ref_inf" else v
            for v in p.graph.vertices
        ),
        publication_edges=(*p.graph.publication_edges, replace_edge(p.graph.publication_edges[0], "ref_inf")),
        inputs=tuple(x for x in p.graph.inputs if x != "W_ref"),
        containers=tuple(c for c in p.graph.containers if c.name != "W_ref"),
    )
    q = replace(p, graph=graph, models={k: v for k, v in p.models.items() if k != "ref"})
    a, b = place(dp=4, tp=2), place(dp=8, mb=8)
    plan = {name: place(dp=2, tp=4, mb=8) for name in PPO} | {"actor_gen": a, "ref_inf": b}
    memory = evaluate(Configuration(problem=q, plan=plan)).devices["0.0.0"]
    held = memory.transient["reshard actor_gen to ref_inf"]
    assert held == {
        "source": round(weight_bytes(LLAMA, a.layout)),
        "weights": round(weight_bytes(LLAMA, b.layout)),
    }


def replace_edge(edge, target):
    return type(edge)(edge.source, target, edge.container)


def test_allocations_and_layouts_are_what_distinguishes_copies():
    assert place(dp=8).allocation == Allocation(origin=(0, 0, 0), extent=(1, 1, 8))
    assert place(dp=8).layout == Layout(data_parallel=8, pipeline_parallel=1, tensor_parallel=1)


@settings(max_examples=40, deadline=None)
@given(configurations())
def test_any_configuration_has_times_and_peaks(configuration):
    p = configuration.problem
    p = replace(p, options=replace(p.options, cost_model="megatron"))
    stage = evaluate(replace(configuration, problem=p))
    assert all(n.time_ns >= 0 for n in stage.nodes)
    assert all(n.time_ns > 0 for n in stage.nodes if n.kind == "Op" and n.allocation)
    for memory in stage.devices.values():
        assert memory.persistent_bytes == pytest.approx(
            sum(x for parts in memory.persistent.values() for x in parts.values()), abs=8
        )
        worst = [sum(parts.values()) for parts in memory.transient.values()]
        assert memory.transient_bytes == pytest.approx(max(worst, default=0), abs=8)
