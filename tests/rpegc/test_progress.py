"""Progress and Ctrl-C: the first asks for the best plan so far, the second quits."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ir_schema.envelope import decode_stage
from passes.search.progress import Progress
from rpegc.cli.console import Console
from rpegc.cli.progress import SearchWatch, best, improvement, live, watching
from tests.rpegc.conftest import CASES
from tests.rpegc.fakes import Plan

ROOT = Path(__file__).parents[2]
PROGRESS = Progress(
    method="sa",
    evaluations=500,
    cache_hits=3,
    budget=2000,
    seconds=2.0,
    structure=2,
    structures=4,
    best=1200.0,
    greedy=1000.0,
    concurrent=1100.0,
)


class Searching(Plan):
    name = "search"


def test_what_is_said() -> None:
    assert improvement(PROGRESS) == (
        "after 500 evaluations: score 1200 (+20.0 % over greedy, +9.1 % over concurrent)"
    )
    assert live(PROGRESS) == (
        "sa: 6 s left, score 1200, 250/s, +20.0 % over greedy, +9.1 % over concurrent, "
        "500 of 2000 evaluations in structure 2 of 4"
    )
    assert best(replace(PROGRESS, best=0.0)) == "no plan fits yet"


def test_a_search_by_time_tells_the_time_left_and_the_gap() -> None:
    timed = replace(PROGRESS, budget=None, time_limit=10.0, step_s=4.0, lower_bound_s=3.0, structures=1)
    assert live(timed) == (
        "sa: 8 s left, score 1200, at most 25.0 % to gain, 250/s, "
        "+20.0 % over greedy, +9.1 % over concurrent, 500 evaluations"
    )


def test_what_is_nearer_ends_the_search() -> None:
    assert PROGRESS.seconds_left == 6
    assert replace(PROGRESS, time_limit=5.0).seconds_left == 3
    assert replace(PROGRESS, time_limit=60.0).seconds_left == 6
    assert replace(PROGRESS, time_limit=1.0).seconds_left == 0
    assert replace(PROGRESS, budget=None).seconds_left is None


def test_only_improvements_are_told_away_from_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    observer = SearchWatch(Console())
    assert observer.watch.on_progress is not None
    for _ in range(3):
        observer.watch.on_progress(PROGRESS)
    assert capfd.readouterr().err.count("\n") == 1
    assert SearchWatch(Console(quiet=True)).watch.on_progress is None


def test_ctrl_c_before_the_search_quits() -> None:
    with pytest.raises(KeyboardInterrupt):
        SearchWatch(Console()).interrupt(signal.SIGINT, None)


def test_the_first_ctrl_c_asks_and_the_second_quits(capfd: pytest.CaptureFixture[str]) -> None:
    observer = SearchWatch(Console())
    observer.before(Searching())
    observer.interrupt(signal.SIGINT, None)
    assert observer.asked
    assert "the best plan so far will be written" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        observer.interrupt(signal.SIGINT, None)


def test_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with watching(Console()) as observer:
        assert signal.getsignal(signal.SIGINT) == observer.interrupt
    assert signal.getsignal(signal.SIGINT) == before


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    value = json.loads((CASES / "decided" / "01-ppo-sync-colocated-one-layout.json").read_text())
    del value["expected"], value["fields"], value["plan"]
    (tmp_path / "case.json").write_text(json.dumps(value))
    return subprocess.Popen(
        [sys.executable, "-c", "from rpegc.cli import main; main()", "case.json", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_interrupted_search_writes_its_best_plan(tmp_path: Path) -> None:
    process = start(tmp_path, "--budget", "100000000", "--json", "-o", "plan.exe.json")
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        assert "evaluations" in first
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "stopped early" in err
    found = json.loads(out)
    assert (found["outcome"], found["termination"]) == ("ok", "interrupted")
    assert decode_stage((tmp_path / "plan.exe.json").read_bytes())[0].id == found["plan_id"]


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        process = start(tmp_path, "--budget", "100", "--seed", "5", "-q", "-o", name)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
