"""Training keeps the inputs of layers alone, gives the same bits as keeping everything, and lets go early."""

import weakref

import pytest
import torch

import rpeg_rt.engine.blocks
from rpeg_rt.engine.alignment import align
from rpeg_rt.engine.pipeline import Sender
from tests.rpeg_rt.engine import harness
from tests.rpeg_rt.engine.harness import WORKLOAD, layout
from tests.rpeg_rt.engine.test_parity import OPTIMIZER, batch_of, block, loss, responses

SPEC = harness.spec(vocabulary=140, layers=4, head="both")


def train(shape):
    """Bits of gradients' norm and of the weights after two steps, and how often attention ran."""
    groups = harness.groups_of(list(range(shape.gpus)), shape)
    if not groups.member:
        return None
    engine = harness.engine(SPEC, groups, trainable=OPTIMIZER)
    runs = []
    attention = rpeg_rt.engine.blocks.CausalAttention
    original = attention.forward
    attention.forward = lambda self, q, *a, **k: (runs.append(q.requires_grad), original(self, q, *a, **k))[1]
    try:
        batch = batch_of(block(responses(SPEC), groups))
        metrics = [engine.train_minibatch(batch, loss, 3) for _ in range(2)]
        trained = len(runs)
        engine.score(batch.tokens, 3, "logp")
    finally:
        attention.forward = original
    weights = [s.tensor.clone() for s in engine.shards()]
    return metrics, weights, trained, len(runs) - trained


@pytest.mark.parametrize(
    "shape", [layout(1, 1, 1), layout(1, 2, 1), layout(1, 1, 2), layout(1, 1, 1, 2)], ids=str
)
def test_recomputation_changes_no_bit(shape, monkeypatch):
    recomputed = harness.launch(shape.gpus, lambda _: train(shape))
    monkeypatch.setattr(rpeg_rt.engine.blocks, "checkpoint", lambda run, hidden, **_: run(hidden))
    kept = harness.launch(shape.gpus, lambda _: train(shape))
    layers = SPEC.layers // shape.pipeline_parallel
    for a, b in zip(recomputed, kept, strict=True):
        assert a[0] == b[0]
        assert all(torch.equal(x, y) for x, y in zip(a[1], b[1], strict=True))
        assert (b[2], a[2]) == (2 * 3 * layers, 2 * 2 * 3 * layers)
        assert a[3] == b[3] == 3 * layers


def saved(_):
    """Floating-point elements that a forward pass keeps, in units of a layer's input, by number of layers."""
    kept = {}
    for layers in (1, 4):
        engine = harness.engine(
            harness.spec(layers=layers), harness.groups_of([0], layout()), trainable=OPTIMIZER
        )
        rows = align(responses(harness.spec()), WORKLOAD.prompt_length)
        sizes = []

        def pack(x, sizes=sizes):
            sizes.append(x.numel() if x.is_floating_point() and not isinstance(x, torch.nn.Parameter) else 0)
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            hidden = engine._model(rows.ids, None)
        kept[layers] = sum(sizes) / hidden.numel()
    return kept


def test_a_layer_keeps_its_input_alone():
    (kept,) = harness.launch(1, saved)
    assert kept[4] - kept[1] == 3


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
