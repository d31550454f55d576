"""Models of transformers compute the same in the engine, and come back as what they were."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ir_schema.model import Experts, ModelSpec
from ir_schema.problem import Problem
from rpeg_rt.checkpoints.export import new_checkpoint
from rpeg_rt.checkpoints.start import examine
from rpeg_rt.engine.engine import Engine
from rpeg_rt.weights import starting_weights, write_shards
from tests.rpeg_rt.engine import harness
from tests.rpeg_rt.engine.harness import WORKLOAD, layout

transformers = pytest.importorskip("transformers")
families = pytest.importorskip("tests.rpeg_rt.checkpoints.families")

TOLERANCE = 1e-4


def tokens() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 61, (3, WORKLOAD.total_length), generator=generator)


def loaded(spec: ModelSpec, directory: Path, precision: torch.dtype = torch.float32) -> Engine:
    engine = Engine(spec, harness.groups_of([0], layout()), precision=precision, workload=WORKLOAD)
    engine.load(starting_weights(spec, "model", 0, str(directory)))
    return engine


def logits(engine: Engine, ids: torch.Tensor) -> torch.Tensor:
    """[n, s, V] of a model on one process."""
    model = engine._model
    with torch.no_grad():
        hidden = model(ids, None)
        flat = model.logits(hidden.flatten(0, 1))[:, : engine.spec.vocabulary]
    return flat.unflatten(0, hidden.shape[:2]).transpose(0, 1)


def decoded(engine: Engine) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy responses to the harness's prompts with the log-probabilities that decoding saw."""
    generation = engine.start_generation(
        harness.prompts(), range(4), 1, seed=1, step=0, temperature=1e-6, top_p=1.0, eos=None, microbatches=1
    )
    finished = generation.run_until(4)
    return finished.tokens.long(), engine.score(finished.tokens, 1, "logp")


def greedy(reference: Any, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the reference answers when it is led along a row: tokens and log-probabilities."""
    prompt = row[: WORKLOAD.prompt_length]
    prompt, response = prompt[prompt >= 0], row[WORKLOAD.prompt_length :]
    with torch.no_grad():
        theirs = reference(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    return theirs.argmax(-1), theirs.log_softmax(-1).gather(-1, response[:, None])[:, 0]


def problem_of(spec: ModelSpec, directory: Path) -> Problem:
    from msgspec.structs import replace

    from tests.rpeg_rt.plans import problem

    made = problem()
    return replace(made, models={"actor": replace(spec, checkpoint=str(directory))})


@pytest.mark.parametrize("case", families.CASES)
def test_logits_and_decoding_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    spec, reference = families.saved(case, tmp_path / "theirs")
    assert examine(problem_of(spec, tmp_path / "theirs"), tmp_path).findings == []

    def check(_: int) -> None:
        engine = loaded(spec, tmp_path / "theirs")
        with torch.no_grad():
            expected = reference(tokens()).logits
        torch.testing.assert_close(logits(engine, tokens()), expected, rtol=0, atol=TOLERANCE)
        rows, scores = decoded(engine)
        for row, score in zip(rows, scores, strict=True):
            chosen, logp = greedy(reference, row)
            assert torch.equal(chosen, row[WORKLOAD.prompt_length :])
            torch.testing.assert_close(score, logp, rtol=0, atol=TOLERANCE)
        with new_checkpoint(tmp_path / "ours", spec, "float32", None, None) as part:
            write_shards(engine.shards(), part)

    harness.launch(1, check)
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    assert type(again) is type(reference)
    with torch.no_grad():
        # Not to the bit: where in memory weights lie decides in which order some products add up.
        torch.testing.assert_close(again(tokens()).logits, reference(tokens()).logits, rtol=0, atol=1e-5)


SCALAR = ["llama", "mistral window", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "qwen2_moe", "mixtral"]


@pytest.mark.parametrize("case", SCALAR)
def test_scalar_heads_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    spec, reference = families.saved(case, tmp_path / "theirs", scalar=True)
    assert examine(problem_of(spec, tmp_path / "theirs"), tmp_path).notes == []
    rows = tokens().int()

    def check(_: int) -> torch.Tensor:
        engine = loaded(spec, tmp_path / "theirs")
        with new_checkpoint(tmp_path / "ours", spec, "float32", None, None) as part:
            write_shards(engine.shards(), part)
        return engine.score(rows, 1, "reward")

    (rewards,) = harness.launch(1, check)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    )
    assert type(again) is type(reference)
    with torch.no_grad():
        for row, reward in zip(rows.long(), rewards, strict=True):
            for model in (reference, again):
                assert float(model(row[None]).logits) == pytest.approx(float(reward), abs=TOLERANCE)


FEATURES: dict[str, dict[str, Any]] = {
    "llama yarn factors": {"rope_scaling": None, "norm_epsilon": 0.1},
    "mistral window": {"sliding_window": 5},
    "qwen2": {"rope_theta": 100.0},
    "mixtral": {"experts": Experts(routed=5, top_k=1, ffn=96)},
    "qwen2_moe": {
        "experts": Experts(routed=6, top_k=3, ffn=40, shared_ffn=72, shared_gate=True, norm_top_k=True)
    },
    "qwen2_moe normed": {
        "experts": Experts(routed=6, top_k=3, ffn=40, shared_ffn=24, shared_gate=False, norm_top_k=True)
    },
    "gemma": {"scaled_embeddings": False, "unit_offset_norm": False, "activation": "silu"},
    "gemma2": {"attention_softcap": None, "full_attention_every": None, "post_norms": False},
    "gemma3": {
        "logit_softcap": None,
        "attention_scalar": None,
        "local_rope_theta": None,
        "sliding_window": None,
        "full_attention_every": None,
        "rope_scaling": None,
    },
}


@pytest.mark.parametrize("case", FEATURES)
def test_every_feature_shows_in_the_logits(case: str, tmp_path: Path) -> None:
    """Otherwise the comparison above would not notice one that is left out."""
    from msgspec.structs import replace

    spec, _ = families.saved(case, tmp_path)

    def check(_: int) -> list[str]:
        right = logits(loaded(spec, tmp_path), tokens())
        unseen = []
        for field, value in FEATURES[case].items():
            wrong = logits(loaded(replace(spec, **{field: value}), tmp_path), tokens())
            if float((wrong - right).abs().max()) < 100 * TOLERANCE:
                unseen.append(field)
        return unseen

    assert harness.launch(1, check) == [[]]
