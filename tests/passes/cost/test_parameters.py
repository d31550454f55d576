"""Counting parameters layer by layer and kind by kind comes to the same."""

import itertools

import msgspec
import pytest

from ir_schema.model import Experts, FullAttention, ModelSpec
from passes.cost.parameters import Shard, layer_shard, layers_shard, total

DENSE = ModelSpec(layers=7, hidden=64, ffn=96, vocabulary=100, head="lm", attention_heads=8, kv_heads=4)
FULL = FullAttention(head_dim=16, kv_heads=2)
EXPERTS = [None, *(Experts(routed=8, top_k=2, ffn=32, dense_layers=n) for n in (0, 1, 4))]


@pytest.mark.parametrize("experts", EXPERTS)
@pytest.mark.parametrize("every", [None, 1, 2, 3, 6, 9])
def test_layers_of_every_kind_are_counted(experts, every):
    spec = msgspec.structs.replace(
        DENSE, experts=experts, sliding_window=32, full_attention_every=every, full_attention=FULL
    )
    for start, stop in itertools.combinations(range(8), 2):
        layers = range(start, stop)
        one_by_one = sum((layer_shard(spec, i, 2, 4) for i in layers), Shard())
        assert layers_shard(spec, layers, 2, 4) == one_by_one


def test_absurdly_many_layers_are_counted_at_once():
    n = 10**12
    more, fewer = (total(msgspec.structs.replace(DENSE, layers=x)) for x in (n, n - 1))
    assert more - fewer == layer_shard(DENSE, 0).total
