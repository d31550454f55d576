"""Shard maps and routes, exhaustively on small models with numpy."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

from ir_schema.model import Experts, ModelSpec, RopeScaling
from ir_schema.problem import Layout, Workload
from rpeg_rt.engine import (
    canonical_shapes,
    position_of,
    reverse_stages,
    route,
    shard_map,
    unsupported,
)

WORKLOAD = Workload(prompts=4, rollouts=1, prompt_length=6, response_length=8)
SPECS = {
    "grouped": {"kv_heads": 2},
    "one-kv-head": {"kv_heads": 1, "qkv_bias": True},
    "tied": {"kv_heads": 4, "tied_embeddings": True, "qk_norm": True, "head_dim": 6},
    "scalar": {"kv_heads": 2, "head": "scalar"},
    "large vocabulary": {"kv_heads": 2, "vocabulary": 300},
    "both-tied": {"kv_heads": 2, "head": "both", "tied_embeddings": True},
}
LAYOUTS = [
    Layout(data_parallel=d, pipeline_parallel=p, tensor_parallel=t)
    for d, p, t in itertools.product((1, 2), (1, 2, 4), (1, 2, 4))
    if d * p * t <= 8
] + [
    Layout(data_parallel=d, pipeline_parallel=p, tensor_parallel=t, context_parallel=c)
    for d, p, t, c in ((1, 1, 1, 2), (1, 2, 2, 2), (2, 2, 1, 2))
]


def small(name: str) -> ModelSpec:
    base = {"layers": 4, "hidden": 8, "ffn": 12, "vocabulary": 11, "head": "lm", "attention_heads": 4}
    return ModelSpec(**(base | SPECS[name]))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_shards_of_a_replica_cover_the_model_once_per_copy(name, layout):
    spec = small(name)
    assert unsupported(spec, layout, WORKLOAD) == []
    cuts = defaultdict(set)
    for i in range(layout.gpus):
        for shard in shard_map(spec, layout, position_of(i, layout)):
            assert shard.global_shape == canonical_shapes(spec)[shard.name]
            cuts[shard.name].add(tuple((s.start, s.stop) for s in shard.slices))
    assert set(cuts) == set(canonical_shapes(spec))
    for tensor, slices in cuts.items():
        seen = np.zeros(canonical_shapes(spec)[tensor], dtype=int)
        for bounds in slices:
            seen[tuple(slice(a, b) for a, b in bounds)] += 1
        assert (seen == 1).all(), tensor


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_local_parameters_are_filled_without_overlap(name, layout):
    spec = small(name)
    for i in range(layout.gpus):
        stored = defaultdict(list)
        for shard in shard_map(spec, layout, position_of(i, layout)):
            stored[shard.parameter].append((shard.start, shard.start + shard.shape[shard.axis]))
        for parameter, ranges in stored.items():
            ranges.sort()
            assert ranges[0][0] == 0
            assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges)), parameter


def test_packed_projection_is_megatrons():
    """Two groups on one rank: [q q k v | q q k v]; four ranks with one key head cut it in equal parts."""
    width = 2
    shards = shard_map(
        small("grouped"),
        Layout(data_parallel=1, pipeline_parallel=1, tensor_parallel=1),
        position_of(0, LAYOUTS[0]),
    )
    first_layer = [s for s in shards if s.parameter == "decoder.layers.0.self_attention.linear_qkv.weight"]
    rows = [(s.name[-13], s.slices[0].start // width, s.start // width) for s in first_layer]
    assert rows == [("q", 0, 0), ("k", 0, 2), ("v", 0, 3), ("q", 2, 4), ("k", 1, 6), ("v", 1, 7)]
    four = Layout(data_parallel=1, pipeline_parallel=1, tensor_parallel=4)
    last = shard_map(small("one-kv-head"), four, position_of(3, four))
    packed = [s for s in last if s.parameter == "decoder.layers.0.self_attention.linear_qkv.weight"]
    assert [(s.name[-13], s.slices[0].start, s.slices[0].stop) for s in packed] == [("k", 1, 2), ("v", 0, 2)]


@pytest.mark.parametrize("name", SPECS)
def test_routes_fill_every_destination_element_once_with_the_fewest_bytes(name):
    spec = small(name)
    shapes = canonical_shapes(spec)
    for source, destination in itertools.product(LAYOUTS, LAYOUTS[::2]):
        for shift in (0, 3):
            here, there = range(source.gpus), range(shift, shift + destination.gpus)
            fragments = route(spec, (here, source), (there, destination))
            held, wanted = _holdings(spec, here, source), _holdings(spec, there, destination)
            got = {rank: {n: np.zeros(shapes[n], dtype=int) for n in wanted[rank]} for rank in there}
            for f in fragments:
                assert held[f.source][f.name][f.slices].all(), f
                got[f.destination][f.name][f.slices] += 1
                if f.source != f.destination:
                    owned = held.get(f.destination, {}).get(f.name)
                    assert owned is None or not owned[f.slices].any(), "moved although held there"
            for rank in there:
                for tensor, mask in wanted[rank].items():
                    assert (got[rank][tensor] == mask).all(), (tensor, rank)


def _holdings(spec, ranks, layout):
    """Per rank and tensor, a boolean array of the elements held."""
    held = {}
    for i, rank in enumerate(ranks):
        held[rank] = {}
        for s in shard_map(spec, layout, position_of(i, layout)):
            mask = held[rank].setdefault(s.name, np.zeros(s.global_shape, dtype=bool))
            mask[s.slices] = True
    return held


def test_replicas_share_the_sending():
    spec = small("grouped")
    source = Layout(data_parallel=4, pipeline_parallel=1, tensor_parallel=1)
    destination = Layout(data_parallel=1, pipeline_parallel=1, tensor_parallel=4)
    sent = defaultdict(int)
    for f in route(spec, (range(4), source), (range(4, 8), destination)):
        sent[f.source] += f.elements
    assert max(sent.values()) - min(sent.values()) <= max(np.prod(s) for s in canonical_shapes(spec).values())
    assert set(sent) == set(range(4))


def test_tensor_ranks_are_neighbours_then_context_ranks_stages_and_replicas():
    layout = Layout(data_parallel=2, pipeline_parallel=2, tensor_parallel=2, context_parallel=3)
    places = [position_of(i, layout) for i in range(24)]
    assert [p.tensor for p in places] == [0, 1] * 12
    assert [p.context for p in places] == [0, 0, 1, 1, 2, 2] * 4
    assert [p.pipeline for p in places] == ([0] * 6 + [1] * 6) * 2
    assert [p.data for p in places] == [0] * 12 + [1] * 12


def test_stages_are_reversed_within_each_replica():
    layout = Layout(data_parallel=2, pipeline_parallel=2, tensor_parallel=2)
    assert reverse_stages(range(8), layout) == (2, 3, 0, 1, 6, 7, 4, 5)
    layout = Layout(data_parallel=1, pipeline_parallel=3, tensor_parallel=1, context_parallel=2)
    assert reverse_stages(range(6), layout) == (4, 5, 2, 3, 0, 1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_reversed_rank_keeps_all_but_its_stage(layout):
    ranks = [3 * i for i in range(layout.gpus)]
    places = {rank: position_of(i, layout) for i, rank in enumerate(reverse_stages(ranks, layout))}
    for i, rank in enumerate(ranks):
        place = position_of(i, layout)
        assert places[rank] == place._replace(pipeline=layout.pipeline_parallel - 1 - place.pipeline)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"experts": Experts(routed=4, top_k=1, ffn=8)}, "mixture-of-experts"),
        ({"family": "falcon"}, "family"),
        ({"activation": "gelu"}, "activation gelu"),
        ({"mlp_bias": True}, "biases in the feed-forward"),
        ({"rotary_fraction": 0.5}, "part of a head"),
        ({"rope_scaling": RopeScaling(kind="dynamic", factor=2.0)}, "scaling dynamic"),
        ({"rope_scaling": RopeScaling(kind="yarn", factor=2.0)}, "without `original_positions`"),
        ({"layers": 3}, "3 layers do not divide into 2 pipeline stages"),
        ({"attention_heads": 3, "kv_heads": 1, "head_dim": 4}, "3 attention heads do not divide over 2"),
        ({"ffn": 13}, "feed-forward width 13"),
        ({"max_positions": 13}, "sequences of up to 6 + 8 tokens are longer than the 13 positions"),
    ],
)
def test_what_is_not_supported_is_named(changes, words):
    base = {"layers": 4, "hidden": 8, "ffn": 12, "vocabulary": 11, "head": "lm", "attention_heads": 4}
    layout = Layout(data_parallel=1, pipeline_parallel=2, tensor_parallel=2)
    (reason,) = unsupported(ModelSpec(**(base | changes)), layout, WORKLOAD)
    assert words in reason


def test_unsupported_parallelism_is_named():
    layout = Layout(data_parallel=2, pipeline_parallel=1, tensor_parallel=1, expert_parallel=2)
    (reason,) = unsupported(small("grouped"), layout, WORKLOAD)
    assert "expert parallelism" in reason
