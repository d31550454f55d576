"""Machines of other kinds, by the operators that are measured on them: what was planted is found again."""

import pytest

from calib.hardware import load_hardware
from ir_schema.hardware import Dispatch
from rpeg_rt.bench.cases import calibrating, expand
from rpegc.calibration.machine import calibrate
from rpegc.calibration.operators import predict
from rpegc.calibration.verdict import lent, verdict
from tests.rpegc.calibration.planted import PLANTED, replace, synthetic

GPU = replace(
    load_hardware("h100"), launch_seconds=0.0, score_bytes=12.0, wakeup_seconds=5e-5,
    dispatch=Dispatch(decoding=5e-6, forward=8e-6, training=1.1e-5),
)  # fmt: skip
ALONE = {"contention": 0.0, "message_work": 0.0, "wakeup_seconds": 0.0}
MACHINES = {
    "one worker of eight processors": (replace(PLANTED, node_processors=8.0, **ALONE), 1, 8, 1, None),
    "two workers of four threads": (PLANTED, 2, 8, 4, None),
    "eight workers of many processors": (replace(PLANTED, node_processors=64.0), 8, 64, 1, None),
    "a GPU": (replace(GPU, wakeup_seconds=0.0), 1, 64, 1, "NVIDIA H100 80GB HBM3"),
    "eight GPUs": (GPU, 8, 64, 1, "NVIDIA H100 80GB HBM3"),
    "a GPU of which there is no file": (replace(GPU, wakeup_seconds=0.0), 1, 64, 1, "Something new"),
}
QUICK = ("one worker of eight processors", "a GPU", "a GPU of which there is no file")


def close(found: float, planted: float, share: float) -> bool:
    return found == pytest.approx(planted, rel=share, abs=1e-12)


@pytest.mark.parametrize(
    "what", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in MACHINES]
)
def test_planted_machines_are_found_again(what: str) -> None:
    planted, workers, processors, threads, accelerator = MACHINES[what]
    gpu = accelerator is not None
    samples = synthetic(
        planted, 0.03, cases=expand(calibrating(gpu, quick=False), [workers]), scale=8 if gpu else 1,
        processors=processors, threads=threads, workers=(workers,), accelerator=accelerator,
    )  # fmt: skip
    base = lent(samples.environment)
    result = calibrate(samples, base, "mine")
    found = result.hardware
    assert not result.findings
    assert "verdict: good" in verdict(samples, base, result)
    assert ("communication was not measured" in verdict(samples, base, result)) == (workers == 1)
    for field, share in PARAMETERS.items():
        assert close(getattr(found, field), getattr(planted, field), share), field
    for kind in Dispatch.__struct_fields__:
        assert close(getattr(found.dispatch, kind), getattr(planted.dispatch, kind), 0.1), kind
    assert found.node_processors == (0 if gpu else processors / threads)
    assert ("collective.intra" in result.untouched) == (workers == 1)
    if workers > 1:
        assert close(found.all_gather.intra.alpha, planted.all_gather.intra.alpha, 0.1)
        assert close(found.all_gather.intra.beta, planted.all_gather.intra.beta, 0.15)
    limits = found.provenance.limits
    assert bool(limits) == bool(base.provenance.limits)
    assert bool(limits) == (accelerator is not None and "H100" in accelerator)
    told = [predict(o.case, found).seconds / predict(o.case, planted).seconds for o in samples.operators]
    assert sum(abs(t - 1) for t in told) / len(told) < 0.03


PARAMETERS = {
    "product_flops": 0.05, "gamma_M": 0.15, "gamma_K": 0.2, "startup_seconds": 0.15, "memory_bandwidth": 0.05,
    "score_bytes": 0.15, "contention": 0.15, "message_work": 0.2, "wakeup_seconds": 0.2,
}  # fmt: skip
"""How far off each may be found."""
