"""Sequences dealt over context-parallel ranks: every position to one rank, causal work to all alike."""

import pytest
import torch
from torch import Tensor

from rpeg_rt.engine.alignment import Aligned, align
from rpeg_rt.engine.attention import Attention
from rpeg_rt.engine.context import Share
from tests.rpeg_rt.engine.harness import WORKLOAD
from tests.rpeg_rt.engine.test_parity import MODELS, responses

TOKENS = responses(MODELS["value model"])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("length", [1, 7, 14, 16, 48])
def test_every_position_has_one_rank_and_all_ranks_see_as_many_pairs(ranks, length):
    shares = [Share(i, ranks) for i in range(ranks)]
    padded = shares[0].padded(length)
    assert length <= padded < length + 2 * ranks
    parts = [[p for block in s.blocks(length) for p in block] for s in shares]
    assert sorted(p for part in parts for p in part) == list(range(padded))
    assert {s.blocks(padded) for s in shares} == {s.blocks(length) for s in shares}
    assert len({sum(p + 1 for p in part) for part in parts}) == 1, "pairs under a causal mask"


def hidden_of(rows: Aligned, share: Share, length: int) -> Tensor:
    """A hidden state per column that tells where it is: [s * b] of 100 * position + row."""
    positions = torch.tensor([p for block in share.blocks(length) for p in block])
    return (100 * positions[:, None] + torch.arange(len(rows.ids))).flatten()


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_ranks_of_a_row_predict_its_tokens_once(ranks):
    whole = align(TOKENS, WORKLOAD.prompt_length)
    length = whole.ids.size(1)
    expected = hidden_of(whole, Share(), length)
    ids = torch.zeros(len(TOKENS), Share(0, ranks).padded(length), dtype=torch.int64)
    found = dict.fromkeys(("tokens", "places", "ends", "predicted", "ended"), 0)
    for share in (Share(i, ranks) for i in range(ranks)):
        rows = align(TOKENS, WORKLOAD.prompt_length, share)
        hidden = hidden_of(rows, share, length)
        ids[:, [p for block in share.blocks(length) for p in block]] = rows.ids
        found["tokens"] += rows.expand(rows.targets)
        found["places"] += rows.expand(hidden[rows.predicting])
        found["ends"] += rows.expand_last(hidden[rows.last])
        found["predicted"] += rows.mask.long()
        found["ended"] += rows.ending.long()
    assert torch.equal(ids[:, :length], whole.ids)
    assert not ids[:, length:].any()
    assert torch.equal(found["predicted"], whole.mask.long())
    assert torch.equal(found["ended"], torch.ones(len(TOKENS), dtype=torch.int64))
    assert torch.equal(found["tokens"], whole.expand(whole.targets))
    assert torch.equal(found["places"], whole.expand(expected[whole.predicting]))
    assert torch.equal(found["ends"], expected[whole.last])


@pytest.mark.parametrize("window", [None, 1, 3, 5, 20])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_later_queries_attend_as_among_all(window, softcap):
    generator = torch.Generator().manual_seed(1)
    draw = [torch.randn(2, heads, 12, 4, generator=generator, dtype=torch.float64) for heads in (4, 2, 2)]
    query, key, value = draw
    kind = Attention(0.5, softcap, window, torch.empty(0))
    scores = (query @ key.repeat_interleave(2, 1).mT) * 0.5
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    behind = torch.arange(12)[:, None] - torch.arange(12)
    seen = (behind >= 0) & (behind < (window or 12))
    expected = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value.repeat_interleave(2, 1)
    for block in (range(12), range(0, 3), range(3, 6), range(7, 12), range(11, 12)):
        there = slice(block.start, block.stop)
        mixed = kind.causal(
            query[:, :, there], key[:, :, : block.stop], value[:, :, : block.stop], block.start
        )
        torch.testing.assert_close(mixed, expected[:, :, there], rtol=0, atol=1e-14)
