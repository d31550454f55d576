"""Faults of every kind at random moments: a documented end, no process left, nothing lost that was saved."""

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from rpeg_rt.cli import main
from rpeg_rt.snapshots.directory import has_snapshots, newest
from rpeg_rt.verify import verify_file
from tests.rpeg_rt.plans import colocated, executable, place, problem, write_plan
from tests.rpeg_rt.test_faults import descendants, left_after, listens_for, rpeg_rt

pytestmark = pytest.mark.slow

STEPS = 8
PATIENCE = 240.0
MODELS = ("actor", "critic")
ENDS = {
    "a killed worker": {4},
    "a killed spawner": {4},
    "a killed verifier": {0, 6},
    "a killed controller": {-signal.SIGKILL},
    "a stopped worker": {0, 5},
    "SIGINT": {130},
    "SIGTERM": {130},
    "SIGUSR1": {130},
}
"""Exit codes that a fault may lead to; 0 besides, where it comes after the end."""


@dataclass(frozen=True)
class Whole:
    """A plan, the weights that its run ends with where nothing disturbs it, and how long that takes."""

    plan: Path
    weights: dict[str, bytes]
    seconds: float


def weights(directory: Path) -> dict[str, bytes]:
    """The trained models that are there."""
    files = {model: directory / model / "model.safetensors" for model in MODELS}
    return {model: file.read_bytes() for model, file in files.items() if file.exists()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    base = tmp_path_factory.mktemp("whole")
    made = problem(staleness=1, quantiles=((0.5, 4), (1.0, 8)), device_space=(1, 1, 2))
    plan = write_plan(base, executable(made, colocated(dp=2, ref_inf=place("0"), critic_train=place("1"))))
    began = time.monotonic()
    assert main([str(plan), "--steps", str(STEPS), "--save", str(base / "run"), "--quiet"]) == 0
    return Whole(plan, weights(base / "run"), time.monotonic() - began)


def inflict(fault: str, controller: int, dice: random.Random) -> None:
    """Do it, if there is something to do it to."""
    below = descendants(controller)
    spawner = [pid for pid, command in below.items() if "rpeg_rt.spawn" in command]
    workers = [pid for pid in spawner[1:] if pid in below]
    verifiers = [pid for pid, command in below.items() if "rpeg_rt.judge" in command]
    victims, number = {
        "a killed worker": (workers, signal.SIGKILL),
        "a killed spawner": (spawner[:1], signal.SIGKILL),
        "a killed verifier": (verifiers, signal.SIGKILL),
        "a stopped worker": (workers, signal.SIGSTOP),
        "a killed controller": ([controller], signal.SIGKILL),
    }.get(fault) or ([controller], signal.Signals[fault])
    if victims:
        os.kill(dice.choice(victims), number)


@pytest.mark.parametrize("fault", ENDS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fault_at_any_moment(whole: Whole, tmp_path: Path, fault: str, seed: int) -> None:
    dice = random.Random(f"{fault} {seed}")
    run, trace = tmp_path / "run", tmp_path / "trace.jsonl"
    saving = ("--steps", STEPS, "--save", run, "--save-every", 2)
    process = rpeg_rt(whole.plan, *saving, "--trace", trace, "--node-seconds", 15)
    everyone: set[int] = set()
    try:
        while not listens_for(process, signal.SIGTERM):
            assert process.poll() is None
        time.sleep(dice.uniform(0, whole.seconds))
        everyone |= descendants(process.pid).keys()
        if process.poll() is None:
            inflict(fault, process.pid, dice)
        _, text = process.communicate(timeout=PATIENCE)
    finally:
        everyone |= descendants(process.pid).keys()
        process.kill()
        process.communicate()
    code = process.returncode
    assert code in ENDS[fault] | {0}, text
    assert "Traceback" not in text
    assert code <= 0 or text.splitlines()[-1].startswith(f"rpeg-rt: exit code {code} ("), text
    assert left_after(list(everyone), 10) == []
    if code >= 0 and trace.exists() and trace.stat().st_size:
        verdict = verify_file(trace, whole.plan)
        assert (verdict.violations, verdict.exit_code) == ([], code)

    for model, found in weights(run).items():  # whole, or not there
        assert found == whole.weights[model]
        shutil.rmtree(run / model)
    if run.exists() and has_snapshots(run):
        place, manifest = newest(run, pytest.fail)
        if manifest.step == STEPS:
            shutil.rmtree(place)
    resumed = [str(whole.plan), *map(str, saving), "--resume", str(run), "--quiet"]
    assert main(resumed) == 0
    assert weights(run) == whole.weights
