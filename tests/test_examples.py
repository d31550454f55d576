"""Every example compiles into an executable that is sound; the effort is small to keep the tests quick."""

from pathlib import Path

import pytest

from ir_schema.envelope import decode_stage
from ir_schema.stages import Executable
from rpegc.cli.group import run

PIPELINE = "verify,search{budget=300,no_polish=true},unroll,lower,cost,schedule,assemble"
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.rpeg")), ids=lambda p: p.stem)
def test_an_example_compiles(path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.exe.json"
    code = run([str(path), "-p", PIPELINE, "--verify-each", "-q", "-o", str(out)])
    assert code == 0, capfd.readouterr().err
    _, body = decode_stage(out.read_bytes())
    assert isinstance(body, Executable)
    assert body.prediction.score.memory_feasible


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.rpeg")), ids=lambda p: p.stem)
def test_an_example_is_written_canonically(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["fmt", "--check", str(path)]) == 0, capfd.readouterr().err
