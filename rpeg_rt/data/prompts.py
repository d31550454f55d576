"""Prompts from a file of records, in an order that depends on nothing but the seed.

Position k = step * B + (prompt index within the step) counts through shuffled passes over the data: pass
k // N takes the N prompts in the order of counter-based random keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rpeg_rt.data.chat import ChatError, check_messages
from rpeg_rt.data.errors import DataError
from rpeg_rt.data.records import Located, read_records
from rpeg_rt.data.tokenizers import Tokenizer
from rpeg_rt.sampling import derive_seed, uniforms

LongTexts = Literal["error", "truncate", "skip"]


@dataclass(frozen=True)
class Prompt:
    """One usable line of the file: `record` is the whole object, `line` its number from 1; `responses` are
    the tokens of the chosen and the rejected one where the file has pairs."""

    text: str
    tokens: tuple[int, ...]
    record: dict[str, Any]
    line: int
    responses: tuple[tuple[int, ...], ...] = ()


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
    long_prompts: LongTexts = "error",
    seed: int = 0,
) -> PromptSet:
    """Read a file of records whose `field` is the prompt: a string, or a conversation to be answered.

    A prompt of more than `prompt_length` tokens is an error, keeps its last `prompt_length` tokens
    ("truncate"), or is left out ("skip"). Raises DataError with file and line.
    """

    def prompt(at: Located) -> Prompt | None:
        text, tokens = read_prompt(at, field, tokenizer, prompt_length, long_prompts)
        return None if tokens is None else Prompt(text, tokens, at.record, at.number)

    return collect(path, prompt, seed)


def collect(path: Path, make: Callable[[Located], Prompt | None], seed: int) -> PromptSet:
    """The prompts that `make` makes of a file's records; None: one that is left out. Raises DataError if
    there are none."""
    made = [make(at) for at in read_records(path)]
    prompts = [p for p in made if p is not None]
    skipped = len(made) - len(prompts)
    if not prompts:
        if skipped:
            raise DataError(f"{path}: all {skipped} lines are too long")
        raise DataError(f"{path}: no prompts; one JSON object per line is needed, or a row of Parquet")
    return PromptSet(path, prompts, skipped, seed)


def read_prompt(
    at: Located, field: str, tokenizer: Tokenizer, prompt_length: int, long_prompts: LongTexts
) -> tuple[str, tuple[int, ...] | None]:
    """A prompt's text and tokens, at most `prompt_length`; None if it is to be left out. Raises DataError."""
    given = at.record.get(field)
    if isinstance(given, list):
        try:
            check_messages(given)
            text, tokens = tokenizer.encode_chat(given)
        except ChatError as exc:
            raise DataError(f"{at.where}: field `{field}` is a conversation: {exc}") from exc
    else:
        text = at.text(field)
        tokens = tokenizer.encode(text)
    if not tokens:
        raise DataError(f"{at.where}: the prompt is empty; a model needs at least one token to start from")
    if len(tokens) > prompt_length:
        if long_prompts == "skip":
            return text, None
        if long_prompts == "error":
            raise DataError(
                f"{at.where}: the prompt has {len(tokens)} tokens, more than prompt length {prompt_length}; "
                "raise the prompt length, or set long_prompts to `truncate` or `skip`"
            )
    return text, tuple(tokens[-prompt_length:])


def token_matrix(prompts: list[Prompt], prompt_length: int) -> npt.NDArray[np.int32]:
    """[n, L_p] token ids, left-padded with -1."""
    matrix = np.full((len(prompts), prompt_length), -1, dtype=np.int32)
    for row, prompt in zip(matrix, prompts, strict=True):
        row[prompt_length - len(prompt.tokens) :] = prompt.tokens
    return matrix
