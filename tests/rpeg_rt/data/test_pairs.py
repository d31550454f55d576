"""Preference pairs from JSONL and Parquet files, and everything that can be wrong with them."""

import json

import numpy as np
import pytest

from rpeg_rt.data.errors import DataError
from rpeg_rt.data.pairs import load_pairs, pair_matrix
from rpeg_rt.data.prompts import load_prompts
from rpeg_rt.data.records import read_records
from rpeg_rt.data.tokenizers import ByteTokenizer

EOS = ByteTokenizer.eos
PAIR = {"prompt": "ab", "chosen": "yes", "rejected": "n"}


@pytest.fixture
def load(tmp_path):
    """Writes pairs to a file and loads it."""

    def run(*lines, **options):
        path = tmp_path / "pairs.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        lengths = {"prompt_length": 4, "response_length": 5}
        return load_pairs(path, ByteTokenizer(), **(lengths | options))

    return run


def test_matrix(load):
    pairs = load(PAIR, {"prompt": "c", "chosen": "", "rejected": "abcd"}).prompts
    assert pairs[0].responses == ((*b"yes", EOS), (*b"n", EOS))
    matrix = pair_matrix(pairs, 3, 5)
    assert matrix.dtype == np.int32
    assert matrix.tolist() == [
        [-1, 97, 98, *b"yes", EOS, -1],
        [-1, 97, 98, *b"n", EOS, -1, -1, -1],
        [-1, -1, 99, EOS, -1, -1, -1, -1],
        [-1, -1, 99, *b"abcd", EOS],
    ]


def test_long_responses(load):
    long = PAIR | {"rejected": "12345"}
    with pytest.raises(
        DataError, match=r"pairs.jsonl:2: response `rejected` has 6 tokens with its end, more"
    ):
        load(PAIR, long)
    cut = load(PAIR, long, long_responses="truncate").prompts
    assert cut[1].responses[1] == tuple(b"12345")
    skipping = load(PAIR, long, long_responses="skip")
    assert (len(skipping), skipping.skipped) == (1, 1)
    with pytest.raises(DataError, match="all 1 lines are too long"):
        load(long, long_responses="skip")


def test_long_prompts(load):
    long = PAIR | {"prompt": "abcdef"}
    with pytest.raises(DataError, match=r"pairs.jsonl:1: the prompt has 6 tokens"):
        load(long)
    assert load(long, long_prompts="truncate").prompts[0].tokens == tuple(b"cdef")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"prompt": "a", "chosen": "b"}, "pairs.jsonl:1: no field `rejected`; the line has prompt, chosen"),
        (PAIR | {"chosen": [{"role": "user"}]}, "field `chosen` must be a string, not list"),
        (PAIR | {"prompt": ""}, "the prompt is empty"),
    ],
)
def test_what_is_no_pair(load, record, words):
    with pytest.raises(DataError, match=words):
        load(record)


def test_parquet(tmp_path, load):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    records = [PAIR, PAIR | {"prompt": "cd"}]
    path = tmp_path / "pairs.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(records), path)
    tokenizer = ByteTokenizer()
    pairs = load_pairs(path, tokenizer, prompt_length=4, response_length=5, seed=3)
    lines = load(*records, seed=3)
    assert pairs.prompts == lines.prompts
    assert [p.text for p in pairs.take(0, 2)] == [p.text for p in lines.take(0, 2)]
    with pytest.raises(DataError, match=r"pairs\.parquet, row 1: no field `question`"):
        load_prompts(path, tokenizer, prompt_length=4, field="question")


def test_what_is_no_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    path.write_text("no table")
    with pytest.raises(DataError, match=r"x\.parquet is no Parquet file that can be read"):
        list(read_records(path))
    with pytest.raises(DataError, match=r"cannot read prompts .*absent\.parquet: No such file"):
        list(read_records(tmp_path / "absent.parquet"))


def test_parquet_of_text_that_is_none(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    text = pyarrow.array([b"fine", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"prompt": text}), path)
    with pytest.raises(DataError, match=r"x\.parquet: a string after row 0 is no UTF-8: "):
        list(read_records(path))
    parquet.write_table(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), path)
    with pytest.raises(DataError, match=r"x\.parquet: no prompts; "):
        load_prompts(path, ByteTokenizer(), prompt_length=4)


def test_parquet_has_conversations(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    messages = [{"role": "user", "content": "a"}]
    parquet.write_table(pyarrow.Table.from_pylist([{"prompt": messages}]), path)
    assert next(read_records(path)).record == {"prompt": messages}
    with pytest.raises(
        DataError, match=r"row 1: field `prompt` is a conversation: tokenizer `bytes` has no chat"
    ):
        load_prompts(path, ByteTokenizer(), prompt_length=4)
