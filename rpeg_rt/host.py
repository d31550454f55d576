"""What runs beside the workers, in the controller's process: data, and the verifiers of host vertices.

Verifiers are user code: they run in threads of their own (as many as the file allows), so that a slow one
holds up nobody who does not wait for its rewards, and what they raise becomes a UserCodeError.
"""

import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
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
from rpeg_rt.failure import FileError, NumericError, PreflightError, RunError, UserCodeError
from rpeg_rt.verifiers import Verifier, as_reward, last_line, load_verifier

HELD_OUT = Instance(-1, -1)
"""Stands for the host vertex instance where the responses are those of a held-out evaluation."""


@dataclass(frozen=True)
class Verified:
    """Host vertex instance `x` has given every response of `indices` its reward, or has failed."""

    x: Instance
    indices: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    error: RunError | None = None


class _Batch:
    """The responses of one host vertex instance that are still being verified."""

    def __init__(self, x: Instance, indices: npt.NDArray[np.int64]) -> None:
        self.x, self.indices = x, indices
        self.rewards = np.zeros(len(indices))
        self.missing = len(indices)
        self.failed = False
        self.lock = threading.Lock()

    def describe(self, i: int) -> str:
        """The i-th of these responses."""
        if self.x == HELD_OUT:
            return f"the response to held-out prompt {self.indices[i]}"
        return f"response {self.indices[i]} of step {self.x.step}"


class VerifierPool:
    """`workers` threads that apply one verifier; `finished` is called from them, once per instance."""

    def __init__(self, vertex: str, workers: int, finished: Callable[[Verified], None]) -> None:
        self.vertex = vertex
        self._finished = finished
        self._queue: queue.SimpleQueue[tuple[_Batch, int, Callable[[], float]]] = queue.SimpleQueue()
        for i in range(workers):
            threading.Thread(target=self._serve, name=f"{vertex}-{i}", daemon=True).start()

    def submit(self, x: Instance, indices: npt.NDArray[np.int64], calls: list[Callable[[], float]]) -> None:
        """Verify one instance's responses."""
        batch = _Batch(x, indices)
        if not calls:
            self._finished(Verified(x, indices, batch.rewards))
        for i, call in enumerate(calls):
            self._queue.put((batch, i, call))

    def _serve(self) -> None:
        while True:
            batch, i, call = self._queue.get()
            error: RunError | None = None
            try:
                batch.rewards[i] = as_reward(call())
                if not math.isfinite(batch.rewards[i]):
                    error = NumericError(
                        f"verifier of `{self.vertex}` gave {batch.rewards[i]} to {batch.describe(i)}"
                    )
            except BaseException as exc:  # sys.exit() in a verifier may not end its thread in silence
                error = UserCodeError(
                    f"verifier of `{self.vertex}` failed on {batch.describe(i)}: {last_line(exc)}"
                )
            with batch.lock:
                if batch.failed:
                    continue
                batch.missing -= 1
                batch.failed = error is not None
                done = batch.failed or batch.missing == 0
            if done:
                self._finished(Verified(batch.x, batch.indices, batch.rewards, error))


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
    """Data and verifiers of a run. Raises FileError for missing files, UserCodeError for unusable data."""

    def __init__(
        self, problem: Problem, seed: int, directory: Path, finished: Callable[[Verified], None]
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
        self._verifiers: dict[str, Verifier] = {}
        self._pools: dict[str, VerifierPool] = {}
        for name, spec in problem.host.items():
            self._verifiers[name] = load_verifier(spec.callable or name, directory)
            self._pools[name] = VerifierPool(name, spec.workers, finished)

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
        calls = [
            self._call(vertex, prompts[int(i) // rollouts], row)
            for i, row in zip(indices, tokens, strict=True)
        ]
        self._pools[vertex].submit(x, indices, calls)

    def examine(self, vertex: str, tokens: npt.NDArray[Any]) -> None:
        """Start verifying one response [n, L_p + L_r] to each held-out prompt."""
        calls = [self._call(vertex, prompt, row) for prompt, row in zip(self.held_out, tokens, strict=True)]
        self._pools[vertex].submit(HELD_OUT, np.arange(len(calls)), calls)

    def _call(self, vertex: str, prompt: Prompt, row: npt.NDArray[Any]) -> Callable[[], float]:
        response = row[self.problem.workload.prompt_length :]
        text = self.tokenizer.decode(response[response >= 0].tolist())
        return lambda: self._verifiers[vertex](prompt.text, text, dict(prompt.record))

    def _prompts_of(self, step: int) -> list[Prompt]:
        return self._take(step)
