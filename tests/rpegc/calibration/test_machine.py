"""A hardware file from samples: planted machines are found again."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calib.hardware import load_hardware
from ir_schema.hardware import Dispatch, Hardware
from ir_schema.samples import (
    Samples,
    encode_samples,
)
from rpegc.calibration.cli import run
from rpegc.calibration.machine import calibrate
from rpegc.calibration.operators import forward_flops, predict
from rpegc.calibration.verdict import default_base
from tests.rpegc.calibration.planted import BASE, PLANTED, SAMPLES, operators, synthetic

replace = msgspec.structs.replace


def found(samples: Samples) -> Hardware:
    return calibrate(samples, BASE, "mine").hardware


def test_a_planted_machine_is_found_again_to_the_rounding() -> None:
    result = calibrate(SAMPLES, BASE, "mine")
    h = result.hardware
    assert not result.findings
    for field in ("product_flops", "gamma_M", "gamma_K", "startup_seconds", "memory_bandwidth", "score_bytes",
                  "contention", "message_work", "wakeup_seconds"):  # fmt: skip
        assert getattr(h, field) == pytest.approx(getattr(PLANTED, field), rel=0.02), field
    for kind in ("decoding", "forward", "training"):
        assert getattr(h.dispatch, kind) == pytest.approx(getattr(PLANTED.dispatch, kind), rel=0.02), kind
    for field in ("collective", "all_gather", "reduce_scatter", "point_to_point"):
        link, planted = getattr(h, field).intra, getattr(PLANTED, field).intra
        assert link.beta == pytest.approx(planted.beta, rel=0.1), field  # from the largest, latency included
        assert link.alpha == pytest.approx(planted.alpha, rel=0.1), field
    assert h.memory_bytes == 4e9
    assert h.runtime_reserve == pytest.approx((5e8 - 1e7) / 4e9, rel=1e-3)
    assert h.node_processors == 2
    assert h.collective.rack == BASE.collective.rack
    provenance = h.provenance
    assert not provenance.nominal
    assert provenance.sources["collective.rack"].startswith("not measured, that of cpu-2core")
    assert provenance.residuals["dispatch.forward"] < 0.01
    assert set(provenance.spread) == {"generation", "inference", "training"}
    assert max(provenance.spread.values()) < 0.01
    assert provenance.medians["all_reduce intra 1024 among 2"] == pytest.approx(
        2 * 4e-4 + 1024 * 1.2e-9, rel=1e-3
    )
    # What whole layers reach is what the forward pass at the largest shape took.
    large = max(
        (o for o in SAMPLES.operators if o.case.role == "inference"), key=lambda o: forward_flops(o.case)
    )
    assert h.peak_flops > forward_flops(large.case) / large.seconds[0]


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    noise=st.floats(0.0, 0.1), seed=st.integers(0, 99), rate=st.floats(2e10, 2e11),
    decoding=st.floats(5e-6, 5e-5), slower=st.floats(1.2, 3.0), wakeup=st.floats(1e-4, 2e-3),
)  # fmt: skip
def test_planted_machines_are_found_under_noise(
    noise: float, seed: int, rate: float, decoding: float, slower: float, wakeup: float
) -> None:
    dispatch = Dispatch(decoding=decoding, forward=slower * decoding, training=slower * decoding)
    planted = replace(PLANTED, product_flops=rate, wakeup_seconds=wakeup, dispatch=dispatch)
    h = found(synthetic(planted, noise, seed))
    assert h.product_flops == pytest.approx(rate, rel=0.05 + noise)
    assert h.dispatch.decoding == pytest.approx(decoding, rel=0.05 + noise)
    assert h.dispatch.forward == pytest.approx(slower * decoding, rel=0.1 + 2 * noise)
    assert h.wakeup_seconds == pytest.approx(wakeup, rel=0.15 + 2 * noise)
    cases = operators()
    off = [abs(predict(c, h).seconds / predict(c, planted).seconds - 1) for c in cases]
    assert np.mean(off) < 0.02 + noise


def test_samples_make_a_file_with_plots_and_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("samples.json").write_bytes(encode_samples(SAMPLES))
    arguments = ["run", "--samples", "samples.json", "-o", "mine.json", "--strict", "--plots", "fits"]
    assert run(arguments) == 0
    said = capfd.readouterr().err
    assert "verdict: good" in said
    assert "not measured, taken from cpu-2core: collective.inter" in said
    mine = load_hardware("./mine.json")
    assert mine.provenance.name == "mine"
    drawn = {p.name for p in Path("fits").iterdir()}
    assert {"products-rows.png", "collective-intra-2.png", "operators-training.png"} <= drawn
    assert run(["show", "mine.json"]) == 0
    assert "dispatch.decoding" in capfd.readouterr().out
    assert run(["diff", "cpu-2core", "mine.json"]) == 1
    assert "contention" in capfd.readouterr().out


def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for extra in (["--quick"], ["--keep-samples", "x.json"], ["--operators", "x.json"]):
        assert run(["run", "--samples", "samples.json", "-o", str(tmp_path / "mine.json"), *extra]) == 2
        assert "E932" in capfd.readouterr().err
    for name in ("--keep-samples", "--operators"):
        assert run(["run", "-o", str(tmp_path / "one.json"), name, str(tmp_path / "one.json")]) == 2
        assert "are one file" in capfd.readouterr().err
    assert run(["run"]) == 2


@pytest.mark.parametrize(
    ("accelerator", "base"),
    [(None, "cpu-2core"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100-80"),
     ("NVIDIA GH200 480GB", "gh200"), ("NVIDIA H200", "h200"), ("Something", "h100")],
)  # fmt: skip
def test_what_lends_the_rest_follows_from_the_gpu(accelerator: str | None, base: str) -> None:
    assert default_base(replace(SAMPLES.environment, accelerator=accelerator)) == base


@pytest.mark.slow
def test_a_real_machine_is_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output, kept, operators = (str(tmp_path / f"{name}.json") for name in ("mine", "samples", "operators"))
    arguments = ["--quick", "--workers", "2", "-o", output, "--keep-samples", kept, "--operators", operators]
    assert run(["run", *arguments]) == 0
    assert "verdict:" in capfd.readouterr().err
    h = load_hardware(output)
    assert h.dispatch is not None
    assert h.node_processors > 0
    assert 0 < h.runtime_reserve < 0.9
    assert run(["run", "--samples", kept, "-o", str(tmp_path / "again.json"), "-q"]) == 0
    again = load_hardware(str(tmp_path / "again.json"))
    assert replace(again, provenance=None) == replace(h, provenance=None)
    # Their models calibrated nothing, so both can be compared.
    assert run(["validate", output, "--samples", operators, "--json"]) == 0
