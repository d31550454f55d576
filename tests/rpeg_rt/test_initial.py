"""Initial weights are a function of seed, label, name and shape."""

import numpy as np

from ir_schema.model import ModelSpec
from rpeg_rt.initial import initial_label, initial_tensor


def model(head, checkpoint=None):
    return ModelSpec(
        layers=1, hidden=8, ffn=8, vocabulary=8, attention_heads=1, head=head, checkpoint=checkpoint
    )


def test_labels():
    assert initial_label(model("scalar"), "critic") == "critic"
    assert initial_label(model("scalar", "random:base"), "critic") == "base"
    assert initial_label(model("lm", "some/directory"), "actor") is None


def test_a_reference_starts_equal_to_its_actor():
    assert initial_label(model("lm"), "actor") == initial_label(model("lm"), "reference")
    assert initial_label(model("both"), "actor_critic") == initial_label(model("lm"), "reference")


def test_equal_by_label_and_different_otherwise():
    name = "model.layers.0.self_attn.q_proj.weight"
    base = initial_tensor(0, "base", name, (8, 6))
    assert np.array_equal(base, initial_tensor(0, "base", name, (8, 6)))
    others = [
        initial_tensor(1, "base", name, (8, 6)),
        initial_tensor(0, "other", name, (8, 6)),
        initial_tensor(0, "base", name.replace("0", "1"), (8, 6)),
    ]
    assert all(not np.isclose(base, o).any() for o in others)


def test_scales():
    assert np.array_equal(initial_tensor(0, "a", "model.norm.weight", (4,)), np.ones(4))
    assert np.array_equal(initial_tensor(0, "a", "model.norm.weight", (4,), unit_offset=True), np.zeros(4))
    assert np.array_equal(initial_tensor(0, "a", "x.q_proj.bias", (4,)), np.zeros(4))
    w = initial_tensor(0, "a", "model.layers.0.mlp.down_proj.weight", (300, 401))
    assert abs(w.std() * np.sqrt(401) - 1) < 0.01
    assert abs(w.mean()) < 4 / np.sqrt(w.size * 401)
    assert abs(initial_tensor(0, "a", "model.embed_tokens.weight", (300, 400)).std() / 0.02 - 1) < 0.01
    assert initial_tensor(0, "a", "value_head.weight", (1, 64)).std() < 2e-3
