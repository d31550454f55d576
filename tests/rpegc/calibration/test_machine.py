"""A hardware file from samples: planted machines are found again, broken measurements are said."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calib.hardware import load_hardware
from ir_schema.base import Role
from ir_schema.hardware import AlphaBeta, Dispatch, Hardware, Tiers
from ir_schema.model import ModelSpec
from ir_schema.problem import Placement, Workload
from ir_schema.samples import (
    VERSION,
    CopySample,
    Environment,
    LayerSample,
    Memory,
    OperatorCase,
    OperatorSample,
    ProductSample,
    Samples,
    TransferSample,
    encode_samples,
)
from rpegc.calibration.cli import run
from rpegc.calibration.machine import calibrate
from rpegc.calibration.operators import forward_flops, predict
from rpegc.calibration.verdict import default_base

replace = msgspec.structs.replace
BASE = load_hardware("cpu-2core")


def everywhere(alpha: float, beta: float) -> Tiers:
    link = AlphaBeta(alpha=alpha, beta=beta)
    return Tiers(intra=link, inter=link, rack=link)


PLANTED = replace(
    BASE, peak_flops=5e10, product_flops=8e10, gamma_M=20.0, gamma_K=25.0, startup_seconds=8e-6,
    memory_bandwidth=1.2e10, kernel_seconds=0.0, collective=everywhere(4e-4, 1.2e-9),
    all_gather=everywhere(3e-4, 1e-9), reduce_scatter=everywhere(6e-4, 1.6e-9),
    point_to_point=everywhere(1.5e-4, 5e-10), score_bytes=100.0, node_processors=2.0, contention=0.2,
    message_work=0.5,
    wakeup_seconds=3e-4, dispatch=Dispatch(decoding=1.2e-5, forward=2.4e-5, training=3e-5),
)  # fmt: skip


def synthetic(hardware: Hardware, noise: float = 0.0, seed: int = 0) -> Samples:
    """What a machine as `hardware` says would measure, each repetition off by a random factor."""
    random = np.random.default_rng(seed)

    def repeated(seconds: float) -> tuple[float, ...]:
        return tuple(float(x) for x in seconds * np.exp(noise * random.standard_normal(9)))

    def product(rows: int, side: int) -> ProductSample:
        flops = 2.0 * rows * side * side * (1 + hardware.gamma_M / rows) * (1 + hardware.gamma_K / side)
        moved = 4.0 * (2 * rows * side + side * side)
        seconds = hardware.startup_seconds + max(flops / hardware.product_flops, moved / 2.4e10)
        return ProductSample(
            rows=rows, columns=side, inner=side, width=4, workers=1, seconds=repeated(seconds)
        )

    def moved(primitive: str, tiers: Tiers, p: int, nbytes: int) -> TransferSample:
        rounds = {"all_reduce": 2, "point_to_point": 0}.get(primitive, 1)
        crowd = max(1.0, p / hardware.node_processors)
        steps, share = (rounds * (p - 1), rounds * (p - 1) / p) if rounds else (1, 1.0)
        seconds = crowd * (steps * tiers.intra.alpha + share * nbytes * tiers.intra.beta)
        return TransferSample(
            primitive=primitive, tier="intra", participants=p, per_node=p, nbytes=nbytes,  # type: ignore[arg-type]
            seconds=repeated(seconds),
        )  # fmt: skip

    cases = list(operators())
    times = [predict(case, hardware).seconds for case in cases]
    sizes = [1 << k for k in range(8, 25, 2)]
    kinds = {
        "all_reduce": hardware.collective,
        "all_gather": hardware.all_gather,
        "reduce_scatter": hardware.reduce_scatter,
    }
    transfers = [moved(k, t, p, n) for k, t in kinds.items() if t for p in (2, 4) for n in sizes]
    transfers += [moved("point_to_point", hardware.point_to_point, 2, n) for n in sizes]
    return Samples(
        version=VERSION,
        environment=Environment(
            started="2026-01-01T00:00:00+00:00", machines=("here",), processor="x", processors=2,
            accelerator=None, backend="gloo", launcher="", workers=(4,), threads=1, load=0.1, software={},
        ),
        memory=Memory(total_bytes=4 * 10**9, idle_bytes=3 * 10**8),
        products=tuple(
            product(r, s)
            for r, s in [*((1 << k, 512) for k in range(10)), *((512, 1 << k) for k in range(4, 9))]
        ),
        copies=(CopySample(nbytes=2**26, workers=1, seconds=repeated(2**26 / hardware.memory_bandwidth)),),
        layers=(LayerSample(hidden=512, width=4, sequences=8, tokens=64, workers=1, seconds=repeated(6e-4)),),
        transfers=tuple(transfers),
        operators=tuple(
            OperatorSample(
                case=case, seconds=repeated(t), busy_seconds=(t,), tensor_bytes=10**7, process_bytes=5 * 10**8
            )
            for case, t in zip(cases, times, strict=True)
        ),
    )  # fmt: skip


def operators() -> list[OperatorCase]:
    """Every role of two models in a few layouts, and a forward pass of a large one."""

    def case(role: Role, size: tuple[int, int], layout: tuple[int, int, int], batch: int) -> OperatorCase:
        layers, hidden = size
        dp, pp, tp = layout
        model = ModelSpec(
            layers=layers, hidden=hidden, ffn=3 * hidden, vocabulary=4 * hidden, head="lm",
            bytes_per_parameter=4, attention_heads=hidden // 32, kv_heads=hidden // 32,
        )  # fmt: skip
        placement = Placement(
            origin=(0, 0, 0), extent=(1, 1, dp * pp * tp), data_parallel=dp, pipeline_parallel=pp,
            tensor_parallel=tp, microbatches=2,
        )  # fmt: skip
        workload = Workload(prompts=batch, rollouts=1, prompt_length=2 * batch, response_length=2 * batch)
        return OperatorCase(role=role, model=model, workload=workload, placement=placement)

    roles: tuple[Role, ...] = ("generation", "inference", "training")
    layouts = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (4, 1, 1))
    found = [case(r, m, x, b) for r in roles for m in ((2, 64), (6, 128)) for x in layouts for b in (8, 32)]
    return [*found, case("inference", (4, 512), (1, 1, 1), 64)]


SAMPLES = synthetic(PLANTED)


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


def scaled(part: str, factor: float) -> Callable[[Samples], Samples]:
    def change(samples: Samples) -> Samples:
        told = tuple(replace(s, seconds=tuple(factor * t for t in s.seconds)) for s in getattr(samples, part))
        return replace(samples, **{part: told})

    return change


def each(
    part: str, seconds: Callable[[int, tuple[float, ...]], tuple[float, ...]]
) -> Callable[[Samples], Samples]:
    def change(samples: Samples) -> Samples:
        told = tuple(replace(s, seconds=seconds(i, s.seconds)) for i, s in enumerate(getattr(samples, part)))
        return replace(samples, **{part: told})

    return change


def reversed_sizes(samples: Samples) -> Samples:
    times = [s.seconds for s in samples.transfers][::-1]
    return replace(
        samples,
        transfers=tuple(replace(s, seconds=t) for s, t in zip(samples.transfers, times, strict=True)),
    )


BROKEN = {
    "products in milliseconds": scaled("products", 1e3),
    "products in microseconds": scaled("products", 1e-6),
    "copies in milliseconds": scaled("copies", 1e3),
    "transfers in microseconds": scaled("transfers", 1e6),
    "operators in milliseconds": scaled("operators", 1e3),
    "operators in microseconds": scaled("operators", 1e-6),
    "all of them in milliseconds": lambda s: scaled("products", 1e3)(
        scaled("operators", 1e3)(scaled("transfers", 1e3)(scaled("copies", 1e3)(s)))
    ),
    "constant products": each("products", lambda _, s: (1e-3,) * len(s)),
    "constant transfers": each("transfers", lambda _, s: (1e-3,) * len(s)),
    "constant operators": each("operators", lambda _, s: (0.1,) * len(s)),
    "falling transfers": reversed_sizes,
    "random operators": each("operators", lambda i, s: tuple(x * (0.1, 10.0)[i % 2] for x in s)),
    "unsteady repetitions": each(
        "operators", lambda i, s: tuple(x * (0.2, 1.0, 5.0)[k % 3] for k, x in enumerate(s))
    ),
    "no operators": lambda s: replace(s, operators=()),
    "no training": lambda s: replace(
        s, operators=tuple(o for o in s.operators if o.case.role != "training")
    ),
    "no products": lambda s: replace(s, products=()),
    "one product": lambda s: replace(s, products=s.products[:1]),
    "no copies": lambda s: replace(s, copies=()),
    "a memory that is full": lambda s: replace(s, memory=Memory(total_bytes=10**9, idle_bytes=10**9)),
    "no memory": lambda s: replace(s, memory=None),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_measurements_are_said_and_fail_when_strict(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rpegc.calibration.parts._ROUNDS", 4)
    Path("samples.json").write_bytes(encode_samples(BROKEN[what](SAMPLES)))
    arguments = ["run", "--samples", "samples.json", "-o", "mine.json"]
    assert run([*arguments, "--strict"]) == 1
    said = capfd.readouterr().err
    assert any(code in said for code in ("W940", "W942", "W943", "W944")), said
    assert "Traceback" not in said
    assert "verdict: good" not in said
    assert not Path("mine.json").exists()


@pytest.mark.parametrize("seconds", [(-1.0,), (0.0,), (float("nan"),), ()])
def test_times_that_cannot_be_are_refused(seconds: tuple[float, ...], tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    path.write_bytes(encode_samples(each("products", lambda *_: seconds)(SAMPLES)))
    assert run(["run", "--samples", str(path), "-o", str(tmp_path / "mine.json"), "-q"]) == 1


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
    for extra in (["--quick"], ["--keep-samples", "x.json"]):
        assert run(["run", "--samples", "samples.json", "-o", str(tmp_path / "mine.json"), *extra]) == 2
        assert "E932" in capfd.readouterr().err
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
    output, kept = tmp_path / "mine.json", tmp_path / "samples.json"
    arguments = ["--quick", "--workers", "2", "-o", str(output), "--keep-samples", str(kept)]
    assert run(["run", *arguments]) == 0
    assert "verdict:" in capfd.readouterr().err
    h = load_hardware(str(output))
    assert h.dispatch is not None
    assert h.node_processors > 0
    assert 0 < h.runtime_reserve < 0.9
    assert run(["run", "--samples", str(kept), "-o", str(tmp_path / "again.json"), "-q"]) == 0
    again = load_hardware(str(tmp_path / "again.json"))
    assert replace(again, provenance=None) == replace(h, provenance=None)
