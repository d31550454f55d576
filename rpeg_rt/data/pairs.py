"""Preference pairs: records of `prompt`, `chosen` and `rejected`, in the same order of steps as prompts."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from rpeg_rt.data.errors import DataError
from rpeg_rt.data.prompts import LongTexts, Prompt, PromptSet, collect, read_prompt, token_matrix
from rpeg_rt.data.records import Located
from rpeg_rt.data.tokenizers import Tokenizer

CHOSEN, REJECTED = "chosen", "rejected"


def load_pairs(
    path: Path,
    tokenizer: Tokenizer,
    *,
    prompt_length: int,
    response_length: int,
    field: str = "prompt",
    long_prompts: LongTexts = "error",
    long_responses: LongTexts = "error",
    seed: int = 0,
) -> PromptSet:
    """Read a file of pairs. Every response ends with EOS.

    A response of more than `response_length` tokens (EOS included) is an error, keeps its first
    `response_length` ("truncate": it has no EOS then), or its pair is left out ("skip"); prompts as in
    `load_prompts`. Raises DataError with file and line.
    """

    def response(at: Located, name: str) -> tuple[int, ...] | None:
        tokens = tokenizer.encode_response(at.text(name))
        if len(tokens) > response_length:
            if long_responses == "skip":
                return None
            if long_responses == "error":
                raise DataError(
                    f"{at.where}: response `{name}` has {len(tokens)} tokens with its end, more than "
                    f"response length {response_length}; raise the response length, or set long_responses "
                    "to `truncate` or `skip`"
                )
        return tuple(tokens[:response_length])

    def pair(at: Located) -> Prompt | None:
        text, tokens = read_prompt(at, field, tokenizer, prompt_length, long_prompts)
        chosen, rejected = response(at, CHOSEN), response(at, REJECTED)
        if tokens is None or chosen is None or rejected is None:
            return None
        return Prompt(text, tokens, at.record, at.number, (chosen, rejected))

    return collect(path, pair, seed)


def pair_matrix(pairs: list[Prompt], prompt_length: int, response_length: int) -> npt.NDArray[np.int32]:
    """[2n, L_p + L_r] token ids of n pairs, chosen before rejected: prompts left-padded and responses
    right-padded with -1."""
    prompts = np.repeat(token_matrix(pairs, prompt_length), 2, axis=0)
    responses = np.full((len(prompts), response_length), -1, dtype=np.int32)
    for row, tokens in zip(responses, (r for p in pairs for r in p.responses), strict=True):
        row[: len(tokens)] = tokens
    return np.concatenate([prompts, responses], axis=1)
