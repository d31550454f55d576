"""The byte tokenizer and tokenizer.json files."""

import json

import pytest
import tokenizers

from rpeg_rt.data.chat import ChatError
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


TEMPLATE = """{{- bos_token }}
{% for message in messages %}
    {%- if message.role not in ("user", "assistant", "system") %}{{ raise_exception("no such role") }}{% endif %}
    {%- if message.role == "assistant" %}{% generation %}{{ message.content }}{% endgeneration %}{% continue %}{% endif %}
[{{ message.role }}] {{ message.content | tojson }} {{ message | tojson(indent=1) }}
{% endfor %}
{%- if add_generation_prompt %}
[assistant] {{ strftime_now("%Y") }}
{% endif %}"""  # noqa: E501
CHAT = [
    {"role": "system", "content": "two <b> \u00e9"},
    {"role": "user", "content": "one plus two"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "plus\n"},
]
PLACES = {
    "chat_template.jinja": lambda: TEMPLATE,
    "chat_template.json": lambda: json.dumps({"chat_template": TEMPLATE}),
}
DECLARED = {
    "a string": TEMPLATE,
    "named": [{"name": "rag", "template": ""}, {"name": "default", "template": TEMPLATE}],
}


@pytest.mark.parametrize("place", [*PLACES, *DECLARED])
def test_conversations_are_written_as_transformers_does(saved, tmp_path, place):
    transformers = pytest.importorskip("transformers")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
    }
    if place in PLACES:
        (tmp_path / place).write_text(PLACES[place]())
    else:
        config["chat_template"] = DECLARED[place]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = saved("<s>", "</s>", post="<s> $A </s>")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    theirs.chat_template = TEMPLATE
    text, ids = ours.encode_chat(CHAT)
    assert text == theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert ids == theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ids[0] == ours.encode("one")[0]
    with pytest.raises(ChatError, match="refuses it: no such role"):
        ours.encode_chat([{"role": "tool", "content": ""}])


def test_conversations_without_template(saved, tmp_path):
    with pytest.raises(ChatError, match=r"`bytes` has no chat template"):
        ByteTokenizer().encode_chat(CHAT)
    with pytest.raises(ChatError, match=r"tokenizer.json has no chat template; put chat_template.jinja or"):
        saved("</s>").encode_chat(CHAT)
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(DataError, match=r"the chat template of .*tokenizer.json cannot be read: "):
        saved("</s>")


def test_a_template_is_kept_in_its_sandbox(saved, tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ChatError, match="refuses it: "):
        saved("</s>").encode_chat(CHAT)


TEXTS = ["7 \u00d7 8 = 56\n", "one plus  two", "\x00\x7f\xa0\xad\u0100", "\U0001f600 end"]


def test_transformers_reads_what_a_checkpoint_is_given(saved, tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    word = saved("<s>", "</s>", post="<s> $A </s>")
    (tmp_path / "tokenizer.json").write_text("replaced after the run began")
    for name, ours in {"bytes": ByteTokenizer(), "words": word}.items():
        place = tmp_path / name
        place.mkdir()
        for file, content in ours.files.items():
            (place / file).write_bytes(content)
        theirs = transformers.AutoTokenizer.from_pretrained(place)
        assert theirs.eos_token_id == ours.eos
        assert len(theirs) == ours.vocabulary
        assert transformers.GenerationConfig.from_pretrained(place).eos_token_id == ours.eos
        for text in TEXTS:
            ids = ours.encode_response(text)
            assert theirs.encode(text, add_special_tokens=False) == ids[:-1]
            assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)
    assert theirs.chat_template == TEMPLATE
