import json

import pytest

from ir_schema.diagnostics import DiagnosticError
from rpegc.cli.group import run
from rpegc.models import load_model
from rpegc.models.report import as_text, report


def test_json_adds_up(capsys):
    assert run(["model", "qwen3-30b-a3b", "--tp", "2", "--pp", "4", "--ep", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["total"], found["active"]) == (30532122624, 3353032704)
    assert found["padded_vocabulary"] == 152064
    assert [tuple(s["layers"]) for s in found["stages"]] == [(0, 11), (12, 23), (24, 35), (36, 47)]
    assert all(s["dense"] + s["expert"] == s["parameters"] for s in found["stages"])
    assert found["parameters_per_gpu"] == max(s["parameters"] for s in found["stages"])
    assert found["weight_bytes_per_gpu"] == 2 * found["parameters_per_gpu"]


def test_table_shows_total_and_stages():
    text = as_text(report("llama-3.1-8b", load_model("llama-3.1-8b", "lm"), 2, 4))
    assert "8,030,261,248" in text
    rows = [line.split() for line in text.splitlines()]
    assert [r[:2] for r in rows if r[0].isdigit()] == [
        ["0", "0-7"],
        ["1", "8-15"],
        ["2", "16-23"],
        ["3", "24-31"],
    ]


def test_every_indivisible_degree_is_reported():
    with pytest.raises(DiagnosticError) as caught:
        report("llama-3.1-8b", load_model("llama-3.1-8b", "lm"), 3, 5, 2)
    assert [d.code for d in caught.value.diagnostics] == ["E323"] * 3


def test_errors_and_names_on_the_command_line(capsys):
    assert run(["model", "llama-3.1-8b", "--tp", "3"]) == 1
    assert "E323" in capsys.readouterr().err
    assert run(["model"]) == 0
    assert "qwen3-8b" in capsys.readouterr().out.splitlines()
