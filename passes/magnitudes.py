"""Upper limits of what a problem may ask for, far beyond any machine or model there is.

A slip of the keyboard (a unit, a few zeros) would otherwise keep the compiler busy for days or overflow the
64-bit integers in which times and bytes are kept.
"""

from collections.abc import Iterator

from ir_schema.base import TIERS
from ir_schema.device import size
from ir_schema.diagnostics import Diagnostic, error
from ir_schema.hardware import Hardware
from ir_schema.problem import Problem

MOST_GPUS = 2**18
MOST_SEQUENCES = 2**20
MOST_TOKENS = 2**24
MOST_BYTES = 2**60
MOST = {
    "options": {"steps": 2**12},
    "workload": {"epochs": 2**16, "minibatches": 2**16},
}
MOST_STALENESS = 2**7
MOST_OF_MODEL = {
    "layers": 2**12,
    "hidden": 2**20,
    "ffn": 2**24,
    "vocabulary": 2**28,
    "bytes_per_parameter": 8,
    "attention_heads": 2**14,
    "kv_heads": 2**14,
    "head_dim": 2**14,
    "learned_positions": 2**28,
}
MOST_OF_EXPERTS = {"routed": 2**14, "ffn": 2**24, "shared_ffn": 2**24, "skew": 2**14}
MOST_SECONDS = 1e5
HARDWARE = {
    "peak_flops": (1e6, 1e24),
    "memory_bandwidth": (1e6, 1e24),
    "memory_bytes": (1.0, float(MOST_BYTES)),
    "gamma_M": (0.0, 1e9),
    "gamma_K": (0.0, 1e9),
    "nongemm_seconds": (0.0, MOST_SECONDS),
    "kernel_seconds": (0.0, MOST_SECONDS),
    "product_flops": (1e6, 1e24),
    "startup_seconds": (0.0, MOST_SECONDS),
    "launch_seconds": (0.0, MOST_SECONDS),
    "score_bytes": (0.0, 1e6),
    "node_processors": (0.0, float(MOST_GPUS)),
    "contention": (0.0, 1e3),
    "message_work": (0.0, 1e3),
    "wakeup_seconds": (0.0, MOST_SECONDS),
}


def check_magnitudes(problem: Problem) -> Iterator[Diagnostic]:
    """E305 for every value beyond its limits."""
    workload = problem.workload
    for section, limits in MOST.items():
        for field, most in limits.items():
            yield from _at_most(getattr(getattr(problem, section), field), most, f"{section}.{field}")
    yield from _at_most(workload.sequences, MOST_SEQUENCES, "workload.prompts", "prompts times rollouts")
    yield from _at_most(workload.total_length, MOST_TOKENS, "workload.response_length", "prompt and response")
    yield from _at_most(size(problem.device_space), MOST_GPUS, "device_space", "the number of GPUs")
    for m, tau in problem.graph.staleness.items():
        yield from _at_most(tau, MOST_STALENESS, f"graph.staleness.{m}")
    for m, values in (problem.search.staleness if problem.search else {}).items():
        yield from _at_most(max(values, default=0), MOST_STALENESS, f"search.staleness.{m}")
    for name, model in problem.models.items():
        for field, most in MOST_OF_MODEL.items():
            yield from _at_most(getattr(model, field) or 0, most, f"models.{name}.{field}")
        for field, most in MOST_OF_EXPERTS.items() if model.experts else ():
            yield from _at_most(getattr(model.experts, field), most, f"models.{name}.experts.{field}")
    for i, c in enumerate(problem.graph.containers):
        path = f"graph.containers[{i}].elements"
        yield from _at_most(c.payload_bytes, MOST_BYTES, path, f"bytes of `{c.name}`")
    for name, v in problem.host.items():
        yield from _at_most(v.seconds_per_response, MOST_SECONDS, f"host.{name}.seconds_per_response")
    yield from _hardware(problem.hardware)


def _at_most(value: float, most: float, path: str, what: str = "") -> Iterator[Diagnostic]:
    if value > most:
        name = what or f"`{path}`"
        yield error("E305", f"{name}: {value} is too much", path, help=f"at most {most} can be planned")


def _hardware(hardware: Hardware) -> Iterator[Diagnostic]:
    for field, (least, most) in HARDWARE.items():
        value, path = getattr(hardware, field), f"hardware.{field}"
        absent = field == "product_flops" and value == 0
        if not (least <= value <= most or absent):
            bounds = f"it lies between {least:g} and {most:g}, in SI units and bytes"
            yield error("E305", f"`{path}` is {value:g}", path, help=bounds)
    if hardware.dispatch is not None:
        for kind in hardware.dispatch.__struct_fields__:
            value, path = getattr(hardware.dispatch, kind), f"hardware.dispatch.{kind}"
            yield from _at_most(value, MOST_SECONDS, path)
    for primitive in ("collective", "point_to_point", "all_gather", "reduce_scatter"):
        tiers = getattr(hardware, primitive)
        for tier in TIERS if tiers is not None else ():
            for field in ("alpha", "beta"):
                path = f"hardware.{primitive}.{tier}.{field}"
                yield from _at_most(getattr(tiers.at(tier), field), 1.0, path)
    for field in ("sequences", "tokens"):
        value = getattr(hardware.nongemm_reference, field)
        if value < 1e-6:
            path = f"hardware.nongemm_reference.{field}"
            yield error("E305", f"`{path}` is {value:g}", path, help="it is the shape of a measurement")
