"""What workers do between the nodes of a plan: evaluations, snapshots, and the trained weights at the end.

No node runs meanwhile. A question is put to workers, and their answers are waited for.
"""

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from ir_schema.trace import Evaluation
from rpeg_rt.checkpoints.export import Origin, new_checkpoint
from rpeg_rt.evaluation import examination
from rpeg_rt.fleet import Fleet
from rpeg_rt.host import Host
from rpeg_rt.patience import Limit, Patience
from rpeg_rt.pool import Verified
from rpeg_rt.precision import weight_type
from rpeg_rt.protocol import Evaluate, Frame, Keep, Save
from rpeg_rt.realise import Realisation
from rpeg_rt.semantics import Train
from rpeg_rt.snapshots.saver import Saver
from rpeg_rt.trace import TraceWriter
from rpeg_rt.watch import Watch


class Interludes:
    """The interludes of one run. `verified` is where the verdicts on responses arrive; `clock` tells the ns
    since the run began, for the trace."""

    def __init__(
        self,
        realisation: Realisation,
        host: Host,
        fleet: Fleet,
        watch: Watch,
        patience: Patience,
        trace: TraceWriter,
        verified: deque[Verified],
        clock: Callable[[], int],
    ) -> None:
        self._realisation, self._host, self._fleet, self._watch = realisation, host, fleet, watch
        self._patience, self._trace = patience, trace
        self._verified, self._clock = verified, clock

    def evaluate(self, step: int) -> Evaluation | None:
        """Examine the policy on the held-out prompts after `step` steps, if there are any."""
        exam = examination(self._realisation, self._host)
        if exam is None:
            return None
        started = self._clock()
        for questions in exam.rounds:
            exam.take(self._ask("the held-out evaluation", questions))
        exam.submit()
        since, limit = self._watch.now, self._limit_of_verdicts()
        while not self._verified:
            list(self._watch.events())
            if not self._verified:
                self._watch.hurry("the held-out evaluation", (), since, limit)
        event = exam.result(self._verified.popleft(), step, started, self._clock())
        self._trace.write(event)
        return event

    def snapshot(self, saver: Saver, step: int) -> str | None:
        """Leave a snapshot after `step` steps; what is to be said if that fails."""

        def ask(questions: Mapping[int, Keep]) -> dict[int, Frame]:
            return self._ask(f"the snapshot after step {step}", questions)

        event = saver.take(step, ask, self._clock)
        self._trace.write(event)
        if event.failure is None:
            return None
        return f"the snapshot after step {step} could not be written to {saver.directory}: {event.failure}"

    def save_weights(self, places: Mapping[str, Path], origin: Origin) -> None:
        """The newest weights of trained models, each as a checkpoint in its place, which are of `origin`."""
        problem = self._realisation.problem
        assert problem.run is not None, "preflight refuses a plan without a run"
        for vertex, task in self._realisation.semantics.tasks.items():
            if not isinstance(task, Train) or self._realisation.serving[vertex].model not in places:
                continue
            place = self._realisation.serving[vertex]
            spec = problem.models[place.model]
            precision = weight_type(spec, problem.run.precision)
            with new_checkpoint(places[place.model], spec, precision, self._host.tokenizer, origin) as part:
                ranks = self._realisation.ranks(place.allocation)
                request = Save(vertex, str(part))
                self._ask(f"writing the weights of `{place.model}`", dict.fromkeys(ranks, request))

    def _ask(self, what: str, questions: Mapping[int, Save | Evaluate | Keep]) -> dict[int, Frame]:
        """Put questions to workers; their answers by rank."""
        for rank, question in questions.items():
            self._fleet.send(rank, question)
        answers: dict[int, Frame] = {}
        since, limit = self._watch.now, self._patience.interlude()
        while waiting := questions.keys() - answers.keys():
            self._watch.hurry(what, waiting, since, limit)
            answers |= {r.rank: r.frame for r in self._watch.events()}
        return answers

    def _limit_of_verdicts(self) -> Limit:
        verifiers = self._realisation.problem.host.values()
        limits = [self._patience.verification(v, len(self._host.held_out)) for v in verifiers]
        return max(limits, key=lambda limit: limit.idle, default=self._patience.interlude())
