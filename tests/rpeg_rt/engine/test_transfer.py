"""Weights moved between layouts are canonical slices; rings hold the versions they should."""

import itertools
import weakref

import pytest
import torch

from ir_schema.problem import Optimizer
from rpeg_rt.algorithms.batch import TrainBatch
from rpeg_rt.engine import UnsupportedModelError, route
from rpeg_rt.engine.engine import Engine, UnknownTokenError, VersionError
from rpeg_rt.engine.training import NumericError
from rpeg_rt.engine.transfer import exchange, move_fragments
from tests.rpeg_rt.engine import harness
from tests.rpeg_rt.engine.harness import WORKLOAD, layout

PLACES = [
    ([0], layout(1, 1, 1)),
    ([0, 1], layout(2, 1, 1)),
    ([0, 1, 2, 3], layout(1, 2, 2)),
    ([0, 1, 2, 3], layout(2, 1, 2)),
    ([2, 3], layout(1, 2, 1)),
    ([1, 2], layout(1, 1, 2)),
    ([0, 1, 2, 3], layout(1, 2, 1, 2)),
]
SPECS = [
    harness.spec(vocabulary=140, kv_heads=1, qkv_bias=True),
    harness.spec(tied_embeddings=True, qk_norm=True, head="both"),
]


def empty(spec, groups, **options):
    return Engine(spec, groups, precision=torch.float32, workload=WORKLOAD, **options)


def differences(engine, factor=1.0):
    """Names of shards that are not slices of the canonical tensors (times a factor)."""
    wrong = []
    for shard in engine.shards():
        expected = (harness.canonical(shard.name, shard.global_shape)[shard.slices] * factor).float()
        if not torch.equal(shard.tensor, expected):
            wrong.append(shard.name)
    return wrong


def move_between_all(rank):
    made = [harness.groups_of(ranks, shape) for ranks, shape in PLACES]
    report = []
    for spec in SPECS:
        sources = [
            harness.engine(spec, g, torch.float32, trainable=Optimizer()) if g.member else None for g in made
        ]
        for a, b in itertools.permutations(range(len(PLACES)), 2):
            fragments = route(spec, PLACES[a], PLACES[b])
            target = empty(spec, made[b]) if made[b].member else None
            source = sources[a]
            sent = move_fragments(
                fragments,
                source.shards() if source else None,
                target.shards() if target else None,
                torch.float32,
            )
            expected = 4 * sum(f.elements for f in fragments if f.source == rank != f.destination)
            wrong = differences(target) if target else []
            report.append((a, b, wrong, sent == expected))
    return report


def test_moved_weights_are_canonical_slices():
    for rank, report in enumerate(harness.launch(4, move_between_all)):
        assert len(report) == len(SPECS) * len(PLACES) * (len(PLACES) - 1)
        for a, b, wrong, bytes_right in report:
            assert not wrong, (rank, PLACES[a], PLACES[b])
            assert bytes_right


def ring(_):
    spec, groups = harness.spec(), harness.groups_of([0], layout())
    serving = empty(spec, groups, copies=2)
    serving.load(harness.canonical)
    tokens = torch.cat([harness.prompts(), torch.ones(4, WORKLOAD.response_length, dtype=torch.int32)], 1)
    first = serving.score(tokens, 1, "logp")
    for shard in serving.shards(1):
        shard.tensor.copy_(harness.canonical(shard.name, shard.global_shape)[shard.slices] * 2)
    with pytest.raises(VersionError, match=r"version 1 is not held, but \[0\]"):
        serving.use(1)
    serving.install(1)
    serving.use(1)
    doubled = serving.score(tokens, 1, "logp")
    assert serving.version == 1
    assert not differences(serving, 2.0)
    serving.use(0)
    assert torch.equal(serving.score(tokens, 1, "logp"), first)
    assert not torch.allclose(first, doubled)
    serving.install(2)
    assert serving.versions == [1, 2]
    with pytest.raises(VersionError):
        serving.use(0)
    return True


def released(_):
    spec, groups = harness.spec(), harness.groups_of([0], layout())
    serving = empty(spec, groups)
    serving.load(harness.canonical)
    tokens = torch.cat([harness.prompts(), torch.ones(4, WORKLOAD.response_length, dtype=torch.int32)], 1)
    first = serving.score(tokens, 1, "logp")
    weights = [weakref.ref(s.tensor.untyped_storage()) for s in serving.shards()]
    serving.release()
    assert serving.versions == []
    assert not any(ref() for ref in weights)
    with pytest.raises(VersionError, match=r"version 0 is not held, but \[\]"):
        serving.use(0)
    for shard in serving.shards(1):
        shard.tensor.copy_(harness.canonical(shard.name, shard.global_shape)[shard.slices])
    serving.install(1)
    serving.use(1)
    assert torch.equal(serving.score(tokens, 1, "logp"), first)
    trained = harness.engine(spec, groups, trainable=Optimizer())
    with pytest.raises(ValueError, match="trainable"):
        trained.release()
    return True


def test_released_weights_take_no_memory_until_the_next_version():
    assert harness.launch(1, released) == [True]


def refusals(_):
    groups = harness.groups_of([0], layout())
    with pytest.raises(UnsupportedModelError, match="activation relu"):
        empty(harness.spec(activation="relu"), groups)
    with pytest.raises(ValueError, match="one version"):
        empty(harness.spec(), groups, trainable=Optimizer(), copies=2)
    frozen = harness.engine(harness.spec(), groups)
    with pytest.raises(ValueError, match="without prompt tokens"):
        frozen.score(torch.full((1, WORKLOAD.total_length), -1, dtype=torch.int32), 1, "logp")
    with pytest.raises(ValueError, match="no scalar head"):
        frozen.score(torch.ones(1, WORKLOAD.total_length, dtype=torch.int32), 1, "values")
    with pytest.raises(ValueError, match="not trainable"):
        frozen.train_minibatch(batch(), lambda *_: None, 1)
    with pytest.raises(UnsupportedModelError, match="longer than the 13 positions"):
        empty(harness.spec(max_positions=13), groups)
    foreign = torch.full((1, WORKLOAD.total_length), 61, dtype=torch.int32)
    unknown = r"token id 61 is not in the model's vocabulary of 61 tokens"
    with pytest.raises(UnknownTokenError, match=unknown):
        frozen.score(foreign, 1, "logp")
    with pytest.raises(UnknownTokenError, match=unknown):
        frozen.start_generation(
            foreign[:, :1], [0], 1, seed=0, step=0, temperature=1.0, top_p=1.0, eos=None, microbatches=1
        )
    with pytest.raises(UnknownTokenError, match=unknown):
        frozen.train_minibatch(batch(61), lambda *_: None, 1)
    with pytest.raises(ValueError, match="3 ranks"):
        harness.groups_of([0], layout(3))
    return True


def batch(token=1):
    tokens = torch.full((2, WORKLOAD.total_length), token, dtype=torch.int32)
    mask = tokens[:, WORKLOAD.prompt_length :] >= 0
    zero = torch.zeros(mask.shape, dtype=torch.float64)
    return TrainBatch(torch.arange(2), tokens, mask, zero, zero, zero, zero)


def not_a_number(_):
    engine = harness.engine(harness.spec(), harness.groups_of([0, 1], layout(2)), trainable=Optimizer())
    before = [s.tensor.clone() for s in engine.shards()]
    with pytest.raises(NumericError, match="norm is nan"):
        engine.train_minibatch(batch(), lambda o, b: (o.logp.sum() * float("nan"), {}), 1)
    return all(torch.equal(a, s.tensor) for a, s in zip(before, engine.shards(), strict=True))


def rows(rank):
    """Everyone sends its number to everyone else, in one call."""
    others = [r for r in range(3) if r != rank]
    received = {r: torch.empty(5) for r in others}
    sent = exchange({r: torch.full((5,), float(10 * rank + r)) for r in others}, received)
    return sent, {r: t.tolist() for r, t in received.items()}


def test_rings_of_versions():
    assert harness.launch(1, ring) == [True]


def test_refusals():
    assert harness.launch(1, refusals) == [True]


def test_a_gradient_that_is_no_number_stops_all_ranks_and_changes_nothing():
    assert harness.launch(2, not_a_number) == [True, True]


def test_rows_are_exchanged_in_all_directions_at_once():
    for rank, (sent, received) in enumerate(harness.launch(3, rows)):
        assert sent == 2 * 5 * 4
        assert received == {r: [10.0 * r + rank] * 5 for r in range(3) if r != rank}


def test_a_failing_rank_ends_the_launch():
    with pytest.raises(RuntimeError, match=r"(?s)rank 1.*KeyError: 1"):
        harness.launch(2, lambda rank: {0: 0}[rank], seconds=20)
