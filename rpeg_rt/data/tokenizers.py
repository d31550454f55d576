"""Tokenizers: the built-in byte-level one, and Hugging Face `tokenizer.json` files.

The end-of-sequence id is part of the tokenizer, because generation stops at it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rpeg_rt.data.chat import (
    JINJA,
    JSON,
    ChatError,
    Message,
    compile_template,
    find_template,
)
from rpeg_rt.data.errors import DataError

BYTES = "bytes"
FILE, CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
BESIDE = (
    *(CONFIG, GENERATION, JINJA, JSON, "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model"),
)
"""What a tokenizer.json may have beside it that belongs to it."""
COMMON_EOS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|end|>")


class Tokenizer(Protocol):
    """Text to token ids and back. Ids are below `vocabulary`; `eos` ends a response."""

    eos: int
    vocabulary: int

    @property
    def files(self) -> Mapping[str, bytes]:
        """What a checkpoint has beside its weights so that others find this tokenizer in it, by name."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, without an end-of-sequence token."""

    def encode_chat(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """The text of a conversation up to where its answer begins, and its token ids. Raises ChatError."""

    def encode_response(self, text: str) -> list[int]:
        """Token ids of a response, without special tokens in front and with the end-of-sequence token."""

    def decode(self, tokens: list[int]) -> str:
        """Text of a response, without special tokens; what is no valid text becomes U+FFFD."""


class ByteTokenizer:
    """One token per UTF-8 byte, and 256 for the end of the sequence."""

    eos = 256
    vocabulary = 257

    @property
    def files(self) -> Mapping[str, bytes]:
        """A `tokenizer.json` that does the same, but for text that spells the end of the sequence."""
        # Byte-level models spell bytes that do not print as the characters from 256 onward.
        prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        other = [b for b in range(256) if b not in prints]
        spelt = {b: chr(b) for b in prints} | {b: chr(256 + i) for i, b in enumerate(other)}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        end = {"id": self.eos, "content": _END, "special": True, "normalized": False}
        made = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [end | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {"type": "BPE", "vocab": {spelt[b]: b for b in range(256)}, "merges": []},
        }
        return {
            FILE: _json(made),
            CONFIG: _configuration(_END),
            GENERATION: _json({"eos_token_id": self.eos}),
        }

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """There is no template. Raises ChatError."""
        raise ChatError("tokenizer `bytes` has no chat template; give a string, or another `tokenizer`")

    def encode_response(self, text: str) -> list[int]:
        """The bytes of `text` and the end of the sequence."""
        return [*text.encode(), self.eos]

    def decode(self, tokens: list[int]) -> str:
        """The text of the bytes; the end of the sequence and ids beyond it (padding) are dropped."""
        return bytes(t for t in tokens if t < self.eos).decode(errors="replace")


class HuggingFaceTokenizer:
    """A `tokenizer.json`, read by the `tokenizers` package.

    The end-of-sequence token is the `eos_token` of a `tokenizer_config.json` beside it, or else the first of
    the usual spellings that the vocabulary has. Conversations are written by the chat template beside it.
    """

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ModuleNotFoundError as exc:
            raise DataError(
                f"reading {path} needs the package `tokenizers`: install it, or use tokenizer `bytes`"
            ) from exc
        if not path.is_file():
            raise DataError(f"tokenizer {path} does not exist; give a tokenizer.json or `bytes`")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as exc:  # the package raises bare Exception
            raise DataError(f"{path} is no Hugging Face tokenizer.json: {exc}") from exc
        self._path = path
        self.files = _read(path)
        config = _object(path.with_name(CONFIG), self.files[CONFIG]) if CONFIG in self.files else {}
        special = _special(config)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.vocabulary: int = max(self._tokenizer.get_vocab().values(), default=-1) + 1
        self.eos: int = self._find_eos(special.get("eos_token"))
        if CONFIG not in self.files:
            self.files[CONFIG] = _configuration(self._tokenizer.id_to_token(self.eos))
        self.files.setdefault(GENERATION, _json({"eos_token_id": self.eos}))
        template = find_template(self.files, config)
        self._write = None if template is None else compile_template(template, special, str(path))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` with the tokenizer's own leading special tokens."""
        ids: list[int] = self._tokenizer.encode(text).ids
        while ids and ids[-1] == self.eos:
            ids = ids[:-1]
        return ids

    def encode_chat(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """By the chat template, which writes special tokens itself. Raises ChatError."""
        if self._write is None:
            raise ChatError(
                f"tokenizer {self._path} has no chat template; put {JINJA} or a {CONFIG} with "
                "`chat_template` beside it, or give a string"
            )
        text = self._write(messages)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return text, ids

    def encode_response(self, text: str) -> list[int]:
        """Token ids of `text` alone, and the end of the sequence."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [*ids, self.eos]

    def decode(self, tokens: list[int]) -> str:
        """Text of `tokens`; special tokens and ids beyond the vocabulary (padding) are dropped."""
        text: str = self._tokenizer.decode([t for t in tokens if t < self.vocabulary and t != self.eos])
        return text

    def _find_eos(self, declared: str | None) -> int:
        for token in (declared,) if declared is not None else COMMON_EOS:
            identifier: int | None = self._tokenizer.token_to_id(token)
            if identifier is not None:
                return identifier
        raise DataError(
            f"{self._path} has no end-of-sequence token "
            + (f"`{declared}`" if declared is not None else f"(looked for {', '.join(COMMON_EOS)})")
            + f"; name it as `eos_token` in a {CONFIG} beside it"
        )


_END = "<|endoftext|>"


def _read(path: Path) -> dict[str, bytes]:
    """A tokenizer's file and those beside it, as they are now: a run leaves what it began with."""
    places = {FILE: path} | {name: path.with_name(name) for name in BESIDE}
    try:
        return {name: place.read_bytes() for name, place in places.items() if place.is_file()}
    except OSError as exc:
        raise DataError(f"cannot read {exc.filename}: {exc.strerror}") from exc


def _object(path: Path, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise DataError(f"{path} is no JSON: {exc}") from exc
    return found if isinstance(found, dict) else {}


def _special(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a configuration declares, by their role."""
    found = {name: token for name, token in config.items() if name.endswith("_token")}
    found = {name: t.get("content") if isinstance(t, dict) else t for name, t in found.items()}
    return {name: token for name, token in found.items() if isinstance(token, str)}


def _configuration(eos: str | None) -> bytes:
    """The tokenizer_config.json of a tokenizer of which nothing but its file is known."""
    return _json({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos})


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def load_tokenizer(name: str, directory: Path) -> Tokenizer:
    """The tokenizer `bytes`, or the file `name` relative to `directory`. Raises DataError."""
    return ByteTokenizer() if name == BYTES else HuggingFaceTokenizer(directory / name)
