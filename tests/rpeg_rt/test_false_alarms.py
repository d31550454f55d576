"""What takes long between nodes is no stall: real workers that are slow, under deadlines that are short."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ir_schema.trace import Evaluation, Snapshot
from rpeg_rt import patience
from rpeg_rt.metrics import StepMetrics
from rpeg_rt.run import Settings, execute
from rpeg_rt.snapshots.directory import place_of
from rpeg_rt.trace import read_trace
from tests.rpeg_rt.plans import colocated, executable, problem, write_plan, write_prompts
from tests.rpeg_rt.test_faults import check_trace, descendants

pytestmark = pytest.mark.slow

SHORT = 1.0
STOPPED, RUNNING = 0.9, 0.05
FSYNC = 8.0
SLOW_DISK = f"""
import os, time

fsync = os.fsync

def slow(descriptor):
    time.sleep({FSYNC})
    fsync(descriptor)

os.fsync = slow
"""


def hurry(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Other deadlines, from now on."""
    for name, value in seconds.items():
        monkeypatch.setattr(patience, name, value)


def stutter(workers: list[int], done: Path) -> None:
    """Let workers run for a twentieth of the time until `done` is there."""
    while not done.exists():
        for number, seconds in ((signal.SIGSTOP, STOPPED), (signal.SIGCONT, RUNNING)):
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(seconds)


def test_a_long_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of workers that are at work, if slowly: they are past the limit for those that are not."""
    path = write_plan(tmp_path, executable(problem(run={"eval_prompts": "held_out.jsonl"}), colocated(dp=2)))
    write_prompts(tmp_path, count=60).rename(tmp_path / "held_out.jsonl")
    write_prompts(tmp_path)
    run, trace = tmp_path / "run", tmp_path / "trace.jsonl"
    threads: list[threading.Thread] = []

    def slowly(metrics: StepMetrics, _: int) -> None:
        if metrics.step == 0:
            below = descendants(os.getpid())
            workers = [pid for pid, command in below.items() if "rpeg_rt.spawn" in command][1:]
            assert len(workers) == 2
            hurry(monkeypatch, FIRST_SECONDS=SHORT, LATER_SECONDS=SHORT, AT_WORK=120.0, SILENT_SECONDS=30.0)
            threads.append(threading.Thread(target=stutter, args=(workers, place_of(run, 2))))
            threads[0].start()

    settings = Settings(steps=3, eval_every=2, save=run, save_every=2, trace=trace)
    execute(path, settings, slowly)
    threads[0].join()
    check_trace(tmp_path, 0)
    evaluations = {e.step: e for e in read_trace(trace) if isinstance(e, Evaluation)}
    assert (evaluations[2].time_ns - evaluations[2].start_ns) / 1e9 > SHORT


def test_a_disk_that_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer does nothing meanwhile, but gives signs of life."""
    path = write_plan(tmp_path, executable(problem(), colocated()))
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW_DISK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "slow"))
    trace = tmp_path / "trace.jsonl"

    def soon(metrics: StepMetrics, _: int) -> None:
        hurry(
            monkeypatch,
            FIRST_SECONDS=4 * FSYNC,
            LATER_SECONDS=SHORT,
            IDLE_SECONDS=2.0,
            SILENT_SECONDS=FSYNC - 1,
        )

    execute(path, Settings(steps=2, save=tmp_path / "run", save_every=1, trace=trace), soon)
    check_trace(tmp_path, 0)
    snapshots = [e for e in read_trace(trace) if isinstance(e, Snapshot)]
    assert [e.step for e in snapshots] == [1, 2]
    assert all((e.time_ns - e.start_ns) / 1e9 > 2 * FSYNC for e in snapshots)  # one for each model
