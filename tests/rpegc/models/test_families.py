"""Configs of many families, none of them shipped: counts of their tensors, and refusals by name.

`families.json` holds what the configs of the named models say about tensors, and the number of parameters of
the checkpoint (as the reference implementation of each family builds it).
"""

import json
from pathlib import Path

import pytest

from ir_schema.diagnostics import DiagnosticError
from ir_schema.problem import Layout
from passes.cost import parameters
from rpegc.models import FAMILIES, import_config, load_facts, model_names
from tests.rpegc.models.test_models import SMALL

KNOWN = json.loads(Path(__file__).with_name("families.json").read_text())


@pytest.mark.parametrize("name", KNOWN)
def test_parameters(name):
    spec = import_config(KNOWN[name]["config"], "lm", name)
    assert parameters.total(spec) == KNOWN[name]["parameters"]


def test_every_family_is_counted():
    counted = {load_facts(name).spec["family"] for name in model_names()}
    assert counted | {known["config"]["model_type"] for known in KNOWN.values()} >= set(FAMILIES)


@pytest.mark.parametrize("name", ["qwen1.5-moe", "deepseek-v2-lite", "mixtral-8x22b"])
def test_shards_of_experts_add_up(name):
    """With dense parts whole, P_e shards hold every routed expert once."""
    spec = import_config(KNOWN[name]["config"], "lm", name)
    whole = parameters.stage_shard(spec, Layout(data_parallel=4, pipeline_parallel=1, tensor_parallel=1), 0)
    layout = Layout(data_parallel=4, pipeline_parallel=1, tensor_parallel=1, expert_parallel=4)
    part = parameters.stage_shard(spec, layout, 0)
    assert part.dense == whole.dense
    assert 4 * part.expert == whole.expert


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("mamba", {}),
        ("mamba2", {"state_size": 128}),
        ("falcon_mamba", {"state_size": 16}),
        ("rwkv", {}),
        ("jamba", {"attn_layer_period": 8}),
        ("zamba2", {"mamba_d_state": 64}),
        ("recurrent_gemma", {"lru_width": 256}),
        ("qwen3_next", {"linear_num_key_heads": 16}),
        ("granitemoehybrid", {"layer_types": ["mamba", "attention", "mamba"]}),
        ("kimi_linear", {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
    ],
)
def test_recurrent_families_are_refused_by_name(family, more):
    with pytest.raises(DiagnosticError) as caught:
        import_config({**SMALL, **more, "model_type": family}, "lm", "x")
    (found,) = caught.value.diagnostics
    assert found.code == "E321"
    assert f"`{family}` has state-space" in found.message


@pytest.mark.parametrize(
    "family", ["olmo", "gpt2", "gpt_neox", "starcoder2", "gemma3n_text", "llama4_text", "x y"]
)
def test_other_families_are_refused_by_name(family):
    with pytest.raises(DiagnosticError) as caught:
        import_config({**SMALL, "model_type": family}, "lm", "x")
    (found,) = caught.value.diagnostics
    assert found.code == "E321"
    assert f"`{family}` is not understood" in found.message
