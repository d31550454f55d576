"""Times of cost model `megatron`: against formulas by hand, and properties of the terms."""

import math
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.hardware import load_hardware
from ir_schema.hardware import AlphaBeta, Tiers
from ir_schema.problem import Layout
from ir_schema.stages import Node
from passes.cost import cost_model, parameters
from passes.cost.base import nanoseconds
from passes.cost.megatron import MegatronCost
from passes.microtasks import list_schedule
from rpegc.models import load_model
from tests.passes.cost.ppo import WORKLOAD, cost, place, problem, replace, seconds, vertex

H100 = load_hardware("h100")
FREE = Tiers(**{t: AlphaBeta(alpha=0.0, beta=0.0) for t in ("intra", "inter", "rack")})
# Nothing but arithmetic at full speed.
IDEAL = replace(
    H100, peak_flops=1e15, memory_bandwidth=1e30, gamma_M=0.0, gamma_K=0.0, kernel_seconds=0.0,
    nongemm_seconds=0.0, product_flops=0.0, startup_seconds=0.0, launch_seconds=0.0, score_bytes=0.0,
    collective=FREE, point_to_point=FREE, all_gather=FREE, reduce_scatter=FREE,
)  # fmt: skip
VERTICES = ("actor_gen", "ref_inf", "critic_inf", "actor_train", "critic_train")
shapes = st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))


def constant(**changes):
    return {"length_quantiles": (), **changes}


def test_it_is_registered():
    assert cost_model("megatron") is MegatronCost


def test_inference_work_by_hand():
    m = cost(hardware=IDEAL, **constant())
    spec = m.problem.models["ref"]
    length, responses, sequences = 1280, 1024, 512
    products = spec.layers * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    per_sequence = 2 * products * length + spec.layers * 2 * length**2 * 4096
    per_sequence += 2 * 4096 * 128256 * responses
    assert seconds(m, "ref_inf", place(dp=8)) == pytest.approx(sequences * per_sequence / 8 / 1e15, rel=1e-12)


def test_work_is_near_the_usual_estimate():
    # 2 N per token forward and 8 N with recomputation, N the parameters that are multiplied.
    m = cost(hardware=IDEAL, **constant(prompt_length=1, response_length=512))
    tokens = 512 * 513
    n = parameters.total(m.problem.models["actor"]) - 128256 * 4096
    inference, training = (seconds(m, v, place(dp=8)) * 8 * 1e15 for v in ("ref_inf", "actor_train"))
    assert inference == pytest.approx(2 * n * tokens, rel=0.05)
    assert training == pytest.approx(8 * n * tokens, rel=0.1)


def test_experts_work_like_their_active_parameters():
    m = cost("qwen3-30b-a3b", hardware=IDEAL, **constant(prompt_length=1, response_length=256))
    spec = m.problem.models["ref"]
    active = parameters.active(spec) - spec.vocabulary * spec.hidden
    work = seconds(m, "ref_inf", place(dp=8)) * 8 * 1e15
    assert work == pytest.approx(2 * active * 512 * 257, rel=0.06)


def test_attention_takes_the_mean_of_squares():
    spec = replace(load_model("llama-3.1-8b", "lm"), vocabulary=128)
    sorted_, equal = cost(spec, hardware=IDEAL), cost(spec, hardware=IDEAL, **constant())
    p = place(dp=1, mb=512)
    ratio = seconds(sorted_, "ref_inf", p) / seconds(equal, "ref_inf", p)
    lengths = [256 + x for x in _lengths(512)]
    mean = math.fsum(lengths) / 512
    square = math.fsum(x * x for x in lengths) / 512
    assert square > 1.02 * mean**2
    flops = [sum(2 * _products(spec) * x + spec.layers * 2 * x * x * 4096 + 2 * 4096 * 128 * (x - 256)
                 for x in each) for each in (lengths, [1280] * 512)]  # fmt: skip
    assert ratio == pytest.approx(flops[0] / flops[1], rel=1e-12)


def _products(spec):
    return spec.layers * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)


def _lengths(count):
    points = [(0.0, 0), *WORKLOAD.length_quantiles]
    for i in range(1, count + 1):
        f = i / count
        a, b = next((a, b) for a, b in pairwise(points) if f <= b[0])
        yield a[1] + (b[1] - a[1]) * (f - a[0]) / (b[0] - a[0])


def test_sliding_windows_save_scores():
    spec = load_model("llama-3.1-8b", "lm")
    windowed = replace(spec, sliding_window=256)
    every = replace(windowed, full_attention_every=2)
    times = [seconds(cost(s, hardware=IDEAL), "ref_inf", place(dp=8, mb=8)) for s in (windowed, every, spec)]
    assert times[0] < times[1] < times[2]
    assert times[1] == pytest.approx((times[0] + times[2]) / 2)


@settings(deadline=None)
@given(shapes, st.sampled_from([1, 2, 4, 8]))
def test_an_unsplit_generation_is_the_sum_of_its_phases(shape, mb):
    dp, pp, tp = shape
    m = cost()
    p, v = place(dp, pp, tp, mb if pp > 1 else 1), vertex(m, "actor_gen")
    whole = m.operator(v, p)
    phases = [m.phase(v, p, q) for q in (1, 2, 3)]
    for part in whole:
        assert math.fsum(x[part] for x in phases) == pytest.approx(whole[part], rel=1e-12)


def test_decode_is_bound_by_weights_and_cache():
    m = cost(
        hardware=replace(IDEAL, memory_bandwidth=1e12, peak_flops=1e30), **constant(prompts=8, rollouts=1)
    )
    spec = m.problem.models["actor"]
    two = replace(m.workload, response_length=3)
    three = replace(two, response_length=4)
    a, b = (seconds(MegatronCost(replace(m.problem, workload=w)), "actor_gen", place()) for w in (two, three))
    weights = 2 * (parameters.total(spec) - spec.vocabulary * spec.hidden - 65 * 4096)
    cache = 8 * 258 * 32 * 2 * 1024 * 2
    assert (b - a) * 1e12 == pytest.approx(weights + cache, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from(VERTICES), st.sampled_from([1, 4, 16]), st.integers(1, 4))
def test_more_tokens_are_never_cheaper(shape, name, mb, factor):
    dp, pp, tp = shape
    p = place(dp, pp, tp, max(mb, pp) if pp > 1 or name != "actor_gen" else 1)
    base = seconds(cost(), name, p)
    assert seconds(cost(prompts=128 * factor), name, p) >= base
    assert seconds(cost(prompt_length=256 * factor), name, p) >= base
    longer = tuple((f, t * factor) for f, t in WORKLOAD.length_quantiles)
    assert seconds(cost(response_length=1024 * factor, length_quantiles=longer), name, p) >= base


@settings(max_examples=30, deadline=None)
@given(shapes, st.sampled_from(VERTICES))
def test_times_are_positive_pure_and_ordered(shape, name):
    m, p = cost(), place(*shape, mb=max(4, shape[1]))
    v = vertex(m, name)
    first = m.operator(v, p)
    assert list(first) == ["gemm", "bubble", "tp", "pp", "dp", "nongemm", "opt"]
    assert all(x >= 0 for x in first.values())
    again = m.operator(v, p)
    first["gemm"] = 0.0
    assert m.operator(v, p) == again != first
    assert cost().operator(v, p) == again


def test_bubble_and_single_gpu_terms():
    m = cost()
    train = vertex(m, "actor_train")
    alone = m.operator(train, place(mb=8))
    assert [alone[k] for k in ("bubble", "tp", "pp", "dp", "nongemm")] == [0.0] * 5
    # Without a vocabulary head, all stages take nearly the same.
    piped = m.operator(vertex(m, "critic_train"), place(pp=4, mb=8))
    assert piped["bubble"] == pytest.approx(piped["gemm"] * 3 / 8, rel=1e-3)
    assert m.operator(vertex(m, "ref_inf"), place(dp=4, mb=2))["dp"] == 0.0


def makespan(forward, backward, microbatches):
    """1F1B of stages with these times, played event by event; forward passes alone if `backward` is None."""
    last = len(forward) - 1
    orders = []
    for stage in range(last + 1):
        ahead = microbatches if backward is None else min(last - stage, microbatches)
        order = [("F", i) for i in range(ahead)]
        for i in range(ahead, microbatches):
            order += [("F", i), ("B", i - ahead)]
        if backward is not None:
            order += [("B", i) for i in range(microbatches - ahead, microbatches)]
        orders.append(order)
    ends, free = {}, [0.0] * (last + 1)
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, i = order[0]
                before = stage - 1 if kind == "F" else stage + 1
                if 0 <= before <= last and (before, kind, i) not in ends:
                    break
                start = max(free[stage], ends.get((before, kind, i), 0.0))
                free[stage] = start + (forward if kind == "F" else backward)[stage]
                ends[stage, kind, i] = free[stage]
                order.pop(0)
    return max(free)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 8), (4, 4), (8, 32), (8, 2)])
@pytest.mark.parametrize("name", ["actor_train", "ref_inf"])
def test_a_pipeline_of_unequal_stages_takes_what_its_schedule_takes(name, stages, microbatches):
    m = cost(hardware=IDEAL, **constant())
    parts = m.operator(vertex(m, name), place(pp=stages, mb=microbatches))
    each = 512 / microbatches / 1e15
    layers = 32 / stages * each * (2 * 1280 * _products(m.problem.models["ref"]) / 32 + 2 * 1280**2 * 4096)
    forward = [layers] * stages
    head = each * 2 * 4096 * 128256 * 1024
    forward[-1] += head
    backward = [3 * layers] * stages
    backward[-1] += 2 * head
    expected = makespan(forward, backward if name == "actor_train" else None, microbatches)
    assert parts["gemm"] + parts["bubble"] == pytest.approx(expected, rel=1e-9)


def test_a_pipeline_s_ends_are_passed_once_and_then_the_busier_one_counts():
    m = cost(**constant(prompts=128))
    tp = [
        cost(**constant(prompts=n)).operator(vertex(m, "ref_inf"), place(pp=2, tp=2, mb=n // 64))["tp"]
        for n in (64, 128, 192)
    ]
    # With as many tokens in every microbatch, each one more adds the same; the first passes both stages.
    assert tp[2] - tp[1] == pytest.approx(tp[1] - tp[0])
    one = m.inner.tensor_all_reduce(place(pp=2, tp=2).layout, 64 * 4 * 1280 * 4096 * 2)
    scalars = 3 * m.inner.tensor_all_reduce(place(pp=2, tp=2).layout, 64 * 4 * 1024 * 4)
    assert tp[1] - tp[0] == pytest.approx(32 * one + max(one, scalars))
    assert tp[0] == pytest.approx(64 * one + one + scalars)


def test_tensor_ranks_divide_what_leaves_a_node():
    m = cost(**constant())
    link, bytes_of = H100.point_to_point, 512 / 8 * 1280 * 4096 * 2

    def pp(name="ref_inf", **shape):
        return m.operator(vertex(m, name), place(mb=8, **shape))["pp"]

    def sent(tier, nbytes):
        return tier.alpha + nbytes * tier.beta

    far = sent(link.inter, bytes_of / 8) + m.inner.tensor_all_gather(place(pp=4, tp=8).layout, bytes_of)
    assert pp(pp=4, tp=8) == pytest.approx((8 + 4 - 2) * far)
    assert pp("actor_train", pp=4, tp=8) == pytest.approx((8 + 2 * 4 - 3) * far)
    assert pp(pp=4, tp=2) == pytest.approx((8 + 4 - 2) * sent(link.intra, bytes_of))
    assert pp(pp=16) == pytest.approx(
        (8 + 16 - 2) * (14 * sent(link.intra, bytes_of) + sent(link.inter, bytes_of)) / 15
    )


def test_the_last_stage_carries_the_head():
    lm, scalar = (cost(hardware=IDEAL, **constant()).operator(vertex(cost(), v), place(pp=4, mb=8))["gemm"]
                  for v in ("ref_inf", "reward_inf"))  # fmt: skip
    assert (lm - scalar) * 1e15 == pytest.approx(2 * 4096 * 128256 * 1024 * 512)


def test_accumulation_reads_weights_again_and_reduces_once():
    m = cost(**constant())
    v = vertex(m, "actor_train")
    few, many = (m.operator(v, place(dp=4, tp=2, mb=mb)) for mb in (4, 64))
    assert many["gemm"] >= few["gemm"]
    assert many["tp"] > few["tp"]
    assert many["dp"] == few["dp"]
    assert many["opt"] == few["opt"]


def test_epochs_and_minibatches():
    p = place(dp=2, pp=2, tp=2, mb=4)
    layouts = ((1, 1, p), (3, 1, p), (1, 2, replace(p, microbatches=2)))
    train = vertex(cost(), "actor_train")
    one, epochs, parts = (cost(**constant(epochs=e, minibatches=b)).operator(train, q) for e, b, q in layouts)
    assert epochs == pytest.approx({k: 3 * x for k, x in one.items()})
    # Two minibatches of two microbatches compute what one of four does, but update twice and fill twice.
    assert parts["gemm"] == pytest.approx(one["gemm"])
    # Communication fills the pipeline too, twice.
    half = cost(**constant(prompts=64)).operator(train, replace(p, microbatches=2))
    assert parts["tp"] == pytest.approx(2 * half["tp"])
    assert parts["tp"] > 1.1 * one["tp"]
    assert (parts["dp"], parts["opt"]) == pytest.approx((2 * one["dp"], 2 * one["opt"]))
    assert parts["bubble"] == pytest.approx(2 * one["bubble"])
    assert cost(epochs=3).operator(vertex(cost(), "ref_inf"), p) == cost().operator(
        vertex(cost(), "ref_inf"), p
    )


def test_waves_run_one_after_another():
    m = cost()
    v = vertex(m, "actor_gen")
    one, four = m.operator(v, place(dp=8)), m.operator(v, place(dp=8, waves=4))
    assert sum(one.values()) < sum(four.values()) < 4 * sum(one.values())
    quarter = cost(prompts=32).operator(v, place(dp=8))
    assert four == pytest.approx({k: 4 * x for k, x in quarter.items()})


def test_decode_microbatches_are_never_emptier_than_a_sequence():
    m = cost(prompts=8, rollouts=1)
    v = vertex(m, "actor_gen")
    third = m.phase(v, place(pp=4, mb=8), 3)  # 1.2 sequences are left
    alone = cost(prompts=8, rollouts=1).phase(v, place(pp=4, mb=4), 3)
    assert third == alone


def test_optimizer_and_gradients_shard_over_replicas():
    m = cost(**constant())
    v = vertex(m, "actor_train")
    opts = [m.operator(v, place(dp=dp, tp=2, mb=8))["opt"] for dp in (1, 2, 4)]
    assert opts == sorted(opts, reverse=True)
    # Zeroing all gradients (4 bytes) is not shared; reading and writing the state (34 bytes) is.
    assert (opts[0] - opts[1]) / opts[0] == pytest.approx(17 / 38, rel=1e-9)


def test_groups_inside_a_node_share_its_cards():
    links = {"intra": AlphaBeta(alpha=0.0, beta=1e-12), "inter": AlphaBeta(alpha=0.0, beta=2e-12),
             "rack": AlphaBeta(alpha=0.0, beta=2e-12)}  # fmt: skip
    hardware = replace(IDEAL, collective=Tiers(**links), all_gather=None, reduce_scatter=None)
    m = cost(hardware=hardware, **constant())
    v, spec = vertex(m, "actor_train"), m.problem.models["actor"]

    def exchange(p):
        shard = parameters.largest_shard(spec, p.layout).total
        return m.operator(v, p)["dp"] / (shard * 6 * (p.data_parallel - 1) / p.data_parallel)

    assert exchange(place(dp=8, mb=8)) == pytest.approx(1e-12)
    assert exchange(place(dp=32, mb=8)) == pytest.approx(2e-12)
    assert exchange(place(dp=4, tp=8, mb=8)) == pytest.approx(8 * 2e-12)
    assert exchange(place(dp=8, tp=4, mb=8)) == pytest.approx(4 * 2e-12)


def test_three_dimensions_have_no_further_terms():
    m = cost("qwen3-30b-a3b")
    v = vertex(m, "actor_train")
    assert "cp" not in m.operator(v, place(dp=8, mb=8))
    full = m.operator(v, place(dp=4, cp=2, ep=4, mb=8))
    assert list(full) == ["gemm", "bubble", "tp", "cp", "ep", "pp", "dp", "nongemm", "opt"]
    assert full["ep"] > 0


def test_context_parallel_divides_work_and_hides_its_ring():
    m = cost(hardware=IDEAL, **constant())
    v = vertex(m, "actor_train")
    one, two = m.operator(v, place(dp=2, mb=8)), m.operator(v, place(dp=2, cp=2, mb=8))
    assert two["gemm"] == pytest.approx(one["gemm"] / 2)
    assert two["cp"] == 0.0
    slow = replace(IDEAL, point_to_point=H100.point_to_point)
    assert cost(hardware=slow, **constant()).operator(v, place(dp=2, cp=2, mb=8))["cp"] > 0


def test_expert_skew_multiplies_work_and_traffic():
    spec = load_model("qwen3-30b-a3b", "lm")
    skewed = replace(spec, experts=replace(spec.experts, skew=2.0))
    p = place(dp=8, ep=8, mb=8)
    even, odd = (
        cost(s, hardware=replace(IDEAL, collective=H100.collective), **constant()) for s in (spec, skewed)
    )
    a, b = (m.operator(vertex(m, "ref_inf"), p) for m in (even, odd))
    expert = spec.layers * 3 * 2 * 2048 * 768 * 8 * 1280 * 512 / 8 / 1e15
    assert b["gemm"] - a["gemm"] == pytest.approx(expert, rel=1e-9)
    latency = 8 * 2 * 48 * 7 * H100.collective.intra.alpha
    assert b["ep"] - latency == pytest.approx(2 * (a["ep"] - latency))


def test_a_fused_operator_of_one_model_costs_the_operator():
    m = cost()
    v = vertex(m, "actor_train")
    for pp, mb in ((1, 4), (2, 4), (4, 8)):
        p = place(dp=2, pp=pp, tp=2, mb=mb)
        fused = m.fused((v, vertex(m, "critic_train")), p, p)
        length, _ = list_schedule(pp, (mb,), fused.forward_ns[:1], fused.backward_ns[:1])
        alone = m.operator(v, p)
        rest = {k: x for k, x in alone.items() if k not in ("gemm", "bubble")}
        # Its microtasks are those of the busiest stage.
        assert abs(length - nanoseconds({"gemm": alone["gemm"] * (mb + pp - 1) / mb})) <= mb + pp
        critic = m.operator(vertex(m, "critic_train"), p)
        assert fused.parts == pytest.approx({k: rest[k] + critic[k] for k in rest})


def transfer(kind, source, target, *, model="actor", payload=0):
    return Node(
        id=0, kind=kind, vertex="actor_gen", vertex_index=0, step=1, model=model, payload_bytes=payload,
        allocation=target.allocation, source_allocation=source.allocation,
        layout=target.layout, source_layout=source.layout,
    )  # fmt: skip


def test_every_destination_gpu_receives_its_shard():
    m = cost()
    beta = H100.point_to_point.inter.beta
    train = place(dp=2, tp=4, mb=8)
    same = m.transfer(transfer("Comm", train, place(dp=2, tp=4, node=1)))
    wide = m.transfer(transfer("Comm", train, place(dp=4, tp=4, node=2)))
    shard = 2 * parameters.largest_shard(m.problem.models["actor"], train.layout).total
    assert same["bytes"] == pytest.approx(shard * beta)
    assert wide["bytes"] == pytest.approx(2 * shard * beta)
    assert same["latency"] == H100.point_to_point.inter.alpha


def test_resharding_and_local_copies():
    m = cost()
    a, b = place(dp=2, tp=4, mb=8), place(dp=4, tp=2)
    moved = m.transfer(transfer("Reshard", a, b))
    shard = 2 * parameters.largest_shard(m.problem.models["actor"], b.layout).total
    assert moved["latency"] == 7 * H100.collective.intra.alpha
    assert moved["bytes"] == pytest.approx(shard * H100.collective.intra.beta)
    copied = m.transfer(transfer("Reshard", b, b))
    assert copied == {"latency": 0.0, "bytes": pytest.approx(2 * shard / H100.memory_bandwidth)}


def test_data_crosses_the_narrower_allocation():
    m = cost()
    moved = m.transfer(transfer("Comm", place(dp=4), place(dp=8, node=1), model=None, payload=8_000_000))
    assert moved["bytes"] == pytest.approx(2e6 * H100.point_to_point.inter.beta)


def test_every_shipped_model_can_be_costed():
    for name in ("deepseek-v3", "gemma-4-26b-a4b", "gpt-oss-120b", "falcon-40b", "mpt-13b", "phi-2", "tiny"):
        m = cost(name)
        for v in VERTICES:
            assert 0 < seconds(m, v, place(dp=8, mb=8 if v != "actor_gen" else 1)) < 1e5


def test_the_problem_survives_the_cost_model():
    p = problem()
    before = msgspec.json.encode(p)
    seconds(MegatronCost(p), "actor_gen", place(dp=8))
    assert msgspec.json.encode(p) == before
    assert Layout(data_parallel=8, pipeline_parallel=1, tensor_parallel=1) == place(dp=8).layout
