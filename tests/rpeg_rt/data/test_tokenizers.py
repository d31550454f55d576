"""The byte tokenizer and tokenizer.json files."""

import json

import pytest
import tokenizers

from rpeg_rt.data.errors import DataError
from rpeg_rt.data.tokenizers import ByteTokenizer, load_tokenizer


def test_bytes_round_trip():
    tokenizer = load_tokenizer("bytes", None)
    text = "7 × 8 = 56\n"
    ids = tokenizer.encode(text)
    assert max(ids) < tokenizer.eos < tokenizer.vocabulary
    assert tokenizer.decode([*ids, tokenizer.eos]) == text


def test_bytes_that_are_no_text():
    assert ByteTokenizer().decode([0xFF, 65, 256, 259]) == "\ufffdA"


@pytest.fixture
def saved(tmp_path):
    """Writes a word-level tokenizer.json with the given extra tokens."""

    def write(*special, post=None):
        words = ["[UNK]", "one", "two", "plus", *special]
        tokenizer = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
        )
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer.add_special_tokens(list(special))
        if post:
            ids = [(s, words.index(s)) for s in special]
            tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
                single=post, special_tokens=ids
            )
        tokenizer.enable_truncation(1)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        return load_tokenizer("tokenizer.json", tmp_path)

    return write


def test_tokenizer_json(saved):
    tokenizer = saved("</s>")
    assert tokenizer.encode("one plus two") == [1, 3, 2]
    assert tokenizer.eos == 4
    assert tokenizer.vocabulary == 5
    assert tokenizer.decode([1, 3, 4, 7]) == "one plus"


def test_prompts_keep_leading_special_tokens_but_never_end(saved):
    tokenizer = saved("<s>", "</s>", post="<s> $A </s>")
    assert tokenizer.encode("one") == [4, 1]


def test_declared_eos(saved, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<stop>"}}))
    assert saved("</s>", "<stop>").eos == 5
    with pytest.raises(DataError, match="no end-of-sequence token `<stop>`"):
        saved("</s>")


def test_no_eos(saved):
    with pytest.raises(DataError, match="no end-of-sequence token"):
        saved()


def test_unreadable(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load_tokenizer("tokenizer.json", tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"no Hugging Face tokenizer.json"):
        load_tokenizer("tokenizer.json", tmp_path)


def test_responses_end_and_begin_with_nothing_special(saved):
    assert ByteTokenizer().encode_response("ab") == [97, 98, 256]
    tokenizer = saved("<s>", "</s>", post="<s> $A </s>")
    assert tokenizer.encode("one two") == [4, 1, 2]
    assert tokenizer.encode_response("one two") == [1, 2, 5]
