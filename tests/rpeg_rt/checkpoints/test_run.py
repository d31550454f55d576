"""Runs that start from checkpoints and leave some, from the command line's function to transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from ir_schema.model import ModelSpec
from ir_schema.problem import Problem
from rpeg_rt.cli import main
from rpeg_rt.metrics import StepMetrics
from rpeg_rt.run import Settings, execute
from tests.rpeg_rt.plans import colocated, executable, place, problem, write_plan

transformers = pytest.importorskip("transformers")

SPREAD = colocated(dp=2) | {"actor_train": place("0-1", tp=2), "critic_train": place("0-1", pp=2)}
LIKE_QWEN = {"qkv_bias": True, "tied_embeddings": True, "norm_epsilon": 1e-6}


def made(checkpoints: dict[str, str | None], rate: float) -> Problem:
    """One step of PPO in float64; models are tied and have biases, and start from `checkpoints`."""
    base = problem(run={"steps": 1})
    assert base.run is not None
    models: dict[str, ModelSpec] = {
        name: replace(spec, checkpoint=checkpoints.get(name), **LIKE_QWEN)
        for name, spec in base.models.items()
    }
    optimizer = replace(base.run.optimizer, learning_rate=rate)
    return replace(base, models=models, run=replace(base.run, optimizer=optimizer))


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run from random weights leaves."""
    directory: Path = tmp_path_factory.mktemp("first")
    path = write_plan(directory, executable(made({}, 1e-2), colocated()))
    execute(path, Settings(save=directory / "out"), lambda *_: None)
    return directory / "out"


def again(first: Path, directory: Path, checkpoints: dict[str, str | None], plan: Any) -> Path:
    """The plan of one step at learning rate 0 that starts from what the first run left, in `in`."""
    (directory / "in").symlink_to(first)
    return write_plan(directory, executable(made(checkpoints, 0.0), plan))


def test_transformers_loads_what_a_run_leaves(first: Path) -> None:
    actor = transformers.AutoModelForCausalLM.from_pretrained(first / "actor", dtype="auto")
    assert type(actor).__name__ == "Qwen2ForCausalLM"
    assert actor.dtype == torch.float64
    assert actor.config.eos_token_id == 256
    saved = weights(first / "actor")
    state = actor.state_dict()
    assert state.keys() - saved.keys() == {"lm_head.weight"}
    assert all(torch.equal(state[name], values) for name, values in saved.items())
    tokenizer = transformers.AutoTokenizer.from_pretrained(first / "actor")
    assert tokenizer("7 × 8")["input_ids"] == list("7 × 8".encode())
    assert tokenizer.eos_token_id == actor.generation_config.eos_token_id == 256
    critic = transformers.AutoModelForSequenceClassification.from_pretrained(first / "critic", dtype="auto")
    assert type(critic).__name__ == "Qwen2ForSequenceClassification"
    assert torch.equal(critic.score.weight, weights(first / "critic")["score.weight"])


@pytest.mark.parametrize("plan", [colocated(), SPREAD], ids=["one", "spread"])
def test_a_run_starts_again_where_another_ended(first: Path, plan: Any, tmp_path: Path) -> None:
    starts: dict[str, str | None] = {"actor": "in/actor", "reference": "in/actor", "critic": "in/critic"}
    notes: list[str] = []
    steps: list[StepMetrics] = []
    path, out = again(first, tmp_path, starts, plan), tmp_path / "out"
    execute(path, Settings(save=out), lambda metrics, _: steps.append(metrics), note=notes.append)
    assert notes == []
    for model in ("actor", "critic"):
        before, after = weights(first / model), weights(out / model)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before), model
    assert steps[0].vertices["actor_train"]["kl_to_reference"] == pytest.approx(0.0, abs=1e-12)


def test_a_critic_starts_from_a_policy_with_a_new_head(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = again(first, tmp_path, {"actor": "in/actor", "critic": "in/actor"}, colocated())
    assert main([str(path), "--save", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().err
    assert (
        f"note: model `critic`: {first / 'actor'} has no scalar head (`score.weight`): it starts from" in text
    )
    assert "note: without a checkpoint, from random weights: `reference`" in text
    policy, critic = weights(first / "actor"), weights(tmp_path / "out" / "critic")
    score = critic.pop("score.weight")
    assert 0 < float(score.abs().max()) < 0.01
    assert all(torch.equal(policy[name], values) for name, values in critic.items())


def test_a_checkpoint_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_plan(tmp_path, executable(made({"actor": "nowhere"}, 0.0), colocated()))
    assert main([str(path)]) == 3
    text = capsys.readouterr().err
    assert f"model `actor`: its checkpoint {tmp_path / 'nowhere'} is no directory" in text
    assert "exit code 3 (refused before the start)" in text
