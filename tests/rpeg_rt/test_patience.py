"""When work counts as stalled: by the limits, and by the signs of life of those who do it."""

from collections.abc import Callable

import pytest

from ir_schema.problem import Verifier
from rpeg_rt import patience
from rpeg_rt.patience import (
    AT_WORK,
    FACTOR,
    FIRST_SECONDS,
    IDLE_SECONDS,
    LATER_SECONDS,
    SILENT_SECONDS,
    Patience,
    Vitals,
)
from rpeg_rt.protocol import PULSE_SECONDS, Pulse, Ready

Later = Callable[[float], None]


class World:
    """Vitals whose clock is set by hand; workers give their pulse while `later` passes, those in `idle`
    without having worked, those in `stopped` not at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 1000.0
        monkeypatch.setattr(patience.time, "monotonic", lambda: self.at)
        self.vitals = Vitals()
        self.idle: set[int] = set()
        self.stopped: set[int] = set()
        self._used = {0: 0.0, 1: 0.0}
        for rank in (0, 1):
            self.vitals.hear(rank, Ready())

    def later(self, seconds: float) -> None:
        for _ in range(round(seconds / PULSE_SECONDS)):
            self.at += PULSE_SECONDS
            self.vitals.look()
            for rank in {0, 1} - self.stopped:
                self._used[rank] += PULSE_SECONDS * (0.0005 if rank in self.idle else 0.4)
                self.vitals.hear(rank, Pulse(round(self.at * 1e9), round(self._used[rank] * 1e9)))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_slow_work_is_no_stall_however_short_its_prediction(world: World) -> None:
    limit = Patience(None).node(0, predicted=1e-6)
    world.later(5 * FIRST_SECONDS)
    assert not world.vitals.overdue((0, 1), 0.0, limit)
    world.idle = {0}
    world.later(FIRST_SECONDS)
    assert not world.vitals.overdue((0, 1), 0.0, limit)  # worker 1 works, and 0 may wait for it
    world.later(AT_WORK * FIRST_SECONDS)
    assert world.vitals.overdue((0, 1), 0.0, limit)  # not for ever


def test_workers_that_wait_for_each_other_are_a_stall(world: World) -> None:
    world.idle = {0, 1}
    first = Patience(None).node(0, predicted=1e-6)
    world.later(FIRST_SECONDS - PULSE_SECONDS)
    assert not world.vitals.overdue((0, 1), 0.0, first)
    world.later(PULSE_SECONDS)
    assert world.vitals.overdue((0, 1), 0.0, first)
    assert not world.vitals.overdue((0, 1), 0.0, Patience(None).node(0, predicted=FIRST_SECONDS))


def test_what_has_been_measured_is_missed_sooner(world: World) -> None:
    told = Patience(None)
    told.took(0, 0.4)
    limit = told.node(0, predicted=1000.0)
    assert limit.idle == LATER_SECONDS
    assert told.node(1, predicted=1000.0).idle == FACTOR * 1000
    told.took(0, 100.0)
    told.took(0, 0.1)
    assert told.node(0, predicted=1000.0).idle == FACTOR * 100
    world.idle = {0, 1}
    world.later(LATER_SECONDS)
    assert world.vitals.overdue((0, 1), 0.0, limit)


def test_a_worker_without_a_sign_of_life_is_missed_soon_wherever_others_are(world: World) -> None:
    limit = Patience(None).node(0, predicted=3600.0)
    world.stopped = {1}
    world.later(SILENT_SECONDS - PULSE_SECONDS)
    assert not world.vitals.overdue((0, 1), 0.0, limit)
    world.later(PULSE_SECONDS)
    assert world.vitals.overdue((0, 1), 0.0, limit)
    assert not world.vitals.overdue((0,), 0.0, limit)  # it has no part in it
    assert not world.vitals.overdue((0, 1), 0.0, Patience(3600.0).node(0, 1e-6))
    assert not world.vitals.at_work(1)


def test_time_in_which_the_controller_slept_does_not_count(world: World) -> None:
    limit = Patience(None).node(0, predicted=1e-6)
    world.later(IDLE_SECONDS)
    world.at += 1e6  # Ctrl-Z, and the next day `fg`
    world.vitals.look()
    assert not world.vitals.overdue((0, 1), 0.0, limit)


def test_a_user_may_choose_the_limit(world: World) -> None:
    told = Patience(3.0)
    told.took(0, 1000.0)
    limit = told.node(0, predicted=1e-6)
    world.later(PULSE_SECONDS)
    assert world.vitals.overdue((0, 1), 0.0, limit)
    assert told.node(0, predicted=10.0).working == FACTOR * 10
    assert told.interlude().working == 3
    assert told.start().working > FIRST_SECONDS


@pytest.mark.parametrize(("responses", "workers"), [(10_000, 2), (1, 1)])
def test_a_verifier_ends_by_its_own_time_out_first(responses: int, workers: int) -> None:
    spec = Verifier(seconds_per_response=1e-9, workers=workers, timeout_seconds=7.0)
    longest = 7.0 * responses / workers
    assert Patience(None).verification(spec, responses).idle > longest
    assert Patience(5.0).verification(spec, responses).idle == 5
