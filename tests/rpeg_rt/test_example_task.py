"""The task of the tiny example: its data are right, held out is held out, and no constant answer gets far."""

import json
import runpy
import shutil
from pathlib import Path

import pytest

from rpeg_rt.verifiers import load_verifier

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def records(part):
    path = EXAMPLES / "data" / f"arithmetic_{part}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def verify():
    return load_verifier("arithmetic_verifier:verify", EXAMPLES)


@pytest.mark.parametrize("part", ["train", "heldout"])
def test_answers_are_right(part):
    for r in records(part):
        number, _, rest = r["prompt"].partition("%")
        assert rest == "5="
        assert r["answer"] == str(int(number) % 5)


def test_held_out_prompts_are_not_trained_on():
    train, held_out = ({r["prompt"] for r in records(part)} for part in ("train", "heldout"))
    assert len(train) == 1000
    assert len(held_out) == 400
    assert not train & held_out


def test_the_script_writes_the_files(tmp_path):
    script = shutil.copy(EXAMPLES / "data" / "make_arithmetic.py", tmp_path)
    runpy.run_path(script, run_name="__main__")
    for part in ("train", "heldout"):
        name = f"arithmetic_{part}.jsonl"
        assert (tmp_path / name).read_bytes() == (EXAMPLES / "data" / name).read_bytes()


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [("3", "3", 1), ("3x", "3", 0.5), ("4", "3", 0), ("", "3", 0), ("x3", "3", 0), ("12", "123", 0.5)],
)
def test_reward(verify, response, answer, reward):
    assert verify("", response, {"answer": answer}) == reward


@pytest.mark.parametrize("part", ["train", "heldout"])
def test_a_constant_answer_earns_at_most_a_quarter(verify, part):
    for constant in ("0", "1", "2", "3", "4", "", "01234", "0\n"):
        mean = sum(verify(r["prompt"], constant, r) for r in records(part)) / len(records(part))
        assert mean <= 0.25
