"""The yardstick itself: it must be right before anything is compared with it."""

import math

import pytest
import torch

from ir_schema.model import ModelSpec
from tests.reference.model import hidden_states, initial_weights, logits

SPEC = ModelSpec(
    layers=2,
    hidden=16,
    ffn=24,
    vocabulary=40,
    head="lm",
    attention_heads=4,
    kv_heads=2,
    bytes_per_parameter=4,
    rope_theta=500.0,
)


def test_padding_changes_nothing():
    w = initial_weights(SPEC, "m", 0, torch.float64)
    tokens = torch.tensor([[3, 7, 1, 30, 2]])
    padded = torch.cat([torch.full((1, 3), -1), tokens, torch.full((1, 2), -1)], 1)
    alone, embedded = hidden_states(SPEC, w, tokens), hidden_states(SPEC, w, padded)
    torch.testing.assert_close(embedded[:, 3:-2], alone)


@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3"])
def test_logits_equal_hugging_face(variant):
    transformers = pytest.importorskip("transformers")
    extra = {"llama": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}[variant]
    spec = ModelSpec(**{f: getattr(SPEC, f) for f in SPEC.__struct_fields__} | extra | {"norm_epsilon": 1e-6})
    kinds = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    config = getattr(transformers, kinds[variant] + "Config")(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        rms_norm_eps=1e-6,
        rope_theta=500.0,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        attn_implementation="eager",
    )
    model = getattr(transformers, kinds[variant] + "ForCausalLM")(config).double().eval()
    w = initial_weights(spec, "m", 0, torch.float64)
    for name, tensor in w.items():
        if tensor.dim() == 1:
            tensor.add_(torch.arange(len(tensor)).sin(), alpha=0.1)  # norms and biases that matter
        assert model.state_dict()[name].shape == tensor.shape
    model.load_state_dict(w)
    tokens = torch.tensor([[3, 7, 1, 30, 2, 9, 9]])
    with torch.no_grad():
        expected = model(tokens).logits
    torch.testing.assert_close(
        logits(spec, w, hidden_states(spec, w, tokens)), expected, atol=1e-6, rtol=1e-6
    )


def test_initial_policy_is_nearly_uniform():
    w = initial_weights(SPEC, "m", 0, torch.float64)
    h = hidden_states(SPEC, w, torch.tensor([[3, 7, 1, 30, 2]]))
    entropy = torch.distributions.Categorical(logits=logits(SPEC, w, h)).entropy()
    assert entropy.min() > 0.7 * math.log(40)
