"""Training gives the same bits whatever it keeps, keeps no more than there is room for, and lets go early."""

import weakref

import pytest
import torch

import rpeg_rt.engine.blocks
from rpeg_rt.engine.alignment import align
from rpeg_rt.engine.pipeline import Sender
from tests.rpeg_rt.engine import harness
from tests.rpeg_rt.engine.harness import WORKLOAD, layout
from tests.rpeg_rt.engine.test_parity import MODELS, OPTIMIZER, batch_of, block, loss, responses

SPEC = harness.spec(vocabulary=140, layers=4, head="both")
ROOMS = (0, 350_000, 1 << 30)


def train(shape):
    """By room: bits of gradients' norm and of the weights after two steps, how often attention ran, and what
    is still taken of the room."""
    groups = harness.groups_of(list(range(shape.gpus)), shape)
    return [trained(groups, room) for room in ROOMS]


def trained(groups, room):
    engine = harness.engine(SPEC, groups, trainable=OPTIMIZER, room=room)
    runs = []
    attention = rpeg_rt.engine.blocks.CausalAttention
    original = attention.forward
    attention.forward = lambda self, q, *a, **k: (runs.append(q.requires_grad), original(self, q, *a, **k))[1]
    try:
        batch = batch_of(block(responses(SPEC), groups))
        metrics = [engine.train_minibatch(batch, loss, 3) for _ in range(2)]
        during = len(runs)
        engine.score(batch.tokens, 3, "logp")
    finally:
        attention.forward = original
    weights = [s.tensor.clone() for s in engine.shards()]
    return metrics, weights, during, len(runs) - during, engine._model.room.taken


@pytest.mark.parametrize("shape", [layout(1, 1, 1), layout(1, 2, 1), layout(1, 1, 2)], ids=str)
def test_recomputation_changes_no_bit(shape):
    layers = SPEC.layers // shape.pipeline_parallel
    once, twice = 2 * 3 * layers, 2 * 2 * 3 * layers
    for recomputed, some, kept in harness.launch(shape.gpus, lambda _: train(shape)):
        for other in (some, kept):
            assert other[0] == recomputed[0]
            assert all(torch.equal(x, y) for x, y in zip(other[1], recomputed[1], strict=True))
        assert (kept[2], recomputed[2]) == (once, twice)
        assert once < some[2] < twice
        for each in (recomputed, some, kept):
            assert each[3:] == (3 * layers, 0)


def saved(spec, precision, room):
    """Bytes that a forward pass keeps beside the weights, what it took of the room, those of its result."""
    engine = harness.engine(spec, harness.groups_of([0], layout()), precision, trainable=OPTIMIZER, room=room)
    rows = align(responses(spec), WORKLOAD.prompt_length)
    weights = {p.untyped_storage().data_ptr() for p in engine._model.parameters()}
    attending = [layer.self_attention.core_attention for layer in engine._model.decoder.layers]
    weights |= {turn.untyped_storage().data_ptr() for a in attending for turn in a.turns}
    sizes = {}

    def pack(x):
        storage = x.untyped_storage()
        if x.is_floating_point() and storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        hidden = engine._model(rows.ids, None)
    return sum(sizes.values()), engine._model.room.taken, hidden.nbytes


def test_a_layer_keeps_its_input_alone():
    specs = [harness.spec(layers=layers) for layers in (1, 4)]
    ((one, four),) = harness.launch(1, lambda _: [saved(s, torch.float64, 0) for s in specs])
    assert four[0] - one[0] == 3 * one[2]


@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_layers_keep_no_more_than_they_take(precision):
    specs = {name: spec for name, spec in MODELS.items() if spec.experts is None}
    (found,) = harness.launch(
        1, lambda _: [[saved(s, precision, room) for room in (0, 1 << 30)] for s in specs.values()]
    )
    for name, (without, kept) in zip(specs, found, strict=True):
        assert without[1] == 0, name
        # More than the inputs, which both keep.
        beside = kept[0] - without[0]
        assert beside <= kept[1] <= 4 * beside, name


def sending(rank):
    if rank == 1:
        for _ in range(3):
            torch.distributed.recv(torch.empty(4), 0, tag=5)
        return True
    sender, alive = Sender(tag=5), []
    for i in range(3):
        tensor = torch.full((4,), float(i))
        alive.append(weakref.ref(tensor))
        sender.send(tensor, 1)
        del tensor
    sender.settle(2)
    held = [ref() is not None for ref in alive]
    sender.settle(1)
    sender.wait()
    return held, [ref() is not None for ref in alive]


def test_what_has_been_received_is_let_go():
    assert harness.launch(2, sending)[0] == ([False, False, True], [False] * 3)
