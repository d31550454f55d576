"""What kernels take beside arithmetic, by hand: start-ups, launches, stored scores, traffic between."""

import pytest

from passes.cost import parameters
from rpegc.models import load_model
from tests.passes.cost.ppo import cost, place, replace, seconds, vertex
from tests.passes.cost.test_megatron import IDEAL, constant

LLAMA = load_model("llama-3.1-8b", "lm")
FAST = replace(IDEAL, peak_flops=1e30)
"""A machine on which everything is free that a file does not say."""


def gemm(hardware, name, p, spec=LLAMA, **workload):
    m = cost(spec, hardware=hardware, **constant(**workload))
    return m.operator(vertex(m, name), p)["gemm"]


def test_start_ups_add_to_every_kernel():
    # Four products and attention in each of 32 layers, and the head; nothing between them is counted.
    one = 1e-3
    took = gemm(replace(FAST, startup_seconds=one), "ref_inf", place(dp=8, mb=4))
    assert took == pytest.approx(4 * one * (32 * 5 + 1), rel=1e-9)
    # With a rate of products alone, two norms and an activation are kernels of their own.
    apart = replace(FAST, startup_seconds=one, product_flops=1e30)
    assert gemm(apart, "ref_inf", place(dp=8, mb=4)) == pytest.approx(4 * one * (32 * 8 + 1), rel=1e-9)


def test_launches_bound_layers_of_training_and_inference_alone():
    slow = replace(FAST, launch_seconds=1e-3)
    p = place(dp=8, mb=4)
    assert gemm(slow, "ref_inf", p) == pytest.approx(4 * 32 * 5e-3, rel=1e-9)
    assert gemm(slow, "actor_train", p) == pytest.approx(4 * 4 * 32 * 5e-3, rel=1e-9)
    assert gemm(slow, "actor_gen", place(dp=8)) == pytest.approx(0.0, abs=1e-9)
    # They run ahead of kernels that take longer.
    busy = replace(slow, peak_flops=1e12)
    assert gemm(busy, "ref_inf", p) == pytest.approx(gemm(replace(busy, launch_seconds=0.0), "ref_inf", p))


def test_stored_scores_fill_the_square_and_move():
    whole, length, sequences = 32 * 4 * 1280**2 * 4096, 1280, 512 / 8
    stored = replace(FAST, peak_flops=1e15, score_bytes=1e-30)
    fused = replace(stored, score_bytes=0.0)
    p = place(dp=8, mb=4)
    more = gemm(stored, "ref_inf", p) - gemm(fused, "ref_inf", p)
    assert more == pytest.approx(sequences * whole / 2 / 1e15, rel=1e-6)
    moving = replace(FAST, memory_bandwidth=1e12, peak_flops=1e30)
    moved = gemm(replace(moving, score_bytes=10.0), "ref_inf", p) - gemm(moving, "ref_inf", p)
    assert moved == pytest.approx(32 * 32 * sequences * length**2 * 10 / 1e12, rel=1e-6)
    generation = place(dp=8)
    assert gemm(stored, "actor_gen", generation) == gemm(fused, "actor_gen", generation)


def test_traffic_between_products():
    # Per token and layer 10 hidden values and 3 of the feed-forward width; per logit of a response two narrow
    # and four wide values forward.
    with_head = replace(FAST, memory_bandwidth=1e12, product_flops=1e30)
    without = replace(with_head, product_flops=0.0)
    p = place(dp=8, tp=1, mb=4)
    tokens, responses = 512 / 8 * 1280, 512 / 8 * 1024
    moved = tokens * 32 * 2 * (10 * 4096 + 3 * 14336) + responses * 128256 * (2 * 2 + 4 * 4)
    found = gemm(with_head, "ref_inf", p) - gemm(without, "ref_inf", p)
    assert found * 1e12 == pytest.approx(moved, rel=1e-9)


def test_every_microbatch_accumulates_its_gradients():
    apart = replace(FAST, memory_bandwidth=1e12, product_flops=1e30)
    layers = parameters.layers_shard(LLAMA, range(32)).total
    few, many = (gemm(apart, "actor_train", place(mb=mb)) - gemm(replace(apart, product_flops=0.0),
                 "actor_train", place(mb=mb)) for mb in (4, 8))  # fmt: skip
    assert (many - few) * 1e12 == pytest.approx(4 * layers * (2 + 2 + 4 + 4), rel=1e-9)


def test_tensor_ranks_repeat_norms_but_share_activations():
    apart = replace(FAST, memory_bandwidth=1e12, product_flops=1e30)

    def between(tp):
        p = place(dp=8 // tp, tp=tp, mb=4)
        return (gemm(apart, "ref_inf", p) - gemm(replace(apart, product_flops=0.0), "ref_inf", p)) / tp

    # Four tensor ranks hold four times the tokens each: shared traffic stays, repeated traffic grows.
    tokens = 512 / 8 * 1280
    repeated = tokens * 32 * 2 * 10 * 4096 / 1e12
    assert between(4) - between(1) / 4 == pytest.approx(repeated * (1 - 1 / 4) + 0.0, rel=0.02)


def test_a_file_without_a_rate_of_products_has_the_papers_term():
    m = cost(hardware=replace(IDEAL, nongemm_seconds=1e-3), **constant())
    assert m.operator(vertex(m, "ref_inf"), place(dp=2, tp=4))["nongemm"] > 0
    m = cost(hardware=replace(IDEAL, nongemm_seconds=1e-3, product_flops=1e15), **constant())
    assert m.operator(vertex(m, "ref_inf"), place(dp=2, tp=4))["nongemm"] == 0


def test_prefill_and_decode_run_at_the_rate_of_products():
    slow = replace(IDEAL, product_flops=5e14)
    assert seconds(cost(hardware=slow), "actor_gen", place(dp=8)) > 1.9 * seconds(
        cost(hardware=IDEAL), "actor_gen", place(dp=8)
    )
