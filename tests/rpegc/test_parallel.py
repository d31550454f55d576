"""Jobs in processes of their own."""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

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


def exists(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


PARENT = """
import os, sys, time
from rpegc.parallel import workers

if __name__ == "__main__":
    with workers(2) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 600)
        sys.stdin.read()
"""


def test_no_process_outlives_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert exists(child)
        parent.kill()
    deadline = time.monotonic() + 30
    while exists(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not exists(child)


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
    while any(exists(p.pid) for p in started) and time.monotonic() < deadline:
        multiprocessing.active_children()
        time.sleep(0.05)
    assert not any(exists(p.pid) for p in started)
