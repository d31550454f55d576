"""Samples as a machine would measure them of which everything is known."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

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
)
from rpegc.calibration.operators import predict

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


def synthetic(
    hardware: Hardware, noise: float = 0.0, seed: int = 0, *, cases: Sequence[OperatorCase] = (),
    scale: int = 1, **environment: Any,
) -> Samples:  # fmt: skip
    """What a machine as `hardware` says would measure, each repetition off by a random factor; kernels are
    `scale` times as large as those for processors."""
    random = np.random.default_rng(seed)
    around = Environment(
        started="2026-01-01T00:00:00+00:00", machines=("here",), processor="x", processors=2,
        accelerator=None, backend="gloo", launcher="", workers=(4,), threads=1, load=0.1, software={},
    )  # fmt: skip
    around = replace(around, **environment)
    width, bandwidth = (4 if scale == 1 else 2), hardware.memory_bandwidth

    def repeated(seconds: float) -> tuple[float, ...]:
        return tuple(float(x) for x in seconds * np.exp(noise * random.standard_normal(9)))

    def product(rows: int, side: int) -> ProductSample:
        flops = 2.0 * rows * side * side * (1 + hardware.gamma_M / rows) * (1 + hardware.gamma_K / side)
        moved = width * (2.0 * rows * side + side * side)
        seconds = hardware.startup_seconds + max(flops / hardware.product_flops, moved / (2 * bandwidth))
        return ProductSample(
            rows=rows, columns=side, inner=side, width=width, workers=1, seconds=repeated(seconds)
        )

    def moved(primitive: str, tiers: Tiers, p: int, nbytes: int) -> TransferSample:
        rounds = {"all_reduce": 2, "point_to_point": 0}.get(primitive, 1)
        crowd = max(1.0, p / (hardware.node_processors or p))
        steps, share = (rounds * (p - 1), rounds * (p - 1) / p) if rounds else (1, 1.0)
        seconds = crowd * (steps * tiers.intra.alpha + share * nbytes * tiers.intra.beta)
        return TransferSample(
            primitive=primitive, tier="intra", participants=p, per_node=p, nbytes=nbytes,  # type: ignore[arg-type]
            seconds=repeated(seconds),
        )  # fmt: skip

    cases = cases or operators()
    times = [predict(case, hardware).seconds for case in cases]
    sizes = [scale**2 << k for k in range(8, 25, 2)]
    workers = max(around.workers)
    groups = sorted({2, workers}) if workers > 1 else []
    kinds = {
        "all_reduce": hardware.collective,
        "all_gather": hardware.all_gather,
        "reduce_scatter": hardware.reduce_scatter,
    }
    transfers = [moved(k, t, p, n) for k, t in kinds.items() if t for p in groups for n in sizes]
    transfers += [moved("point_to_point", hardware.point_to_point, 2, n) for _ in groups[:1] for n in sizes]
    side = 512 * scale
    shapes = [
        *((1 << k, side) for k in range(side.bit_length())),
        *((side, side >> k) for k in range(5, 0, -1)),
    ]
    return Samples(
        version=VERSION,
        environment=around,
        memory=Memory(total_bytes=4 * 10**9, idle_bytes=3 * 10**8),
        products=tuple(product(rows, side) for rows, side in shapes),
        copies=(CopySample(nbytes=2**26, workers=1, seconds=repeated(2**26 / bandwidth)),),
        layers=(
            LayerSample(
                hidden=side, width=width, sequences=8, tokens=64, workers=1,
                seconds=repeated(10 * width * side * 512 / (1.5 * bandwidth)),
            ),
        ),
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
