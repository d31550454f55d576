"""What is wrong with a checkpoint is known, by name, before anything of it is loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ir_schema.families import WITH_EXPERTS
from ir_schema.hugging_face import import_config
from ir_schema.model import Experts, ModelSpec, RopeScaling
from ir_schema.problem import Problem
from rpeg_rt.checkpoints.config import CLASSES, differences, family_of, written
from rpeg_rt.checkpoints.directory import INDEX, SINGLE, lay_out_tensors
from rpeg_rt.checkpoints.export import make_room, new_checkpoint, unwritable
from rpeg_rt.checkpoints.keys import not_understood
from rpeg_rt.checkpoints.safetensors import read_header
from rpeg_rt.checkpoints.start import Checkpoints, examine
from rpeg_rt.engine import canonical_shapes
from rpeg_rt.failure import FileError
from tests.rpeg_rt.plans import problem

SMALL = {"layers": 2, "hidden": 16, "ffn": 32, "vocabulary": 61, "attention_heads": 4, "kv_heads": 2}
FEW = Experts(routed=4, top_k=2, ffn=8)


def spec(**changes: Any) -> ModelSpec:
    return ModelSpec(**({"head": "lm", "bytes_per_parameter": 4, **SMALL} | changes))


def with_models(**models: ModelSpec) -> Problem:
    return replace(problem(), models=models)


def checkpoint(directory: Path, saved: ModelSpec, precision: str = "float32") -> Path:
    with new_checkpoint(directory, saved, precision, None, None):
        pass
    return directory


def looked_at(directory: Path, model: ModelSpec) -> Checkpoints:
    return examine(with_models(actor=replace(model, checkpoint=str(directory))), Path())


def edit(path: Path, **changes: Any) -> None:
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))


def test_a_checkpoint_of_the_same_model_is_fine(tmp_path: Path) -> None:
    found = looked_at(checkpoint(tmp_path / "a", spec()), spec())
    assert (found.findings, found.notes) == ([], [])
    assert found.directories == {"actor": tmp_path / "a"}


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": 24}, "`hidden` is 16 in the plan and 24 there"),
    ({"rms_norm_eps": 1e-6}, "`norm_epsilon` is 1e-05 in the plan and 1e-06 there"),
    ({"rms_norm_eps": "absent"}, "`norm_epsilon` is 1e-05 in the plan and 1e-06 there"),
    ({"rope_theta": 5e5}, "`rope_theta` is 10000.0 in the plan and 500000.0 there"),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, "`rope_scaling` is none in the plan and RopeScaling"),
    ({"rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1}}, "`rope_scaling.mscale`, which is not"),
    ({"tie_word_embeddings": True}, "`tied_embeddings` is false in the plan and true there"),
    ({"num_key_value_heads": 4}, "`kv_heads` is 2 in the plan and 4 there"),
    ({"head_dim": 8}, "`head_dim` is 4 in the plan and 8 there"),
    ({"attention_bias": True}, "`qkv_bias` is false in the plan and true there"),
    ({"hidden_act": "gelu"}, "`activation` is silu in the plan and gelu there"),
    ({"model_type": "mistral"}, "`sliding_window` is none in the plan and 4096 there"),
    ({"model_type": "phi3"}, "is of family `phi3`; the runtime starts from llama, mistral"),
    ({"model_type": "absent"}, "is of family `None`"),
    (
        {"architectures": ["LlamaForTokenClassification"]},
        "names architecture ['LlamaForTokenClassification']",
    ),
    ({"quantization_config": {"bits": 4}}, "`quantization_config` = {'bits': 4}, which is not understood"),
    ({"attention_dropout": 0.1}, "`attention_dropout` = 0.1, which is not understood"),
    ({"residual_multiplier": 2.0}, "`residual_multiplier` = 2.0, which is not understood"),
    ({"sliding_window": 8}, "`sliding_window` = 8, which is not understood"),
    ({"auto_map": {"AutoModel": "m.M"}}, "`auto_map` = {'AutoModel': 'm.M'}, which is not understood"),
    ({"hidden_size": "many"}, "`hidden_size` = 'many' must be a whole number"),
]


@pytest.mark.parametrize(("changes", "words"), CONFIGS, ids=lambda x: str(x)[:40])
def test_another_model_is_told_by_field_and_values(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path / "a", spec())
    edit(path / "config.json", **changes)
    findings = looked_at(path, spec()).findings
    assert any(words in f for f in findings), findings
    assert all(f.startswith("model `actor`: ") and str(path / "config.json") in f for f in findings)


@pytest.mark.parametrize(
    "harmless",
    [
        {"transformers_version": "4.46.0", "use_cache": True, "pretraining_tp": 1, "initializer_range": 0.02},
        {"attention_dropout": 0.0, "mup": None, "rope_scaling": None},
        {"rope_theta": "absent", "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    ],
)
def test_keys_that_do_not_matter_are_no_obstacle(harmless: dict[str, Any], tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a", spec())
    edit(path / "config.json", **harmless)
    assert looked_at(path, spec()).findings == []


PUBLISHED = Path(__file__).parents[2] / "rpegc" / "models" / "configs"


@pytest.mark.parametrize(
    "name",
    [
        *("Qwen--Qwen3-0.6B", "Qwen--Qwen3-8B", "meta-llama--Meta-Llama-3.1-8B"),
        *("Qwen--Qwen3-30B-A3B", "Qwen--Qwen3-235B-A22B", "mistralai--Mixtral-8x7B-v0.1"),
    ],
)
def test_published_configs_are_understood(name: str) -> None:
    assert not_understood(json.loads((PUBLISHED / f"{name}.json").read_text())) == []


def test_experts_that_compute_something_else_are_told(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a", spec(experts=FEW))
    assert "model.layers.0.block_sparse_moe.experts.3.w2.weight" in read_header(path / SINGLE)
    assert looked_at(path, spec(experts=replace(FEW, skew=2.0), ffn=7)).findings == []
    (finding,) = looked_at(path, spec(experts=replace(FEW, top_k=1, every=2))).findings
    assert "`experts.top_k` is 1 in the plan and 2 there" in finding
    assert "`layers with experts` is [1] in the plan and [0, 1] there" in finding
    edit(path / "config.json", router_jitter_noise=0.1)
    (finding,) = looked_at(path, spec(experts=FEW)).findings
    assert "`router_jitter_noise` = 0.1, which is not understood" in finding


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def shapes(**changes: Any) -> Callable[[Path], None]:
    return lambda path: lay_out_tensors(
        path, {n: s for n, s in (canonical_shapes(spec()) | changes).items() if s is not None}, "float32"
    )


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes(change((path / name).read_bytes())) and None


def as_integers(data: bytes) -> bytes:
    return data.replace(b'"F32"', b'"I32"', 1)


FILES: list[tuple[Callable[[Path], None], str]] = [
    (remove("config.json"), "config.json: No such file or directory"),
    (rewrite("config.json", lambda _: b"{"), "is not JSON"),
    (remove(SINGLE), "has neither model.safetensors nor model.safetensors.index.json"),
    (rewrite(SINGLE, lambda data: data[:-1]), "is damaged: it has"),
    (rewrite(SINGLE, lambda data: data + b"x"), "is damaged: it has"),
    (rewrite(SINGLE, lambda data: data[:40]), "is cut off in its header"),
    (rewrite(SINGLE, lambda data: b""), "is no safetensors file"),
    (rewrite(SINGLE, lambda data: data[:8] + b"x" + data[9:]), "its header is not JSON"),
    (rewrite(SINGLE, lambda data: data.replace(b"[61, 16]", b"[61, 15]", 1)), "contradicts itself"),
    (rewrite(SINGLE, as_integers), "`model.embed_tokens.weight` is I32"),
    (shapes(**{"model.norm.weight": None}), "tensors are missing in"),
    (shapes(**{"model.norm.weight": (17,)}), "`model.norm.weight` [17], not [16]"),
    (shapes(**{"model.layers.2.mlp.up_proj.weight": (4, 4)}), "tensors are not expected in"),
]  # fmt: skip


@pytest.mark.parametrize(("harm", "words"), FILES, ids=[words for _, words in FILES])
def test_files_that_are_not_what_they_should_be(
    harm: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path / "a", spec())
    harm(path)
    (finding,) = looked_at(path, spec()).findings
    assert words in finding
    assert str(path) in finding


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    assert "is no directory" in looked_at(tmp_path / "nowhere", spec()).findings[0]


@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=200), length=st.integers(0, 300))
def test_no_bytes_are_more_than_refused(data: bytes, length: int, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + data)
    with pytest.raises(FileError, match="safetensors"):
        read_header(path)


INDEXES: list[tuple[Callable[[dict[str, str]], Any], str]] = [
    (lambda m: m | {"x": "nowhere.safetensors"}, "cannot read"),
    (lambda m: m | {"x": "../a.safetensors"}, "is not a file beside it"),
    (lambda m: m | {"x": max(m.values())}, "speaks of tensor `x`"),
    (lambda m: dict(list(m.items())[1:]), "has tensor `model.embed_tokens.weight`, which"),
    (lambda m: [], "has no `weight_map`"),
]


@pytest.mark.parametrize(("change", "words"), INDEXES, ids=[words for _, words in INDEXES])
def test_an_index_that_lies(change: Callable[[dict[str, str]], Any], words: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a", spec())
    (path / SINGLE).unlink()
    lay_out_tensors(path, canonical_shapes(spec()), "float32", shard_bytes=4000)
    assert looked_at(path, spec()).findings == []
    index = json.loads((path / INDEX).read_text())
    (path / INDEX).write_text(json.dumps({"weight_map": change(index["weight_map"])}))
    (finding,) = looked_at(path, spec()).findings
    assert words in finding


def test_a_scalar_head_is_taken_or_told_to_be_new(tmp_path: Path) -> None:
    lm, scalar = checkpoint(tmp_path / "lm", spec()), checkpoint(tmp_path / "rm", spec(head="scalar"))
    assert "score.weight" in read_header(scalar / SINGLE)
    fresh = looked_at(lm, spec(head="scalar"))
    assert fresh.findings == []
    assert "no scalar head (`score.weight`): it starts from the run's seed" in fresh.notes[0]
    assert "`lm_head.weight` of" in fresh.notes[1]
    assert looked_at(scalar, spec(head="scalar")).notes == []
    assert "`lm_head.weight`" in looked_at(scalar, spec()).findings[0]
    both = looked_at(checkpoint(tmp_path / "both", spec(head="both")), spec())
    assert (both.findings, "`score.weight` of" in both.notes[0]) == ([], True)


def test_rounding_and_random_starts_are_told(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a", spec(), "float64")
    models = {
        "actor": spec(checkpoint=str(path)),
        "reference": spec(),
        "critic": spec(head="scalar", checkpoint="random:x"),
    }
    random = "without a checkpoint, from random weights: `critic`, `reference`"
    assert examine(with_models(**models), Path()).notes == [random]
    run = problem().run
    assert run is not None
    single = replace(with_models(**models), run=replace(run, precision="float32"))
    rounding = f"model `actor`: weights of {path} in F64 are rounded to float32"
    assert examine(single, Path()).notes == [rounding, random]


def test_paths_lead_from_the_directory_of_the_data(tmp_path: Path) -> None:
    checkpoint(tmp_path / "a", spec())
    found = examine(with_models(actor=spec(checkpoint="a")), tmp_path)
    assert (found.findings, found.directories) == ([], {"actor": tmp_path / "a"})


SPECS: list[tuple[dict[str, Any], str | None]] = [
    ({}, "llama"),
    ({"sliding_window": 8}, "mistral"),
    ({"qkv_bias": True}, "qwen2"),
    ({"qk_norm": True}, "qwen3"),
    ({"family": "qwen2", "qkv_bias": True, "sliding_window": 8}, "qwen2"),
    ({"qkv_bias": True, "attention_output_bias": True}, "llama"),
    ({"qk_norm": True, "qkv_bias": True}, None),
    ({"post_norms": True}, None),
    ({"activation": "gelu_pytorch_tanh", "unit_offset_norm": True, "scaled_embeddings": True}, "gemma"),
    ({"rope_scaling": RopeScaling(kind="yarn", factor=2.0, original_positions=8)}, "llama"),
    ({"experts": FEW}, "mixtral"),
    ({"experts": FEW, "sliding_window": 8}, "mixtral"),
    ({"experts": replace(FEW, every=2), "qk_norm": True}, "qwen3_moe"),
    ({"experts": replace(FEW, shared_ffn=4, shared_gate=True), "qkv_bias": True}, "qwen2_moe"),
    ({"experts": replace(FEW, shared_ffn=4)}, None),
    ({"experts": replace(FEW, norm_top_k=False), "qk_norm": True, "sliding_window": 8}, None),
]


@pytest.mark.parametrize(("changes", "family"), SPECS, ids=lambda x: str(x)[:50])
def test_a_model_is_written_as_a_family_that_computes_the_same(
    changes: dict[str, Any], family: str | None
) -> None:
    found, lacking = family_of(spec(**changes))
    assert found == family
    assert bool(lacking) == (family is None)


def test_what_no_family_can_say_is_refused_before_the_start(tmp_path: Path) -> None:
    (finding,) = unwritable(replace(problem(), models={"actor": spec(), "critic": spec(post_norms=True)}))
    assert finding.startswith("model `critic` cannot be saved: no family of llama, ")
    assert "`post_norms` = True, not False" in finding


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "actor").mkdir()
    make_room(tmp_path, ["actor", "critic"])
    (tmp_path / "actor" / "notes").touch()
    with pytest.raises(FileError, match="actor exists already"):
        make_room(tmp_path, ["actor", "critic"])


CONFIG = st.fixed_dictionaries(
    {
        "vocab_size": st.just(61),
        "hidden_size": st.just(16),
        "intermediate_size": st.just(24),
        "num_hidden_layers": st.integers(1, 4),
        "num_attention_heads": st.just(4),
        "num_key_value_heads": st.sampled_from([1, 2, 4]),
    },
    optional={
        "head_dim": st.sampled_from([4, 8]),
        "rms_norm_eps": st.sampled_from([1e-6, 1e-5]),
        "rope_theta": st.sampled_from([500.0, 1e6]),
        "rope_scaling": st.sampled_from(
            [None, {"type": "linear", "factor": 2}, {"type": "yarn", "factor": 4}]
        ),
        "max_position_embeddings": st.just(32),
        "tie_word_embeddings": st.booleans(),
        "attention_bias": st.booleans(),
        "sliding_window": st.sampled_from([None, 4]),
        "use_sliding_window": st.booleans(),
        "max_window_layers": st.sampled_from([0, 4]),
        "sliding_window_pattern": st.integers(1, 4),
        "query_pre_attn_scalar": st.sampled_from([8, 50]),
        "attn_logit_softcapping": st.sampled_from([None, 20.0]),
        "final_logit_softcapping": st.sampled_from([None, 20.0]),
        "rope_local_base_freq": st.sampled_from([500.0, 1e6]),
    },
)


MIXTRAL = st.fixed_dictionaries({"num_local_experts": st.just(4), "num_experts_per_tok": st.integers(1, 4)})
EXPERTS = st.fixed_dictionaries(
    {
        "num_experts": st.just(4),
        "num_experts_per_tok": st.integers(1, 4),
        "moe_intermediate_size": st.just(8),
        "shared_expert_intermediate_size": st.just(12),
    },
    optional={
        "norm_topk_prob": st.booleans(),
        "decoder_sparse_step": st.integers(1, 3),
        "mlp_only_layers": st.sampled_from([[], [0]]),
        "qkv_bias": st.booleans(),
    },
)


@pytest.mark.parametrize("family", CLASSES)
@settings(max_examples=30, deadline=None)
@given(config=CONFIG, data=st.data())
def test_what_is_written_is_read_alike(family: str, config: dict[str, Any], data: st.DataObject) -> None:
    config = {"model_type": family} | config
    if family in WITH_EXPERTS:
        config |= data.draw(MIXTRAL if family == "mixtral" else EXPERTS)
    foreign = " ".join(not_understood(config))
    config = {key: value for key, value in config.items() if f"`{key}` =" not in foreign}
    model = import_config(config, "lm", family)
    saved = written(model, family, "float32", None)
    assert not_understood(saved) == []
    assert differences(model, import_config(saved, "lm", family)) == []
