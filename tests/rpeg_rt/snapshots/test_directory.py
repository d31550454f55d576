"""A snapshot is there whole or not at all, and what is not whole is named and passed over."""

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from rpeg_rt.failure import FileError
from rpeg_rt.protocol import Frame, Keep, Kept
from rpeg_rt.realise import Realisation
from rpeg_rt.snapshots.directory import begin, finish, newest, place_of, refuse_others
from rpeg_rt.snapshots.manifest import MANIFEST, VERSION, Manifest, Piece, Trained
from rpeg_rt.snapshots.saver import Saver, boundary
from tests.rpeg_rt.plans import colocated, executable, problem


def leave(directory: Path, step: int, keep: int = 9) -> Path:
    """A snapshot whose two files say of which step they are."""
    part = begin(directory, step)
    files = {}
    for name in ("a", "b"):
        data = f"{name} {step}\n".encode() * 5000
        (part / name).write_bytes(data)
        files[name] = Piece(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    manifest = Manifest(
        version=VERSION,
        step=step,
        plan="p",
        seed=0,
        settings={},
        models={"m": Trained(versions=(step,), updates=step)},
        memory={},
        files=files,
    )
    return finish(part, manifest, keep)


def found(directory: Path) -> tuple[int, list[str]]:
    """Step of the newest whole snapshot, and what was said on the way to it."""
    said: list[str] = []
    _, manifest = newest(directory, said.append)
    return manifest.step, said


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (2, 4, 10, 100000000):
        leave(tmp_path, step, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000010", "step-100000000"]
    assert found(tmp_path) == (100000000, [])


def flip(place: Path) -> None:
    data = bytearray((place / "b").read_bytes())
    data[1234] ^= 1
    (place / "b").write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit": (flip, "the content of b was changed"),
    "cut off": (lambda p: os.truncate(p / "a", 100), "a has 100 bytes, not"),
    "a file away": (lambda p: (p / "a").unlink(), "a: No such file"),
    "no manifest": (lambda p: (p / MANIFEST).unlink(), "manifest.json: No such file"),
    "half a manifest": (lambda p: os.truncate(p / MANIFEST, 50), "manifest.json: "),
    "renamed": (lambda p: p.rename(p.with_name("step-00000009")), "manifest.json speaks of step 8"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_named_and_the_one_before_is_taken(tmp_path: Path, damage: str) -> None:
    leave(tmp_path, 4)
    does, says = DAMAGES[damage]
    does(leave(tmp_path, 8))
    step, (said,) = found(tmp_path)
    assert step == 4
    assert says in said
    assert "is damaged" in said
    assert said.endswith("; falling back to the one before")
    does(place_of(tmp_path, 4)) if damage != "renamed" else flip(place_of(tmp_path, 4))
    with pytest.raises(FileError, match="none of the 2 snapshots"):
        found(tmp_path)


def test_a_damaged_one_is_replaced_when_the_run_comes_there_again(tmp_path: Path) -> None:
    leave(tmp_path, 4)
    flip(leave(tmp_path, 8))
    leave(tmp_path, 6, keep=2)
    assert found(tmp_path)[0] == 6
    assert place_of(tmp_path, 4).exists()
    leave(tmp_path, 8, keep=2)
    assert found(tmp_path) == (8, [])
    assert not place_of(tmp_path, 4).exists()


def test_directories_without_snapshots_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="has no snapshot"):
        found(tmp_path)
    with pytest.raises(FileError, match="No such file"):
        found(tmp_path / "absent")
    refuse_others(tmp_path / "absent", None)
    leave(tmp_path, 1)
    refuse_others(tmp_path, tmp_path)
    with pytest.raises(FileError, match="has snapshots of a run already; go on with it by --resume"):
        refuse_others(tmp_path, None)


def kill_while_saving(directory: Path, seconds: float) -> None:
    """A process that leaves one snapshot after the other is killed after some time."""
    child = os.fork()
    if child == 0:
        last = max((int(p.name[5:]) for p in directory.glob("step-*")), default=0)
        while True:
            last += 1
            leave(directory, last, keep=2)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize("kills", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_no_kill_at_any_moment_loses_a_finished_snapshot(tmp_path: Path, kills: int) -> None:
    dice = random.Random(kills)
    leave(tmp_path, 1)
    before = 1
    for _ in range(kills):
        kill_while_saving(tmp_path, dice.uniform(0.001, 0.06))
        step, said = found(tmp_path)
        assert step >= before
        assert not said
        before = step
    assert before > 5
    leave(tmp_path, before + 1, keep=2)
    assert not list(tmp_path.glob(".step-*"))


def saver(directory: Path) -> Saver:
    realisation = Realisation(executable(problem(), colocated(dp=2)))
    return Saver(realisation, "p", 3, directory, 1, 2)


def answers(failure: str | None) -> Callable[[Mapping[int, Keep]], Mapping[int, Frame]]:
    """Workers that write a file each, and the last of them fails if there is a `failure`."""

    def ask(requests: Mapping[int, Keep]) -> Mapping[int, Frame]:
        found: dict[int, Frame] = {}
        for rank, request in requests.items():
            (Path(request.path) / f"{rank}").write_bytes(b"")
            piece = Piece(bytes=0, sha256=hashlib.sha256().hexdigest())
            found[rank] = Kept({f"{rank}": piece}, {"actor": 1, "critic": 1}, {"actor_train": {"x": 0.1}})
        return found | ({1: Kept({}, {}, {}, failure)} if failure else {})

    return ask


def test_a_snapshot_that_fails_leaves_the_one_before_and_no_rest(tmp_path: Path) -> None:
    assert saver(tmp_path).take(1, answers(None), time.monotonic_ns).failure is None
    taken = saver(tmp_path).take(2, answers("No space left on device"), time.monotonic_ns)
    assert taken.failure == "No space left on device"
    assert taken.versions == {"actor": (2,), "critic": (2,)}
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    _, manifest = newest(tmp_path, pytest.fail)
    assert manifest.memory == {"actor_train": {"x": 0.1}}
    assert sorted(manifest.files) == ["0", "1"]
    assert (
        saver(tmp_path / "absent").take(1, answers(None), time.monotonic_ns).failure
        == "No such file or directory"
    )


def test_boundaries() -> None:
    assert [boundary(k, 3, 8) for k in range(8)] == [3, 3, 3, 6, 6, 6, 8, 8]
    assert boundary(0, None, 8) == 8
