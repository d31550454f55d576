"""Simulated annealing over the plans of one structure (semantics: Search)."""

import math
import random
from dataclasses import dataclass

from passes.search.evaluator import Evaluation
from passes.search.ledger import Ledger, OutOfBudget
from passes.search.space import Space
from passes.structure import Plan

PROPOSALS = 6
PAIR_MOVES = 0.28
CRITICAL_MOVES = 0.6
REJECTIONS = 10
T_INIT = 0.01
T_WARM = 0.03
T_MIN = 1e-4
COOLING = 0.95
STALE_ROUNDS = 400


@dataclass(frozen=True)
class Switches:
    """What an ablation leaves out: pair moves (A4), warm restarts (A5), the critical path's say in which
    vertex moves (A6), constant temperature (A9)."""

    pair_moves: bool = True
    warm_restarts: bool = True
    critical_moves: bool = True
    constant_temperature: bool = True


class Annealing:
    """Chains of rounds over one structure, until the ledger says stop or nothing new is proposed."""

    def __init__(self, space: Space, ledger: Ledger, rng: random.Random, switches: Switches) -> None:
        self.space = space
        self.ledger = ledger
        self.rng = rng
        self.switches = switches
        self.movable = [v for v in space.vertices if len(space.candidates[v]) > 1]
        self._stale = 0
        self._weights: tuple[object, dict[str, int]] | None = None

    def run(self, start: Plan) -> str:
        """Search from `start`. Returns why it ended: budget, time_limit, interrupted or exhausted."""
        if not self.movable:
            return "exhausted"
        try:
            plan, temperature = start, T_INIT
            while self._stale < STALE_ROUNDS:
                self._chain(plan, temperature)
                elite = self.ledger.elite(self.space)
                if self.switches.warm_restarts and elite:
                    plan, temperature = elite[self.rng.randrange(len(elite))].plan, T_WARM
                else:
                    plan, temperature = start, T_INIT
        except OutOfBudget as stop:
            self.ledger.end_round()
            return stop.reason
        return "exhausted"

    def _chain(self, plan: Plan, temperature: float) -> None:
        current = self.ledger.evaluate(self.space, plan)
        rejected = 0
        while rejected < REJECTIONS and self._stale < STALE_ROUNDS:
            self.ledger.check()
            before = self.ledger.evaluations
            proposals = self._proposals(plan)
            evaluated = [(p, self.ledger.evaluate(self.space, p)) for p in proposals]
            chosen = max(evaluated, key=lambda item: self.ledger.value(item[1]), default=None)
            if chosen is not None and self._accept(current, chosen[1], temperature):
                plan, current = chosen
                rejected = 0
            else:
                rejected += 1
            self.ledger.end_round()
            self._stale = 0 if self.ledger.evaluations > before else self._stale + 1
            if not self.switches.constant_temperature:
                temperature = max(T_MIN, COOLING * temperature)

    def _accept(self, current: Evaluation, proposed: Evaluation, temperature: float) -> bool:
        s, new = self.ledger.value(current), self.ledger.value(proposed)
        if new >= s:
            return True
        return self.rng.random() < math.exp((new - s) / (abs(s) * temperature))

    # Moves -------------------------------------------------------------------------------------------

    def _proposals(self, plan: Plan) -> list[Plan]:
        proposals = None
        if self.switches.pair_moves and self.rng.random() < PAIR_MOVES:
            proposals = self._pair_moves(plan)
        if proposals is None:
            proposals = self._single_moves(plan)
        own = self.space.key(plan)
        distinct = {self.space.key(p): p for p in proposals}
        distinct.pop(own, None)
        return list(distinct.values())

    def _single_moves(self, plan: Plan) -> list[Plan]:
        vertex = self._vertex(plan)
        candidates = self.space.candidates[vertex]
        return [plan | {vertex: candidates.sample(self.rng)} for _ in range(PROPOSALS)]

    def _vertex(self, plan: Plan) -> str:
        if self.switches.critical_moves and self.rng.random() < CRITICAL_MOVES:
            weights = self._critical(plan)
            times = [weights[v] for v in self.movable]
            if any(times):
                return self.rng.choices(self.movable, times)[0]
        return self.movable[self.rng.randrange(len(self.movable))]

    def _critical(self, plan: Plan) -> dict[str, int]:
        key = self.space.key(plan)
        if self._weights is None or self._weights[0] != key:
            self._weights = (key, self.space.evaluator.critical_times(plan))
        return self._weights[1]

    def _pair_moves(self, plan: Plan) -> list[Plan] | None:
        """A donor shrinks inside its allocation, a receiver that overlaps it is drawn anew; None if there
        is no such pair."""
        donor = self.rng.choices(self.movable, [plan[v].allocation.gpus for v in self.movable])[0]
        place = plan[donor].allocation
        receivers = [v for v in self.movable if v != donor and plan[v].allocation.overlap(place)]
        candidates = self.space.candidates[donor]
        if not receivers or candidates.sizes[0] >= place.gpus:
            return None
        receiver = receivers[self.rng.randrange(len(receivers))]
        proposals = []
        for _ in range(PROPOSALS):
            smaller = candidates.sample_smaller(self.rng, place)
            drawn = self.space.candidates[receiver].sample(self.rng)
            proposals.append(plan | {donor: smaller, receiver: drawn})
        return proposals
