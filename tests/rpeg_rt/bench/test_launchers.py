"""A machine measured to the end by the tasks of real launchers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ir_schema.samples import Samples, decode_samples
from tests.rpeg_rt.test_launching import ROOT
from tests.rpeg_rt.test_slurm import cluster

__all__ = ["cluster"]  # a fixture

PATIENCE = 1500.0

pytestmark = pytest.mark.slow


def measured(launcher: list[str], directory: Path, environment: dict[str, str]) -> Samples:
    """The samples of a machine that a launcher's tasks have taken."""
    out = directory / "samples.json"
    command = [*launcher, "-m", "rpeg_rt", "bench", "machine", "--quick", "-o", str(out)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"XDG_CONFIG_HOME": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    samples = decode_samples(out.read_bytes())
    assert samples.memory is not None
    measures = (samples.products, samples.copies, samples.layers, samples.transfers, samples.operators)
    for sample in (s for part in measures for s in part):
        assert sample.seconds
        assert all(s > 0 for s in sample.seconds)
    assert all(measures)
    assert {o.case.role for o in samples.operators} == {"generation", "inference", "training"}
    return samples


def test_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    samples = measured(torchrun, tmp_path, dict(os.environ))
    assert (samples.environment.launcher, samples.environment.workers) == ("torchrun", (2,))
    assert {(t.tier, t.participants) for t in samples.transfers} == {("intra", 2)}
    assert {p.workers for p in samples.products} == {1, 2}


def test_slurm(cluster: dict[str, str], tmp_path: Path) -> None:
    srun = ["srun", "--kill-on-bad-exit=1", "-N2", "-n4", sys.executable]
    samples = measured(srun, tmp_path, cluster)
    e = samples.environment
    assert (e.launcher, e.machines, sum(e.workers)) == ("Slurm", ("node0", "node1"), 4)
    assert {t.tier for t in samples.transfers} == {"intra", "inter"}
    assert {(t.participants, t.per_node) for t in samples.transfers if t.tier == "inter"} == {
        (2, 1),
        (4, max(e.workers)),
    }
