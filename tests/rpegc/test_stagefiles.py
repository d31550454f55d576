"""Files: all or nothing, and never more than asked for."""

import os
import stat
from pathlib import Path

import pytest

from rpegc.failure import UsageFailure
from rpegc.stagefiles import check_writable, read_bytes, write_bytes


def test_writing_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_bytes(str(target), b"one")
    write_bytes(str(target), b"two")
    assert target.read_bytes() == b"two"
    assert [p.name for p in target.parent.iterdir()] == ["a.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.json"
    target.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageFailure, match="no space left on device"):
        write_bytes(str(target), b"new")
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    for name, why in (("", "is a directory"), ("no/a.json", "there is no directory")):
        with pytest.raises(UsageFailure, match=why):
            check_writable(str(tmp_path / name))
    check_writable(str(tmp_path / "a.json"))
    check_writable(os.devnull)


def test_permissions_follow_the_umask_and_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    before = os.umask(0o027)
    try:
        write_bytes(str(target), b"one")
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    target.chmod(0o600)
    write_bytes(str(target), b"two")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "a.json", tmp_path / "b.json"
    target.write_bytes(b"one")
    link.symlink_to(target)
    write_bytes(str(link), b"two")
    assert link.is_symlink()
    assert target.read_bytes() == b"two"


def test_a_device_is_written_to_not_replaced() -> None:
    write_bytes("/dev/null", b"anything")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="cannot write"):
        write_bytes(str(tmp_path), b"x")


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="no such file or directory"):
        read_bytes(str(tmp_path / "none"))
