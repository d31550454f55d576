"""Every golden case writes what is kept of it."""

from pathlib import Path

import pytest

from rpegc.cli.group import run
from tests import goldens


def name_of(case: Path) -> str:
    return case.relative_to(goldens.GOLDEN).as_posix()


@pytest.mark.parametrize("case", goldens.cases(), ids=name_of)
def test_golden(
    case: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    files = goldens.written(case, tmp_path, run, lambda: tuple(capfd.readouterr()))
    if request.config.getoption("--bless"):
        goldens.bless(case, files)
        return
    found = goldens.mismatch(case, files)
    if found:
        command = f"python -m pytest tests/test_goldens.py --bless -k '{name_of(case)}'"
        pytest.fail(f"{found}\n\nif this is what should be, bless it:\n  {command}", pytrace=False)


def test_every_golden_file_belongs_to_a_case() -> None:
    assert not goldens.orphans()


@pytest.fixture
def case(tmp_path: Path) -> Path:
    folder = tmp_path / "golden" / "one"
    folder.mkdir(parents=True)
    (folder / "cmd").write_text("rpegc --version\n")
    return folder


def check(case: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    folder.mkdir()
    return goldens.mismatch(case, goldens.written(case, folder, run, lambda: tuple(capfd.readouterr())))


def test_what_is_not_kept_fails_until_blessed(
    case: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "missing golden: stdout" in check(case, tmp_path / "a", capfd)
    goldens.bless(case, {"stdout": b"rpegc, version 0.0.0\n", "exit": b"0\n", "gone": b""})
    found = check(case, tmp_path / "b", capfd)
    assert "orphaned golden: gone" in found
    assert "-rpegc, version 0.0.0" in found
    (tmp_path / "c").mkdir()
    goldens.bless(case, goldens.written(case, tmp_path / "c", run, lambda: tuple(capfd.readouterr())))
    assert check(case, tmp_path / "d", capfd) == ""
    assert not (case / "gone").exists()


def test_files_outside_a_case_are_orphans(case: Path) -> None:
    root = case.parent
    assert not goldens.orphans(root)
    (root / "stray.json").write_text("{}")
    assert goldens.orphans(root) == [root / "stray.json"]


def test_blessing_is_refused_under_ci(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.conftest import pytest_configure

    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(pytestconfig.option, "bless", True)
    with pytest.raises(pytest.UsageError, match="refused under CI"):
        pytest_configure(pytestconfig)
