"""What runs beside the workers: data, and the verifiers of host vertices.

Verifiers are user code: they run in processes of their own (as many as the file allows), and what they raise
becomes a UserCodeError.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ir_schema.problem import Problem, RunConfig, Workload
from rpeg_rt.data.errors import DataError
from rpeg_rt.data.pairs import load_pairs, pair_matrix
from rpeg_rt.data.prompts import Prompt, PromptSet, load_prompts, token_matrix
from rpeg_rt.data.tokenizers import Tokenizer, load_tokenizer
from rpeg_rt.dispatch import Instance
from rpeg_rt.failure import FileError, PreflightError, UserCodeError
from rpeg_rt.judge import Question
from rpeg_rt.pool import HELD_OUT, Verified, VerifierPool


def _load(path: Path, run: RunConfig, workload: Workload, tokenizer: Tokenizer, seed: int) -> PromptSet:
    """The pairs in a file, or its prompts, as the algorithm asks for. Raises DataError."""
    if run.algorithm == "dpo":
        return load_pairs(
            path,
            tokenizer,
            prompt_length=workload.prompt_length,
            response_length=workload.response_length,
            field=run.prompt_field,
            long_prompts=run.long_prompts,
            long_responses=run.long_responses,
            seed=seed,
        )
    return load_prompts(
        path,
        tokenizer,
        prompt_length=workload.prompt_length,
        field=run.prompt_field,
        long_prompts=run.long_prompts,
        seed=seed,
    )


class Host:
    """Data and verifiers of a run; `warn` is told what verifiers get away with.

    Raises FileError for missing files, UserCodeError for unusable data.
    """

    def __init__(
        self,
        problem: Problem,
        seed: int,
        directory: Path,
        finished: Callable[[Verified], None],
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        assert problem.run is not None
        self.problem, run = problem, problem.run
        if run.prompts is None:
            raise FileError("the run names no prompts; give `prompts` in the file's `run` section")
        try:
            self.tokenizer: Tokenizer = load_tokenizer(run.tokenizer, directory)
        except DataError as exc:
            raise FileError(str(exc)) from exc

        def load(file: str) -> PromptSet:
            try:
                return _load(directory / file, run, problem.workload, self.tokenizer, seed)
            except DataError as exc:
                missing = not (directory / file).is_file()
                raise (FileError if missing else UserCodeError)(str(exc)) from exc

        self.prompts = load(run.prompts)
        self.held_out = load(run.eval_prompts).prompts if run.eval_prompts else []
        self._check_vocabulary()
        self._take = lru_cache(maxsize=8)(lambda step: self.prompts.take(step, problem.workload.prompts))
        self._finished = finished
        self._pools = {
            name: VerifierPool(name, spec, directory, finished, warn) for name, spec in problem.host.items()
        }

    def _check_vocabulary(self) -> None:
        """Every model must know every token id that the tokenizer can produce."""
        small = [
            f"model `{name}` has {spec.vocabulary} tokens, but the tokenizer produces ids up to "
            f"{self.tokenizer.vocabulary - 1}"
            for name, spec in self.problem.models.items()
            if spec.vocabulary < self.tokenizer.vocabulary
        ]
        if small:
            raise PreflightError(small)

    def close(self) -> None:
        """The run is over: end the verifiers."""
        for pool in self._pools.values():
            pool.close()

    def prompt_matrix(self, step: int) -> npt.NDArray[np.int32]:
        """X of a step: int32 [B, L_p], left-padded with -1."""
        return token_matrix(self._prompts_of(step), self.problem.workload.prompt_length)

    def pair_matrix(self, step: int) -> npt.NDArray[np.int32]:
        """Y of a step of preference pairs: int32 [B * 2, L_p + L_r], padded with -1."""
        w = self.problem.workload
        return pair_matrix(self._prompts_of(step), w.prompt_length, w.response_length)

    def verify(
        self, x: Instance, vertex: str, indices: npt.NDArray[np.int64], tokens: npt.NDArray[Any]
    ) -> None:
        """Start verifying the responses in `tokens` [n, L_p + L_r], whose sequence indices are `indices`."""
        prompts, rollouts = self._prompts_of(x.step), self.problem.workload.rollouts
        questions = [
            self._question(prompts[int(i) // rollouts], row) for i, row in zip(indices, tokens, strict=True)
        ]
        self._pools[vertex].submit(x, indices, questions)

    def examine(self, vertex: str, tokens: npt.NDArray[Any]) -> None:
        """Start verifying one response [n, L_p + L_r] to each held-out prompt."""
        questions = [self._question(p, row) for p, row in zip(self.held_out, tokens, strict=True)]
        self._pools[vertex].submit(HELD_OUT, np.arange(len(questions)), questions)

    def judged(self, rewards: npt.NDArray[np.float64]) -> None:
        """Held-out pairs have their rewards [n] already."""
        self._finished(Verified(HELD_OUT, np.arange(len(rewards)), rewards))

    def _question(self, prompt: Prompt, row: npt.NDArray[Any]) -> Question:
        response = row[self.problem.workload.prompt_length :]
        text = self.tokenizer.decode(response[response >= 0].tolist())
        return Question(prompt.text, text, prompt.record)

    def _prompts_of(self, step: int) -> list[Prompt]:
        return self._take(step)
