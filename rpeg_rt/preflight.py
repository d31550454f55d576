"""Whether this machine and this runtime can execute a plan, asked before anything is loaded.

Everything that is missing is reported at once. Nothing is pretended: a plan for more GPUs, another node
shape or more memory than there is gets refused.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ir_schema.base import Record
from ir_schema.stages import Executable
from rpeg_rt.beginning import FRESH, Beginning
from rpeg_rt.dependences import disordered
from rpeg_rt.engine.architecture import unsupported
from rpeg_rt.failure import PreflightError
from rpeg_rt.ranges import implausible
from rpeg_rt.realise import Realisation
from rpeg_rt.semantics import NotUnderstood
from rpeg_rt.template import UnrealisableError

WORKER_BASE_BYTES = 450 * 1024 * 1024


class Machine(Record, frozen=True, kw_only=True):
    """What a run may use: worker slots on this one node (None: as many as the plan asks for), free memory."""

    slots: int | None
    memory_bytes: int | None


def this_machine(slots: int | None) -> Machine:
    """The machine at hand; memory is what the system says is available, within any control-group limit."""
    return Machine(slots=slots, memory_bytes=available_memory())


def plausible(executable: Executable) -> None:
    """Raises PreflightError unless the plan's values can be what they are; asked before all else."""
    if wrong := implausible(executable):
        raise PreflightError(wrong)


def check(
    executable: Executable,
    machine: Machine | None,
    findings: Sequence[str] = (),
    beginning: Beginning = FRESH,
) -> Realisation:
    """The plan bound to workers, of this machine unless it is None: then a launcher starts them. Its run
    is to begin at `beginning`. Raises PreflightError with all that is missing, `findings` (of its files)
    included. The plan is plausible."""
    missing = [*_missing_software(), *_unsupported_run(executable), *findings]
    try:
        realisation = Realisation(executable, beginning)
    except UnrealisableError as exc:
        raise PreflightError([*missing, str(exc)]) from exc
    except NotUnderstood as exc:
        raise PreflightError(missing + exc.findings) from exc
    missing += _unsupported_models(realisation)
    if machine is not None:
        missing += _misfit(realisation, machine)
    missing += disordered(realisation if beginning is FRESH else Realisation(executable))
    if missing:
        raise PreflightError(missing)
    return realisation


def _missing_software() -> list[str]:
    return [
        f"the Python package `{package}` is not installed; install rpeg[runtime]"
        for module, package in (("torch", "torch"), ("megatron", "megatron-core"))
        if importlib.util.find_spec(module) is None
    ]


def _unsupported_run(executable: Executable) -> list[str]:
    problem = executable.problem
    found = []
    if problem.run is None:
        return ["the plan has no `run` section (algorithm, data); add one and compile again"]
    if problem.options.as_printed:
        found.append("plans made with --as-printed are for comparison, not for running")
    return found


def _unsupported_models(realisation: Realisation) -> list[str]:
    found: dict[str, None] = {}
    for name, v in realisation.vertices.items():
        if v.model is not None:
            layout = realisation.plan[name].layout
            spec = realisation.problem.models[v.model]
            reasons = unsupported(spec, layout, realisation.problem.workload)
            if v.role == "generation" and layout.context_parallel > 1:
                reasons.append(
                    "the runtime does not split sequences that are being generated; set its "
                    f"context_parallel to 1, not {layout.context_parallel}"
                )
            for reason in reasons:
                found[f"vertex `{name}`, model `{v.model}`: {reason}"] = None
    return list(found)


def _misfit(realisation: Realisation, machine: Machine) -> list[str]:
    """GPUs, nodes and memory that the plan needs and the machine has not."""
    found = []
    workers = realisation.world
    slots = workers if machine.slots is None else machine.slots
    if workers > slots:
        found.append(
            f"the plan uses {workers} GPUs ({realisation.devices[0]} … {realisation.devices[-1]}), "
            f"this machine has {slots} slots; give --slots {workers} or plan for fewer GPUs"
        )
    nodes = sorted({d.rpartition(".")[0] for d in realisation.devices})
    if len(nodes) > 1:
        per_node = max(sum(d.startswith(f"{n}.") for d in realisation.devices) for n in nodes)
        listed = ", ".join(nodes[:4]) + (" …" if len(nodes) > 4 else "")
        found.append(
            f"the plan uses {len(nodes)} nodes ({listed}) of up to {per_node} GPUs each, "
            f"this machine is one node with {slots} slots"
        )
    needed = needed_bytes(realisation, range(workers))
    if machine.memory_bytes is not None and needed > machine.memory_bytes:
        gib = 1024**3
        found.append(
            f"the plan needs about {needed / gib:.1f} GiB of memory on this machine ({workers} workers on "
            f"the CPU), {machine.memory_bytes / gib:.1f} GiB are available"
        )
    return found


def needed_bytes(realisation: Realisation, ranks: Sequence[int]) -> int:
    """Memory of workers that share it: what each occupies by itself, and the predicted peaks of their GPUs;
    float64 takes twice the bytes of float32."""
    run = realisation.problem.run
    wide = 2 if run is not None and run.precision == "float64" else 1
    predicted = realisation.executable.prediction.devices
    devices = [realisation.devices[rank] for rank in ranks]
    peaks = sum(wide * predicted[d].peak_bytes for d in devices if d in predicted)
    return len(ranks) * WORKER_BASE_BYTES + peaks


def available_memory() -> int | None:
    """Bytes that the system says are free, within any control-group limit; None where it does not say."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            found.append(max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    if not found and sys.platform != "win32":
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(found) if found else None
