"""Which weights stay on a worker, and when those that do not are let go."""

import pytest

from rpeg_rt.realise import Realisation
from tests.rpeg_rt.plans import colocated, executable, place, problem

OWN_LAYOUT = colocated(dp=2) | {"actor_gen": place("0-1", tp=2), "ref_inf": place("0-1", tp=2)}


def realised(staleness: int = 0, quantiles: tuple[tuple[float, int], ...] = ()) -> Realisation:
    return Realisation(executable(problem(staleness=staleness, quantiles=quantiles), OWN_LAYOUT))


def test_only_a_serving_layout_of_its_own_without_staleness_is_let_go() -> None:
    lasting = {v: w.lasting for v, w in realised().serving.items()}
    assert lasting == {
        "actor_gen": False,
        "ref_inf": True,
        "critic_inf": True,
        "actor_train": True,
        "critic_train": True,
    }
    assert all(w.lasting for w in realised(staleness=1).serving.values())


@pytest.mark.parametrize(("quantiles", "readers"), [((), 1), (((0.5, 4), (1.0, 8)), 2)])
def test_every_phase_of_a_generation_reads_the_weights(
    quantiles: tuple[tuple[float, int], ...], readers: int
) -> None:
    realisation = realised(quantiles=quantiles)
    served = realisation.serving["actor_gen"]
    assert realisation.weight_readers(served, 0) == realisation.weight_readers(served, 5) == readers


def test_the_source_of_a_transfer_is_read_from_the_step_on_in_which_it_first_happens() -> None:
    realisation = realised()
    trained = realisation.serving["actor_train"]
    transfers = [b for b in realisation.bound.values() if b.transfer and b.transfer.source == trained]
    assert transfers
    first = [realisation.weight_readers(trained, step) for step in (0, 5)]
    assert first == [1, 1 + len(transfers)]
