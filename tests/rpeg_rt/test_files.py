"""Writing files as a whole, and saying before the work that they cannot be written."""

import os
import threading
from pathlib import Path

import pytest

from rpeg_rt.failure import FileError
from rpeg_rt.files import LineFile, check_writable, write_atomically


def test_a_new_file_has_the_permissions_of_any_other_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    for name in ("other", "ours"):
        (tmp_path / name).touch() if name == "other" else write_atomically(tmp_path / name, b"1")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "other").stat().st_mode
    (tmp_path / "ours").chmod(0o640)
    write_atomically(tmp_path / "ours", b"2")
    assert (tmp_path / "ours").stat().st_mode & 0o7777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "ours"]


def test_a_link_leads_to_the_file_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", b"1")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"1"


def test_what_is_no_file_is_written_and_not_replaced(tmp_path: Path) -> None:
    """A pipe here; of a device, such as /dev/null, only root would lose it."""
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    check_writable(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, b"1")
    reader.join(10)
    assert got == [b"1"]
    assert pipe.is_fifo()


def test_lines_to_a_device_are_not_preceded_by_those_that_it_has() -> None:
    file = LineFile(Path("/dev/null"), "metrics", keep=lambda _: True)
    file.write(b"{}\n")
    file.close()


def test_what_cannot_be_written_is_told_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    for path, told in (
        (tmp_path, "it is a directory"),
        (tmp_path / "none" / "file", "there is no directory"),
        (tmp_path / "file" / "file", "there is no directory"),
        (Path("/proc/file"), "cannot write /proc/file"),
    ):
        with pytest.raises(FileError, match=told):
            check_writable(path)
        with pytest.raises(FileError, match="cannot write"):
            write_atomically(path, b"2")
    check_writable(tmp_path / "file")
    check_writable(tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"1"
