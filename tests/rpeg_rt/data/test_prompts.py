"""Prompt files: order, padding, and everything that can be wrong with them."""

import json

import numpy as np
import pytest

from rpeg_rt.data.errors import DataError
from rpeg_rt.data.prompts import load_prompts, token_matrix
from rpeg_rt.data.tokenizers import ByteTokenizer


@pytest.fixture
def load(tmp_path):
    """Writes lines to a file and loads it."""

    def run(*lines, prompt_length=8, **options):
        path = tmp_path / "prompts.jsonl"
        path.write_bytes(b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines))
        return load_prompts(path, ByteTokenizer(), prompt_length=prompt_length, **options)

    return run


def numbered(n):
    return [{"prompt": f"p{i}", "answer": i} for i in range(n)]


def test_records_and_lines(load):
    prompts = load({"prompt": "ab", "answer": "x"}, b"", {"prompt": "é", "tags": [1]}, b"  ")
    assert [(p.text, p.tokens, p.line) for p in prompts.prompts] == [
        ("ab", (97, 98), 1),
        ("é", (195, 169), 3),
    ]
    assert prompts.prompts[0].record == {"prompt": "ab", "answer": "x"}


def test_matrix_is_left_padded(load):
    prompts = load({"prompt": "ab"}, {"prompt": "cde"}).prompts
    matrix = token_matrix(prompts, 4)
    assert matrix.dtype == np.int32
    assert matrix.tolist() == [[-1, -1, 97, 98], [-1, 99, 100, 101]]
    assert token_matrix([], 4).shape == (0, 4)


def test_every_pass_takes_every_prompt_once_in_another_order(load):
    prompts = load(*numbered(10), seed=3)
    taken = [p.text for step in range(5) for p in prompts.take(step, 4)]
    assert sorted(taken[:10]) == sorted(taken[10:]) == sorted(p.text for p in prompts.prompts)
    assert taken[:10] != taken[10:]
    assert taken[4:8] == [p.text for p in prompts.take(1, 4)]


def test_order_depends_on_the_seed_only(load):
    first = [p.text for p in load(*numbered(20), seed=1).take(0, 20)]
    assert first == [p.text for p in load(*numbered(20), seed=1).take(0, 20)]
    assert first != [p.text for p in load(*numbered(20), seed=2).take(0, 20)]


def test_a_step_may_need_more_prompts_than_there_are(load):
    assert sorted(p.text for p in load(*numbered(2)).take(7, 5)) in (
        ["p0", "p0", "p0", "p1", "p1"],
        ["p0", "p0", "p1", "p1", "p1"],
    )


def test_long_prompts(load):
    lines = [{"prompt": "abcdef"}, {"prompt": "ab"}]
    with pytest.raises(DataError, match=r"prompts.jsonl:1: the prompt has 6 tokens, more than .* 4"):
        load(*lines, prompt_length=4)
    assert [p.tokens for p in load(*lines, prompt_length=4, long_prompts="truncate").prompts] == [
        tuple(b"cdef"),
        tuple(b"ab"),
    ]
    skipping = load(*lines, prompt_length=4, long_prompts="skip")
    assert [p.text for p in skipping.prompts] == ["ab"]
    assert skipping.skipped == 1
    with pytest.raises(DataError, match="all 2 lines are too long"):
        load(*lines, prompt_length=1, long_prompts="skip")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "not a line of JSON"),
        (b'{"prompt": "\xff"}', "not a line of JSON"),
        (b"[1]", "JSON object is needed, not list"),
        (b'{"question": "a"}', "no field `prompt`; the line has question"),
        (b"{}", "the line has no fields"),
        (b'{"prompt": "\\ud800"}', "half of a surrogate pair"),
        (b"[" * 100_000, "not a line of JSON"),
        (b'{"prompt": 3}', "must be a string, not int"),
        (b'{"prompt": ""}', "the prompt is empty"),
        (b'{"prompt": null}', "must be a string, not NoneType"),
        (b"null", "JSON object is needed, not NoneType"),
        (b'{"prompt": []}', "is a conversation: the conversation has no messages"),
        (b'{"prompt": ["a"]}', "is a conversation: message 1 must be an object, not str"),
        (b'{"prompt": [{"content": "a"}]}', "message 1 has no `role`"),
        (
            b'{"prompt": [{"role": "user", "content": [1]}]}',
            "`content` of message 1 must be a string, not list",
        ),
        (b'{"prompt": [{"role": "user", "content": "a"}]}', "`bytes` has no chat template"),
    ],
)
def test_bad_lines_are_named(load, line, what):
    with pytest.raises(DataError, match=rf"prompts.jsonl:2: .*({what})"):
        load({"prompt": "fine"}, line)


class Chatting(ByteTokenizer):
    """Bytes with a template."""

    def encode_chat(self, messages):
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages) + ">"
        return text, self.encode(text)


def test_conversations(tmp_path):
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "s", "content": "bc"}, {"role": "u", "content": "d"}]
    path.write_text(json.dumps({"prompt": messages}) + "\n" + json.dumps({"prompt": "text"}))

    def load(length, **options):
        return load_prompts(path, Chatting(), prompt_length=length, **options)

    first, second = load(16).prompts
    assert (first.text, first.tokens) == ("<s>bc<u>d>", tuple(b"<s>bc<u>d>"))
    assert first.record == {"prompt": messages}
    assert second.text == "text"
    assert load(5, long_prompts="truncate").prompts[0].tokens == tuple(b"<u>d>")
    with pytest.raises(
        DataError, match=r"prompts.jsonl:1: the prompt has 10 tokens, more than prompt length 5"
    ):
        load(5)
    path.write_text(json.dumps({"prompt": [{"role": "u", "content": "\ud800"}]}))
    with pytest.raises(DataError, match=r"prompts.jsonl:1: .*half of a surrogate pair"):
        load(16)


def test_other_field(load):
    assert load({"question": "a"}, field="question").prompts[0].text == "a"


def test_no_prompts(load, tmp_path):
    with pytest.raises(DataError, match="no prompts"):
        load(b"", b"\n")
    with pytest.raises(DataError, match=r"cannot read prompts .*missing.jsonl: No such file"):
        load_prompts(tmp_path / "missing.jsonl", ByteTokenizer(), prompt_length=4)
