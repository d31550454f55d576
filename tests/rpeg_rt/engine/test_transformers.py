"""Scores and generation equal Hugging Face's Llama, Qwen2 and Qwen3 with random weights (float32)."""

import pytest
import torch

from ir_schema.model import RopeScaling
from rpeg_rt.engine import canonical_shapes
from tests.rpeg_rt.engine import harness
from tests.rpeg_rt.engine.harness import WORKLOAD, layout

transformers = pytest.importorskip("transformers")

COMMON = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}
CASES = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}, {}),
    "llama3 positions": (
        "LlamaConfig",
        {"tie_word_embeddings": True, "rope_parameters": LLAMA3},
        {
            "tied_embeddings": True,
            "rope_scaling": RopeScaling(
                kind="llama3",
                factor=4.0,
                original_positions=16,
                low_frequency_factor=1.0,
                high_frequency_factor=4.0,
            ),
        },
    ),
    "linear positions": (
        "LlamaConfig",
        {
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
        },
        {"rope_theta": 500.0, "rope_scaling": RopeScaling(kind="linear", factor=3.0)},
    ),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": False}, {"qkv_bias": True}),
    "qwen3": (
        "Qwen3Config",
        {"tie_word_embeddings": True, "head_dim": 12},
        {"tied_embeddings": True, "qk_norm": True, "head_dim": 12},
    ),
}


def check(case):
    kind, theirs, ours = CASES[case]
    spec = harness.spec(**ours)
    reference = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**COMMON | theirs))
    weights = {n: harness.canonical(n, s) for n, s in canonical_shapes(spec).items()}
    missing, unexpected = reference.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    reference.tie_weights()
    reference.eval()
    engine = harness.engine(spec, harness.groups_of([0], layout()), torch.float32)
    generation = engine.start_generation(
        harness.prompts(), range(4), 1, seed=1, step=0, temperature=1e-6, top_p=1.0, eos=None, microbatches=1
    )
    finished = generation.run_until(4)
    scores = engine.score(finished.tokens, 2, "logp")
    worst = 0.0
    for row, score in zip(finished.tokens.long(), scores, strict=True):
        prompt = row[: WORKLOAD.prompt_length]
        prompt, response = prompt[prompt >= 0], row[WORKLOAD.prompt_length :]
        with torch.no_grad():
            logits = reference(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        assert torch.equal(logits.argmax(-1), response), "greedy decoding differs"
        expected = torch.log_softmax(logits, -1).gather(-1, response[:, None])[:, 0]
        worst = max(worst, float((expected - score).abs().max()))
    return worst


@pytest.mark.parametrize("case", CASES)
def test_equal_to_transformers(case):
    (worst,) = harness.launch(1, lambda _: check(case))
    assert worst < 2e-5
