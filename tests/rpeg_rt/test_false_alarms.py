"""What takes long between nodes is no stall: real workers that are slow, under deadlines that are short."""

from pathlib import Path

import pytest

from rpeg_rt import patience
from rpeg_rt.metrics import StepMetrics
from rpeg_rt.run import Settings, execute
from rpeg_rt.trace import Snapshot, read_trace
from tests.rpeg_rt.plans import colocated, executable, problem, write_plan
from tests.rpeg_rt.test_faults import check_trace

pytestmark = pytest.mark.slow

SHORT = 1.0
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
