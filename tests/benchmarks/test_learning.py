"""The learning study: its problems compile for every algorithm, it goes on where it was stopped, and its
figures say what they should."""

import json
from collections import Counter

import pytest

from benchmarks.learning import study
from benchmarks.learning.study import Case, conclusion
from benchmarks.learning.task import ALGORITHMS, blind, problem, write_data
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
    assert (len(train), len(held_out)) == (700, 300)
    assert len({r["prompt"] for r in train + held_out}) == 1000
    for record in train:
        assert int(record["answer"]) == max(int(c) for c in record["prompt"][:3])
        assert record["chosen"] == record["answer"] != record["rejected"]
    tokenizer = load_tokenizer("tokenizer.json", tmp_path)
    pairs = load_pairs(tmp_path / "train.jsonl", tokenizer, prompt_length=4, response_length=2)
    assert tokenizer.decode(list(pairs.prompts[0].responses[0])) == train[0]["answer"]


def test_what_is_had_without_reading_the_prompts(tmp_path):
    def pairs(file, *pairs):
        records = [{"answer": c, "chosen": c, "rejected": w} for c, w in pairs]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(map(json.dumps, records)))

    pairs("train", "76", "76", "67", "98")
    pairs("heldout", "76", "67", "12", "76", "98")
    assert blind("dpo", tmp_path) == (1 + 0 + 0.5 + 1 + 1) / 5
    assert blind("grpo", tmp_path) == 2 / 5  # always 7


def rows(fresh, stale, name="grpo"):
    return [
        {"algorithm": name, "staleness": s, "seed": i, "step": step, "reward": x, "correct": x}
        for s, ends in ((0, fresh), (1, stale))
        for i, end in enumerate(ends)
        for step, x in ((0, 0.1), (10, end), (20, end), (30, end))
    ]


@pytest.mark.parametrize(
    ("fresh", "stale", "verdict"),
    [
        ([0.500, 0.500], [0.503, 0.503], ": within 1%"),
        ([0.5, 0.7], [0.5, 0.6], ": within the standard error of the difference"),
        ([0.50, 0.51], [0.40, 0.41], ": below by more than the standard error of the difference"),
        ([0.96, 0.98], [0.97, 0.97], "(saturated)"),
    ],
)
def test_conclusion(fresh, stale, verdict):
    text = conclusion(rows(fresh, stale), "grpo", 0.27)
    assert verdict in text
    assert ("saturated" in text) == ("saturated" in verdict)
    assert "held out 0.100 before" in text
    assert "without reading the prompts 0.270" in text


def test_an_end_that_is_an_exception_is_told_from_the_last_evaluations():
    runs = rows([0.80, 0.82], [0.80, 0.82])
    for row in runs:
        if (row["staleness"], row["step"]) == (1, 30):
            row["reward"] -= 0.3
    text = conclusion(runs, "grpo", 0.27)
    assert ": below by more than the standard error of the difference (-0.300 +- 0.014)" in text
    last = text.partition("in the mean of the last 3 evaluations ")[2]
    assert last.startswith("below by more than the standard error of the difference (-0.100 +-")


def test_a_study_that_is_stopped_goes_on(tmp_path, monkeypatch, capsys):
    """No finished run is lost or repeated, and those of other settings are run anew."""
    ran: Counter[Case] = Counter()

    def examined(case, plan, steps):
        ran[case] += 1
        if case == stops_at:
            raise RuntimeError("stopped")
        return [case._asdict() | {"step": s, "reward": 0.1 + s / 100, "correct": 0.0} for s in (0, steps)]

    def run(*names, small=False):
        study.study(names, [0, 1], small=small, jobs=1, output=tmp_path)

    monkeypatch.setattr(study, "examined", examined)
    monkeypatch.setattr(study, "compiled", lambda *_: None)
    stops_at = Case("rloo", 0, 1)
    with pytest.raises(RuntimeError, match="stopped"):
        run("grpo", "rloo")
    stops_at = None
    run("grpo", "rloo")
    cases = {Case(n, s, seed) for n in ("grpo", "rloo") for s in (0, 1) for seed in (0, 1)}
    assert ran == Counter(cases) + Counter([Case("rloo", 0, 1)])  # the one that failed
    assert "grpo: held out 0.100 before" in capsys.readouterr().out
    run("dpo", "rloo")
    assert ran[Case("rloo", 0, 0)] == 1
    run("rloo", small=True)
    assert ran[Case("rloo", 0, 0)] == 2
    text = (tmp_path / "algorithms.csv").read_text().splitlines()
    assert text[0] == ",".join(study.COLUMNS)
    assert len(text) == 1 + 3 * 2 * 2 * 2  # algorithms, staleness, seeds, evaluations
    assert (tmp_path / "algorithms.png").read_bytes().startswith(b"\x89PNG")
