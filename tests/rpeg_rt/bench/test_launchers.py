"""Measurements by the tasks of real launchers, to the end."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ir_schema.samples import Grid, Samples, decode_samples
from tests.rpeg_rt.bench.test_measuring import case
from tests.rpeg_rt.test_launching import ROOT
from tests.rpeg_rt.test_slurm import cluster

__all__ = ["cluster"]  # a fixture

pytestmark = pytest.mark.slow

PATIENCE = 1500.0
SRUN = ["srun", "--kill-on-bad-exit=1", "-N2", "-n4", sys.executable]
"""Three tasks on one node, one on the other."""


def measured(
    launcher: list[str], directory: Path, environment: dict[str, str], *arguments: object
) -> Samples:
    """What `rpeg-rt bench` with these arguments writes under a launcher."""
    out = directory / "samples.json"
    command = [*launcher, "-m", "rpeg_rt", "bench", *map(str, arguments), "-o", str(out)]
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
    return decode_samples(out.read_bytes())


def is_whole(samples: Samples) -> None:
    """A machine's samples have everything."""
    assert samples.memory is not None
    parts = (samples.products, samples.copies, samples.layers, samples.transfers, samples.operators)
    assert all(parts)
    for sample in (s for part in parts for s in part):
        assert sample.seconds
        assert all(s > 0 for s in sample.seconds)
    assert {o.case.role for o in samples.operators} == {"generation", "inference", "training"}


def test_a_machine_under_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    samples = measured(torchrun, tmp_path, dict(os.environ), "machine", "--quick")
    is_whole(samples)
    assert (samples.environment.launcher, samples.environment.workers) == ("torchrun", (2,))
    assert {(t.tier, t.participants) for t in samples.transfers} == {("intra", 2)}
    assert {p.workers for p in samples.products} == {1, 2}


def test_a_machine_of_two_nodes_under_slurm(cluster: dict[str, str], tmp_path: Path) -> None:
    samples = measured(SRUN, tmp_path, cluster, "machine", "--quick")
    is_whole(samples)
    e = samples.environment
    assert (e.launcher, e.machines, e.workers) == ("Slurm", ("node0", "node1"), (3, 1))
    intra, inter = (
        {(t.participants, t.per_node) for t in samples.transfers if t.tier == tier}
        for tier in ("intra", "inter")
    )
    assert (intra, inter) == ({(2, 2), (3, 3)}, {(2, 1), (4, 3)})
    assert {p.workers for p in samples.products} == {1, 2, 3}


def test_operators_across_two_nodes_under_slurm(cluster: dict[str, str], tmp_path: Path) -> None:
    one = case("training", 2, 1, 1)
    cases = tuple(replace(one, placement=replace(one.placement, extent=e)) for e in ((1, 1, 2), (1, 2, 1)))
    (tmp_path / "grid.json").write_bytes(msgspec.json.encode(Grid(cases=cases)))
    samples = measured(SRUN, tmp_path, cluster, "operators", tmp_path / "grid.json", "--quick")
    assert tuple(o.case for o in samples.operators) == cases
    for o in samples.operators:
        assert len(o.seconds) == len(o.busy_seconds) >= 3
