"""The learning study: its problems compile for every algorithm, and its figures say what they should."""

import json

import pytest

from benchmarks.learning.study import ALGORITHMS, conclusion, problem, write_data
from benchmarks.learning.sums import verify
from rpeg_rt.data.pairs import load_pairs
from rpeg_rt.data.tokenizers import load_tokenizer
from rpegc.cli.group import run as rpegc


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_problem_is_one(name, tmp_path, capsys):
    path = tmp_path / "study.rpeg"
    path.write_text(problem(name, 1, 10))
    assert rpegc(["check", str(path)]) == 0, capsys.readouterr().err


def test_data(tmp_path):
    write_data(tmp_path)
    train, held_out = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "heldout")
    )
    assert (len(train), len(held_out)) == (2100, 400)
    assert not {r["prompt"] for r in train} & {r["prompt"] for r in held_out}
    for record in train:
        a, b = record["prompt"].rstrip("=").split("+")
        assert int(record["answer"]) == int(a) + int(b)
        assert record["chosen"] == record["answer"] != record["rejected"]
    tokenizer = load_tokenizer("tokenizer.json", tmp_path)
    pairs = load_pairs(tmp_path / "train.jsonl", tokenizer, prompt_length=6, response_length=3)
    assert tokenizer.decode(list(pairs.prompts[0].responses[0])) == train[0]["answer"]


@pytest.mark.parametrize(
    ("response", "reward"), [("85", 1), ("86", 2 / 3), ("8", 1 / 3), ("852", 2 / 3), ("", 0), ("05", 2 / 3)]
)
def test_reward(response, reward):
    assert verify("47+38=", response, {"answer": "85"}) == pytest.approx(reward)


def rows(fresh, stale, name="grpo"):
    return [
        {"algorithm": name, "staleness": s, "seed": i, "step": step, "reward": x, "correct": x}
        for s, ends in ((0, fresh), (1, stale))
        for i, end in enumerate(ends)
        for step, x in ((0, 0.1), (10, end))
    ]


@pytest.mark.parametrize(
    ("fresh", "stale", "verdict"),
    [
        ([0.500, 0.500], [0.503, 0.503], ": within 1%"),
        ([0.5, 0.7], [0.5, 0.6], ": within the standard error of the difference"),
        ([0.50, 0.51], [0.40, 0.41], ": beyond the standard error of the difference"),
        ([0.96, 0.98], [0.97, 0.97], "(saturated)"),
    ],
)
def test_conclusion(fresh, stale, verdict):
    text = conclusion(rows(fresh, stale), "grpo")
    assert verdict in text
    assert ("saturated" in text) == ("saturated" in verdict)
    assert "held out 0.100 before" in text
