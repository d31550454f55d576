"""`rpegc lengths`: which rows it understands, what it prints, and what it says about the others."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import Table, parquet

from passes.verify import verify
from rpegc.cli.group import run
from rpegc.frontend import load

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "data" / "rollout_lengths.jsonl"
PPO = ROOT / "examples" / "ppo_13b_gh200.rpeg"

Lengths = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lengths(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Lengths:
    """Runs the command on a file of this name and content; exit code, stdout and stderr."""

    def call(name: str, content: str | bytes | None, *options: str) -> tuple[int, str, str]:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        code = run(["lengths", str(path), *options])
        return (code, *capfd.readouterr())

    return call


@pytest.mark.parametrize("options", [[], ["--breakpoints", "6"], ["--limit", "4000"], ["--limit", "9000"]])
def test_what_it_prints_is_a_workload(lengths: Lengths, options: list[str]) -> None:
    code, out, err = lengths("a.jsonl", EXAMPLE.read_bytes(), *options)
    assert code == 0
    assert "500 lengths of field `response_length`" in err
    _, _, after = PPO.read_text().partition("length_quantiles")
    before, _, _ = PPO.read_text().partition("response_length = 384")
    text = before + out + after.partition("\n")[2]
    loaded = load(text.encode(), PPO.name, PPO.parent)
    assert verify(loaded.problem) == []
    assert f"length_quantiles = {[list(p) for p in loaded.problem.workload.length_quantiles]}" in out


def test_json_says_the_same(lengths: Lengths) -> None:
    _, out, _ = lengths("a.jsonl", EXAMPLE.read_bytes(), "--limit", "4000", "--json")
    found = json.loads(out)
    _, text, err = lengths("a.jsonl", EXAMPLE.read_bytes(), "--limit", "4000")
    assert f"response_length = {found['response_length']}\n" in text
    assert f"RMS error {found['error']:.1f} tokens" in err
    assert f"mean {found['mean']:.1f}" in err
    assert f"mean {found['fitted_mean']:.1f}" in err
    assert f"{found['over_limit']} lengths exceed the limit" in err
    assert found["response_length"] == 4000
    assert sum(b["count"] for b in found["histogram"]) == found["count"] == 500


def table(column: str, values: list[object]) -> bytes:
    from pyarrow import BufferOutputStream

    sink = BufferOutputStream()
    parquet.write_table(Table.from_pydict({"text": ["a"] * len(values), column: values}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "a.jsonl",
            '{"prompt": "x", "n": 3, "reward": NaN, "response_length": 5}\n\n{"response_length": 7.0}\n',
        ),
        ("a.jsonl", "5\n7\n"),
        ("a.jsonl", '{"text": "x", "tokens_out": 5}\n{"text": "y", "tokens_out": 7}'),
        ("a.csv", 'id,text,completion_tokens\n1,"two\nlines",5\n2,y,7\n'),
        ("A.CSV", "\ufefflength\r\n5\r\n7\r\n"),
        ("a.parquet", table("length", [5, 7])),
        ("a.parquet", table("anything", [5.0, 7.0])),
    ],
)
def test_rows_of_every_kind(lengths: Lengths, name: str, content: str | bytes) -> None:
    code, out, err = lengths(name, content, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["count"], found["mean"], found["response_length"]) == (2, 6, 7)


def test_a_field_is_chosen(lengths: Lengths) -> None:
    rows = '{"response_length": 5, "b": 9}\n{"response_length": 5, "b": 9}\n'
    assert "response_length = 9\n" in lengths("a.jsonl", rows, "--field", "b")[1]
    assert lengths("a.jsonl", rows)[1] == "response_length = 5\n"


@pytest.mark.parametrize(
    ("name", "content", "options", "code", "messages"),
    [
        ("a.jsonl", "5\n{\n", [], 1, ["E340", "line 2: not JSON"]),
        ("a.jsonl", '5\n"x"\n', [], 1, ['line 2: "x", not a length']),
        ("a.jsonl", '{"n": 5}\n\n{"n": -1}\n', [], 1, ["line 3: `n` is -1, not a length"]),
        ("a.jsonl", '{"n": 5}\n{"n": 2.5}\n', [], 1, ["line 2: `n` is 2.5"]),
        ("a.jsonl", '{"n": 5}\n{"n": true}\n', [], 1, ["line 2: `n` is True"]),
        ("a.jsonl", '{"n": 5}\n{"n": NaN}\n', [], 1, ["line 2: `n` is nan"]),
        ("a.jsonl", '{"n": 5}\n{"n": 1e300}\n', [], 1, ["line 2: `n` is 1e+300"]),
        ("a.jsonl", '{"n": 5}\n{"m": 5}\n', [], 1, ["line 2: no field `n`"]),
        ("a.jsonl", '{"n": 5}\n5\n', [], 1, ["line 2: no field `n`"]),
        ("a.jsonl", "5\n", ["--field", "n"], 1, ["E341", "no field `n`"]),
        ("a.jsonl", '{"a": 5, "b": 6, "c": "x"}\n', [], 1, ["E341", "fields: `a`, `b`, `c` (no number)"]),
        ("a.jsonl", '{"tokens": 5}\n', ["--field", "token"], 1, ["did you mean `tokens`?"]),
        ("a.jsonl", "", [], 1, ["holds no rows"]),
        ("a.jsonl", b"5\n\xff\n", [], 1, ["line 2: not UTF-8"]),
        ("a.csv", "411\n412\n", [], 1, ["line 1: `411` is no name of a column", "add a header line"]),
        ("a.csv", "a,b\n1,2\n3\n", ["--field", "a"], 1, ["line 3: not the 2 columns"]),
        ("a.csv", "length\n5\nx\n", [], 1, ['line 3: `length` is "x", not a length']),
        ("a.csv", 'length\n5\n"6', [], 1, ["E340", "line 3"]),
        ("a.parquet", b"no parquet", [], 1, ["E340", "not a Parquet file"]),
        ("a.txt", "5\n", [], 2, ["E936", ".jsonl, .csv or .parquet"]),
        ("a.jsonl", None, [], 2, ["E911", "no such file"]),
        ("a.jsonl", "5\n", ["--limit", "0"], 2, ["--limit"]),
        ("a.jsonl", "5\n", ["--breakpoints", "0"], 2, ["--breakpoints"]),
    ],
)
def test_faults_are_placed(
    lengths: Lengths,
    name: str,
    content: str | bytes | None,
    options: list[str],
    code: int,
    messages: list[str],
) -> None:
    got, out, err = lengths(name, content, *options)
    assert (got, out) == (code, "")
    assert "Traceback" not in err
    for message in messages:
        assert message in err


def test_a_null_in_parquet_is_placed(lengths: Lengths) -> None:
    code, _, err = lengths("a.parquet", table("length", [5, None]), "--field", "length")
    assert code == 1
    assert "row 2: `length` is None" in err


def test_parquet_without_its_extra_names_it(lengths: Lengths, monkeypatch: pytest.MonkeyPatch) -> None:
    content = table("length", [5])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = lengths("a.parquet", content)
    assert code == 2
    assert "error[E936]" in err
    assert "pip install 'rpeg[parquet]'" in err
