"""Held-out evaluation: before the first step, after the last, and after every N if asked for, the policy is
examined on prompts, or preference pairs, of their own file.

It is no part of the plan and happens while no node runs: the workers that train the policy, who always hold
its newest version, sample one response to each prompt, and the verifier that rewards training judges them.
Sampling meets the same random numbers in every evaluation, so differences are those of the weights. Pairs are
scored by policy and reference: the reward is the margin of implicit rewards.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ir_schema.trace import Evaluation
from rpeg_rt.data.pairs import pair_matrix
from rpeg_rt.data.prompts import token_matrix
from rpeg_rt.engine.sharding import in_lockstep, position_of
from rpeg_rt.host import Host
from rpeg_rt.pauses import policy_of
from rpeg_rt.pool import Verified
from rpeg_rt.protocol import Answers, Evaluate, Frame, from_array, to_array
from rpeg_rt.realise import Realisation
from rpeg_rt.semantics import Score, Train, Verify

CORRECT = 1.0
"""A reward of this or more counts as a correct response."""


class Examination(Protocol):
    """One evaluation: the answers to each of its `rounds` (questions by worker) are taken; after `submit` its
    rewards come as one Verified, of which `result` makes the event."""

    rounds: list[dict[int, Evaluate]]

    def take(self, answers: Mapping[int, Frame]) -> None:
        """Every worker's answers of the next round."""

    def submit(self) -> None:
        """All rounds are answered: have the answers judged."""

    def result(self, verified: Verified, step: int, start_ns: int, time_ns: int) -> Evaluation:
        """The event for the trace, after `step` steps. Raises what the verifier raised."""


def _questions(
    realisation: Realisation, vertex: str, rows: npt.NDArray[np.int32], *, paired: bool
) -> dict[int, Evaluate]:
    """A block of `rows` for every replica of `vertex` (a pair together), by worker; an empty one only
    where the others need its ranks. Decoding is not split along sequences, so each context-parallel rank then
    counts as a replica."""
    placement = realisation.plan[vertex]
    replicas: dict[tuple[int, int], list[int]] = {}
    for i, rank in enumerate(realisation.ranks(placement.allocation)):
        place = position_of(i, placement.layout)
        replicas.setdefault((place.data, 0 if paired else place.context), []).append(rank)
    together = 2 if paired else 1
    found: dict[int, Evaluate] = {}
    for n, key in enumerate(sorted(replicas)):
        first, last = (len(rows) // together * i // len(replicas) * together for i in (n, n + 1))
        if first < last or in_lockstep(placement.layout):
            question = Evaluate(vertex, first, to_array(rows[first:last]), paired)
            found.update(dict.fromkeys(replicas[key], question))
    return found


def _answers(answers: Mapping[int, Frame]) -> tuple[npt.NDArray[np.generic], dict[int, int]]:
    """All rows of the answers in order, and the version that each worker used."""
    blocks: dict[int, npt.NDArray[np.generic]] = {}
    versions: dict[int, int] = {}
    for rank, frame in sorted(answers.items()):
        assert isinstance(frame, Answers)
        versions[rank] = frame.version
        blocks[frame.first] = from_array(frame.rows)  # the workers of a replica answer alike
    return np.concatenate([blocks[first] for first in sorted(blocks)]), versions


def _event(
    vertex: str, versions: dict[int, int], verified: Verified, correct: float, when: tuple[int, int, int]
) -> Evaluation:
    if verified.error is not None:
        raise verified.error
    step, start_ns, time_ns = when
    return Evaluation(
        step=step,
        start_ns=start_ns,
        time_ns=time_ns,
        vertex=vertex,
        versions=versions,
        prompts=len(verified.rewards),
        reward=float(verified.rewards.mean()),
        correct=correct,
    )


class ResponseExamination:
    """The policy answers prompts, and a verifier judges."""

    def __init__(self, realisation: Realisation, host: Host, policy: str, verifier: str) -> None:
        self._host, self._policy, self._verifier = host, policy, verifier
        rows = token_matrix(host.held_out, realisation.problem.workload.prompt_length)
        self.rounds = [_questions(realisation, policy, rows, paired=False)]

    def take(self, answers: Mapping[int, Frame]) -> None:
        """Every worker's responses."""
        self._responses, self._versions = _answers(answers)

    def submit(self) -> None:
        """Hand the responses to the verifier."""
        self._host.examine(self._verifier, self._responses)

    def result(self, verified: Verified, step: int, start_ns: int, time_ns: int) -> Evaluation:
        """The event for the trace. Raises what the verifier raised."""
        correct = float((verified.rewards >= CORRECT).mean())
        return _event(self._policy, self._versions, verified, correct, (step, start_ns, time_ns))


class PairExamination:
    """Policy and reference score pairs; what they think of them needs no judge."""

    def __init__(self, realisation: Realisation, host: Host, policy: str, reference: str) -> None:
        run, w = realisation.problem.run, realisation.problem.workload
        assert run is not None
        self._host, self._policy, self._beta = host, policy, run.dpo_beta
        rows = pair_matrix(host.held_out, w.prompt_length, w.response_length)
        self.rounds = [_questions(realisation, v, rows, paired=True) for v in (policy, reference)]
        self._answered: list[tuple[npt.NDArray[np.generic], dict[int, int]]] = []

    def take(self, answers: Mapping[int, Frame]) -> None:
        """Every worker's log-probabilities of whole responses: first the policy's, then the reference's."""
        self._answered.append(_answers(answers))

    def submit(self) -> None:
        """Form the margins."""
        (policy, _), (reference, _) = self._answered
        rewards = self._beta * (policy.astype(np.float64) - reference.astype(np.float64))
        self._host.judged(rewards[::2] - rewards[1::2])

    def result(self, verified: Verified, step: int, start_ns: int, time_ns: int) -> Evaluation:
        """The event for the trace: `reward` is the mean margin, `correct` the preference accuracy."""
        import torch  # here, for a controller has no other use for it, and it takes seconds

        from rpeg_rt.algorithms.dpo import preferred

        correct = float(preferred(torch.from_numpy(verified.rewards)).mean())
        return _event(self._policy, self._answered[0][1], verified, correct, (step, start_ns, time_ns))


def _judge(realisation: Realisation, policy: str) -> str | None:
    """The vertex by which the policy is judged: a verifier, or the reference of its pairs."""
    tasks = realisation.semantics.tasks
    trained = tasks[policy]
    assert isinstance(trained, Train)
    if trained.tokens in realisation.from_outside:
        return next(n for n, t in tasks.items() if isinstance(t, Score) and t.output == trained.reference)
    return next((n for n, t in tasks.items() if isinstance(t, Verify)), None)


def not_examined(realisation: Realisation) -> str | None:
    """Why held-out prompts cannot be evaluated under this plan; None if they can."""
    policy = policy_of(realisation)
    if policy is None:
        return "no model that generates is trained"
    if _judge(realisation, policy) is None:
        return "only a verifier judges their responses, and the plan rewards with a model"
    return None


def examination(realisation: Realisation, host: Host) -> Examination | None:
    """A new evaluation; None without held-out prompts, or where they cannot be evaluated."""
    policy = policy_of(realisation)
    judge = None if policy is None else _judge(realisation, policy)
    if not host.held_out or policy is None or judge is None:
        return None
    if isinstance(realisation.semantics.tasks[judge], Score):
        return PairExamination(realisation, host, policy, judge)
    return ResponseExamination(realisation, host, policy, judge)
