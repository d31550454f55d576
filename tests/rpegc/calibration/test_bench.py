"""How `rpeg-rt bench` is started and how its sample files are read."""

import sys
from pathlib import Path

import msgspec
import pytest

from ir_schema.diagnostics import DiagnosticError
from ir_schema.samples import VERSION, CopySample, Environment, Samples, encode_samples
from rpegc.calibration import bench
from rpegc.calibration.samples import load_samples

ENVIRONMENT = Environment(
    started="2026-01-01T00:00:00+00:00", machines=("here",), processor="x", processors=2, accelerator=None,
    backend="gloo", launcher="none", workers=(2,), threads=1, load=0.0, software={},
)  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "serves"),
    [
        ({}, False),
        ({"RANK": "1"}, False),  # left over from something else
        ({"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}, False),
        ({"TORCHELASTIC_RUN_ID": "none", "RANK": "3"}, True),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, False),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, True),
    ],
)
def test_all_tasks_but_the_first_only_serve(environment: dict[str, str], serves: bool) -> None:
    assert bench.serves(environment) is serves


def test_what_fails_is_told_with_its_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DiagnosticError, match="`rpeg-rt bench operators` failed with exit code 2"):
        bench.measure("operators", str(tmp_path / "out.json"), [str(tmp_path / "no_grid.json")])
    assert "cannot read the grid" in capfd.readouterr().err


def test_an_interrupted_measurement_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 130\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(KeyboardInterrupt):
        bench.measure("machine", "out.json", [])


@pytest.mark.parametrize("seconds", [(), (0.0,), (1.0, -1.0), (float("nan"),)])
def test_times_that_cannot_be_are_refused(seconds: tuple[float, ...], tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    good = CopySample(nbytes=8, workers=1, seconds=(1.0,))
    bad = msgspec.structs.replace(good, seconds=seconds)
    path.write_bytes(encode_samples(Samples(version=VERSION, environment=ENVIRONMENT, copies=(good,))))
    assert load_samples(str(path)).copies == (good,)
    path.write_bytes(encode_samples(Samples(version=VERSION, environment=ENVIRONMENT, copies=(good, bad))))
    told = r"copies\[1\]" if seconds == seconds else "not a sample file"  # NaN is null in JSON
    with pytest.raises(DiagnosticError, match=told):
        load_samples(str(path))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 9}', "\xff"])
def test_what_is_no_sample_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DiagnosticError, match="not a sample file") as found:
        load_samples(str(path))
    assert found.value.diagnostics[0].code == "E951"
