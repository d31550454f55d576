"""The tasks of a launcher against the plan: who hosts which worker, and what is missing for it."""

import time
from collections.abc import Mapping, Sized
from dataclasses import dataclass

from rpeg_rt.failure import InterruptedRunError, PreflightError, StalledError, WorkerLostError
from rpeg_rt.fleet import Asked, Fleet, Lost
from rpeg_rt.joining import JOIN_SECONDS
from rpeg_rt.preflight import needed_bytes
from rpeg_rt.protocol import Join
from rpeg_rt.realise import Realisation
from rpeg_rt.signals import on_interrupt


@dataclass(frozen=True)
class Crew:
    """A fleet with the ranks that each task starts, and the machine of each rank."""

    fleet: Fleet
    ranks: Mapping[int, tuple[int, ...]]
    machines: tuple[str, ...]


def local_crew(fleet: Fleet, workers: int) -> Crew:
    """All workers on this machine."""
    return Crew(fleet, {fleet.own.task: tuple(range(workers))}, (fleet.own.machine,) * workers)


def gather(fleet: Fleet) -> None:
    """Wait until all tasks have joined. Raises StalledError if they do not, WorkerLostError if one goes
    away, InterruptedRunError on a signal."""
    signals: list[int] = []

    def note(number: int) -> None:
        signals.append(number)
        fleet.wake()

    deadline = time.monotonic() + JOIN_SECONDS
    with on_interrupt(note):
        while len(fleet.joins) < fleet.tasks:
            for event in fleet.events(max(0.0, deadline - time.monotonic())):
                if isinstance(event, Lost):
                    raise WorkerLostError(f"{event.reason} before the run started")
                if isinstance(event, Asked):
                    note(event.number)
            if signals:
                raise InterruptedRunError(signals[0])
            if len(fleet.joins) < fleet.tasks and time.monotonic() >= deadline:
                host, port = fleet.address
                missing = [str(t) for t in range(fleet.tasks) if t not in fleet.joins]
                raise StalledError(
                    f"task{'s' if len(missing) > 1 else ''} {', '.join(missing[:8])}"
                    f"{' …' if len(missing) > 8 else ''} of {fleet.tasks} did not join the controller at "
                    f"{host} port {port} in {JOIN_SECONDS:.0f} s; they must reach that address and have the "
                    "same secret"
                )


def arrange(realisation: Realisation, fleet: Fleet) -> Crew:
    """The plan's nodes on the launcher's, in order, and the GPUs that it uses there on their tasks, in order.
    Raises PreflightError with all that is missing."""
    joins = [fleet.joins[task] for task in sorted(fleet.joins)]
    missing = [*_unlike(joins), *_misfit(realisation, joins)]
    if missing:
        raise PreflightError(missing)
    ranks: dict[int, tuple[int, ...]] = {}
    machines: list[str] = []
    for used, there in zip(plan_nodes(realisation).values(), _nodes(joins).values(), strict=True):
        for rank, join in zip(used, there, strict=False):  # others of the tasks have nothing to do
            ranks[join.task] = (rank,)
            machines.append(join.machine)
    return Crew(fleet, ranks, tuple(machines))


def everybody(fleet: Fleet) -> Crew:
    """One worker on every task of a launcher, node by node. Raises PreflightError where tasks are unlike."""
    joins = [fleet.joins[task] for task in sorted(fleet.joins)]
    if missing := _unlike(joins):
        raise PreflightError(missing)
    places = [join for there in _nodes(joins).values() for join in there]
    ranks = {join.task: (rank,) for rank, join in enumerate(places)}
    return Crew(fleet, ranks, tuple(join.machine for join in places))


def plan_nodes(realisation: Realisation) -> dict[str, list[int]]:
    """Ranks by the plan's node, in order."""
    found: dict[str, list[int]] = {}
    for rank, device in enumerate(realisation.devices):
        found.setdefault(device.rpartition(".")[0], []).append(rank)
    return found


def _nodes(joins: list[Join]) -> dict[int, list[Join]]:
    """Tasks by the launcher's node, in order of their places there."""
    found: dict[int, list[Join]] = {}
    for join in sorted(joins, key=lambda j: (j.node, j.slot)):
        found.setdefault(join.node, []).append(join)
    return found


def _unlike(joins: list[Join]) -> list[str]:
    """Tasks with another plan, other software, or a problem of their own."""
    found: dict[str, None] = {}
    own = joins[0]
    for join in joins[1:]:
        if join.problem:
            found[f"{join.machine}: {join.problem}"] = None
        elif join.plan != own.plan:
            found[f"{join.machine} has another plan, {join.plan[:16]}; {own.machine} has {own.plan[:16]}"] = (
                None
            )
        for package, version in own.software.items():
            if (other := join.software.get(package)) != version:
                found[f"{join.machine} has {package} {other}, {own.machine} has {version}"] = None
    return list(found)


def _misfit(realisation: Realisation, joins: list[Join]) -> list[str]:
    """Nodes, tasks, GPUs and memory that the plan needs and the launcher did not provide."""
    plan, nodes = plan_nodes(realisation), _nodes(joins)
    per_node = max(len(ranks) for ranks in plan.values())
    shape = f"{_count(plan, 'node')} with {_count(range(per_node), 'task')} each"
    found = []
    if len(nodes) != len(plan):
        found.append(f"the plan needs {shape} ({_few(list(plan))}), these are {_count(nodes, 'node')}")
        return found
    for (name, ranks), there in zip(plan.items(), nodes.values(), strict=True):
        machine = there[0].machine
        if len(there) != per_node:
            found.append(f"the plan needs {shape}, {machine} has {len(there)}")
        if 0 < (gpus := min(join.gpus for join in there)) < len(ranks):
            found.append(f"the plan uses {len(ranks)} GPUs of node {name}, {machine} shows {gpus}")
        needed = needed_bytes(realisation, ranks)
        free = min((j.memory_bytes for j in there if j.memory_bytes is not None), default=needed)
        if needed > free:
            gib = 1024**3
            found.append(
                f"the plan needs about {needed / gib:.1f} GiB of memory on {machine} "
                f"({_count(ranks, 'worker')} on the CPU), {free / gib:.1f} GiB are available"
            )
    return found


def _count(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) > 1)}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
