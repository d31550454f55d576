"""Held-out evaluation: before the first step and after the last, the policy answers prompts of its own file.

It is no part of the plan and happens while no node runs: the workers that train the policy, who always hold
its newest version, sample one response to each prompt, and the verifier that rewards training judges them.
Sampling meets the same random numbers in every evaluation, so differences are those of the weights.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rpeg_rt.data.prompts import token_matrix
from rpeg_rt.host import Host, Verified
from rpeg_rt.protocol import Answers, Evaluate, Frame, from_array, to_array
from rpeg_rt.realise import Realisation
from rpeg_rt.rows import replica_ranks
from rpeg_rt.semantics import Generate, Train, Verify
from rpeg_rt.trace import Evaluation

CORRECT = 1.0
"""A reward of this or more counts as a correct response."""


class Examination:
    """One evaluation: `questions` by worker, then `submit` of the answers, then the `result`."""

    def __init__(self, realisation: Realisation, host: Host, policy: str, verifier: str) -> None:
        self._host, self._policy, self._verifier = host, policy, verifier
        self._versions: dict[int, int] = {}
        placement, prompts = realisation.plan[policy], host.held_out
        matrix = token_matrix(prompts, realisation.problem.workload.prompt_length)
        ranks, replicas = realisation.ranks(placement.allocation), placement.data_parallel
        self.questions: dict[int, Evaluate] = {}
        for d in range(replicas):
            first, last = (len(prompts) * i // replicas for i in (d, d + 1))
            if first < last:
                question = Evaluate(policy, first, to_array(matrix[first:last]))
                self.questions.update(dict.fromkeys(replica_ranks(ranks, placement.layout, d), question))

    def submit(self, answers: Mapping[int, Frame]) -> None:
        """Hand every worker's answers to the verifier."""
        blocks: dict[int, npt.NDArray[np.generic]] = {}
        for rank, frame in sorted(answers.items()):
            assert isinstance(frame, Answers)
            self._versions[rank] = frame.version
            blocks[frame.first] = from_array(frame.tokens)  # the workers of a replica answer alike
        self._host.examine(self._verifier, np.concatenate([blocks[first] for first in sorted(blocks)]))

    def result(self, verified: Verified, start_ns: int, time_ns: int) -> Evaluation:
        """The event for the trace. Raises what the verifier raised."""
        if verified.error is not None:
            raise verified.error
        return Evaluation(
            start_ns=start_ns,
            time_ns=time_ns,
            vertex=self._policy,
            versions=self._versions,
            prompts=len(verified.rewards),
            reward=float(verified.rewards.mean()),
            correct=float((verified.rewards >= CORRECT).mean()),
        )


def _actors(realisation: Realisation) -> tuple[list[str], list[str]]:
    """Vertices that train a model which generates, and those that verify."""
    tasks, vertices = realisation.semantics.tasks, realisation.vertices
    generating = {vertices[name].model for name, task in tasks.items() if isinstance(task, Generate)}
    policies = [n for n, t in tasks.items() if isinstance(t, Train) and vertices[n].model in generating]
    return policies, [name for name, task in tasks.items() if isinstance(task, Verify)]


def not_examined(realisation: Realisation) -> str | None:
    """Why held-out prompts cannot be evaluated under this plan; None if they can."""
    policies, verifiers = _actors(realisation)
    if not policies:
        return "no model that generates is trained"
    return None if verifiers else "only a verifier judges their responses, and the plan rewards with a model"


def examination(realisation: Realisation, host: Host) -> Examination | None:
    """A new evaluation; None without held-out prompts, a trained model that generates, or a verifier."""
    policies, verifiers = _actors(realisation)
    if not (host.held_out and policies and verifiers):
        return None
    return Examination(realisation, host, policies[0], verifiers[0])
