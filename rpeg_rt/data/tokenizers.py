"""Tokenizers: the built-in byte-level one, and Hugging Face `tokenizer.json` files.

The end-of-sequence id is part of the tokenizer, because generation stops at it.
"""

import json
from pathlib import Path
from typing import Any, Protocol

from rpeg_rt.data.errors import DataError

BYTES = "bytes"
COMMON_EOS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|end|>")


class Tokenizer(Protocol):
    """Text to token ids and back. Ids are below `vocabulary`; `eos` ends a response."""

    eos: int
    vocabulary: int

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, without an end-of-sequence token."""

    def encode_response(self, text: str) -> list[int]:
        """Token ids of a response, without special tokens in front and with the end-of-sequence token."""

    def decode(self, tokens: list[int]) -> str:
        """Text of a response, without special tokens; what is no valid text becomes U+FFFD."""


class ByteTokenizer:
    """One token per UTF-8 byte, and 256 for the end of the sequence."""

    eos = 256
    vocabulary = 257

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode())

    def encode_response(self, text: str) -> list[int]:
        """The bytes of `text` and the end of the sequence."""
        return [*text.encode(), self.eos]

    def decode(self, tokens: list[int]) -> str:
        """The text of the bytes; the end of the sequence and ids beyond it (padding) are dropped."""
        return bytes(t for t in tokens if t < self.eos).decode(errors="replace")


class HuggingFaceTokenizer:
    """A `tokenizer.json`, read by the `tokenizers` package.

    The end-of-sequence token is the `eos_token` of a `tokenizer_config.json` beside it, or else the first of
    the usual spellings that the vocabulary has.
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
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.vocabulary: int = max(self._tokenizer.get_vocab().values(), default=-1) + 1
        self.eos: int = self._find_eos(path)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` with the tokenizer's own leading special tokens."""
        ids: list[int] = self._tokenizer.encode(text).ids
        while ids and ids[-1] == self.eos:
            ids = ids[:-1]
        return ids

    def encode_response(self, text: str) -> list[int]:
        """Token ids of `text` alone, and the end of the sequence."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [*ids, self.eos]

    def decode(self, tokens: list[int]) -> str:
        """Text of `tokens`; special tokens and ids beyond the vocabulary (padding) are dropped."""
        text: str = self._tokenizer.decode([t for t in tokens if t < self.vocabulary and t != self.eos])
        return text

    def _find_eos(self, path: Path) -> int:
        declared = _declared_eos(path.with_name("tokenizer_config.json"))
        for token in (declared,) if declared is not None else COMMON_EOS:
            identifier: int | None = self._tokenizer.token_to_id(token)
            if identifier is not None:
                return identifier
        raise DataError(
            f"{path} has no end-of-sequence token "
            + (f"`{declared}`" if declared is not None else f"(looked for {', '.join(COMMON_EOS)})")
            + "; name it as `eos_token` in a tokenizer_config.json beside it"
        )


def _declared_eos(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise DataError(f"{path} is no JSON: {exc}") from exc
    token = config.get("eos_token") if isinstance(config, dict) else None
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def load_tokenizer(name: str, directory: Path) -> Tokenizer:
    """The tokenizer `bytes`, or the file `name` relative to `directory`. Raises DataError."""
    return ByteTokenizer() if name == BYTES else HuggingFaceTokenizer(directory / name)
