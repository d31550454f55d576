"""Prompts from a JSONL file, in an order that is a function of seed and position alone.

Position k = step * B + (prompt index within the step) counts through shuffled passes over the data: pass
k // N takes the N prompts in the order of counter-based random keys.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rpeg_rt.data.errors import DataError
from rpeg_rt.data.tokenizers import Tokenizer
from rpeg_rt.sampling import derive_seed, uniforms

LongPrompts = Literal["error", "truncate", "skip"]


@dataclass(frozen=True)
class Prompt:
    """One usable line of the file: `record` is the whole JSON object, `line` its number from 1."""

    text: str
    tokens: tuple[int, ...]
    record: dict[str, Any]
    line: int


class PromptSet:
    """The prompts of one file and the order in which steps take them."""

    def __init__(self, path: Path, prompts: list[Prompt], skipped: int, seed: int) -> None:
        self.path = path
        self.prompts = prompts
        self.skipped = skipped
        self._seed = derive_seed(seed, "prompts")
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, step: int, count: int) -> list[Prompt]:
        """The `count` prompts of step `step` (from 0), in order of their index within the step."""
        n = len(self.prompts)
        positions = range(step * count, (step + 1) * count)
        return [self.prompts[self._order(k // n)[k % n]] for k in positions]

    def _shuffled(self, epoch: int) -> npt.NDArray[np.intp]:
        return np.argsort(uniforms(self._seed, epoch, np.arange(len(self.prompts)), 0, 0), kind="stable")


def load_prompts(
    path: Path,
    tokenizer: Tokenizer,
    *,
    prompt_length: int,
    field: str = "prompt",
    long_prompts: LongPrompts = "error",
    seed: int = 0,
) -> PromptSet:
    """Read a JSONL file: one object per line whose `field` is the prompt; blank lines are passed over.

    A prompt of more than `prompt_length` tokens is an error, keeps its last `prompt_length` tokens
    ("truncate"), or is left out ("skip"). Raises DataError with file and line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise DataError(f"cannot read prompts {path}: {exc.strerror}") from exc
    prompts: list[Prompt] = []
    skipped = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        record = _object(line, where)
        text = _text(record, field, where)
        tokens = tokenizer.encode(text)
        if not tokens:
            raise DataError(f"{where}: the prompt is empty; a model needs at least one token to start from")
        if len(tokens) > prompt_length:
            if long_prompts == "skip":
                skipped += 1
                continue
            if long_prompts == "error":
                raise DataError(
                    f"{where}: the prompt has {len(tokens)} tokens, more than prompt length {prompt_length}; "
                    "raise the prompt length, or set long_prompts to `truncate` or `skip`"
                )
            tokens = tokens[-prompt_length:]
        prompts.append(Prompt(text, tuple(tokens), record, number))
    if not prompts:
        reason = f"all {skipped} prompts are longer than {prompt_length} tokens" if skipped else "no prompts"
        raise DataError(f"{path}: {reason}; one JSON object per line is needed")
    return PromptSet(path, prompts, skipped, seed)


def token_matrix(prompts: list[Prompt], prompt_length: int) -> npt.NDArray[np.int32]:
    """[n, L_p] token ids, left-padded with -1."""
    matrix = np.full((len(prompts), prompt_length), -1, dtype=np.int32)
    for row, prompt in zip(matrix, prompts, strict=True):
        row[prompt_length - len(prompt.tokens) :] = prompt.tokens
    return matrix


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as exc:  # malformed JSON or UTF-8, or nested without end
        raise DataError(f"{where}: not a line of JSON: {exc}") from exc
    if not isinstance(record, dict):
        raise DataError(f"{where}: a JSON object is needed, not {type(record).__name__}")
    return record


def _text(record: dict[str, Any], field: str, where: str) -> str:
    if field not in record:
        raise DataError(f"{where}: no field `{field}`; the line has {', '.join(record) or 'no fields'}")
    text = record[field]
    if not isinstance(text, str):
        raise DataError(f"{where}: field `{field}` must be a string, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise DataError(f"{where}: field `{field}` has half of a surrogate pair, which is no text") from exc
    return text
