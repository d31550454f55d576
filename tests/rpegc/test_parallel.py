"""Jobs in processes of their own."""

import multiprocessing
import os
import time

import pytest

from rpegc.parallel import workers


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_and_exceptions_come_back(jobs: int) -> None:
    with workers(jobs) as pool:
        futures = [pool.submit(divmod, 7, n) for n in (2, 0, 3)]
        assert futures[0].result() == (3, 1)
        with pytest.raises(ZeroDivisionError):
            futures[1].result()
        assert futures[2].result() == (2, 1)


def exists(process: multiprocessing.process.BaseProcess) -> bool:
    assert process.pid is not None
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_interrupt_ends_the_processes_whatever_they_do() -> None:
    before = set(multiprocessing.active_children())

    def interrupted() -> None:
        with workers(2) as pool:
            future = pool.submit(time.sleep, 600)
            while not future.running():
                time.sleep(0.01)
            started.extend(set(multiprocessing.active_children()) - before)
            raise KeyboardInterrupt

    started: list[multiprocessing.process.BaseProcess] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started
    # The pool's own thread may collect a process first, and then its exit code is not known here.
    deadline = time.monotonic() + 30
    while any(map(exists, started)) and time.monotonic() < deadline:
        multiprocessing.active_children()
        time.sleep(0.05)
    assert not any(map(exists, started))
