"""A launcher's tasks find the controller: what each of them offers, and how they meet."""

import os
import socket
import time
from pathlib import Path

from rpeg_rt.failure import PreflightError, RunError, WorkerLostError
from rpeg_rt.fleet import Fleet
from rpeg_rt.launch import Launch, controller_address
from rpeg_rt.load import load_plan
from rpeg_rt.network import Endpoint, NoInterfaceError, endpoint
from rpeg_rt.preflight import available_memory
from rpeg_rt.protocol import Join
from rpeg_rt.secret import fresh_secret, shared_secret
from rpeg_rt.spawn import Spawner
from rpeg_rt.trace import software_versions

JOIN_SECONDS = 120.0
NO_PLAN = ""
"""What tasks call their plan when they are to measure."""
_RETRY_SECONDS = 0.2


def local_fleet(workers: int, plan: str) -> Fleet:
    """The fleet of a run that starts its own workers, on this machine."""
    alone = Launch("", 0, 1, 0, 0, socket.gethostname(), "", None)
    return Fleet(workers, _offer(alone, fresh_secret(), plan))


def launched_fleet(launch: Launch, plan: str, interface: str | None, port: int | None) -> Fleet:
    """The fleet of task 0, open for the others to join. Raises FileError where the launcher does not say how
    they meet, PreflightError where they cannot."""
    controller = controller_address(launch, os.environ)
    here = _here(controller, interface)
    if interface is not None and here.address != controller and not controller.startswith("127."):
        raise PreflightError(
            [
                f"tasks look for the controller at {controller}, but interface `{interface}` has "
                f"{here.address}; set MASTER_ADDR={here.address} for all tasks"
            ]
        )
    fleet = Fleet(
        launch.tasks,
        _offer(launch, shared_secret(launch.run, os.environ), plan),
        tasks=launch.tasks,
        address=here.address,
        port=launch.port if port is None else port,
        interface=interface,
    )
    try:
        fleet.open()
    except OSError as exc:
        fleet.close()
        raise PreflightError(
            [
                f"cannot listen on {here.address} port {launch.port if port is None else port}, where this "
                f"run's tasks look for the controller ({exc.strerror}); give --port another, or set "
                "MASTER_ADDR to an address of this node"
            ]
        ) from exc
    return fleet


def serve(launch: Launch, plan: Path | None, interface: str | None, port: int | None) -> None:
    """Be a task other than 0: start and watch workers until the controller says stop. Without a `plan` the
    controller measures.

    Raises WorkerLostError if the controller is not found or goes away, RunError for what keeps this task from
    joining; a plan that cannot be read here is for the controller to tell.
    """
    controller = controller_address(launch, os.environ)
    address = (controller, launch.port if port is None else port)
    problem: RunError | None = None
    identity, here = "", Endpoint(controller, None)
    try:
        identity = NO_PLAN if plan is None else load_plan(plan).id
        here = _here(controller, interface)
    except RunError as exc:
        problem = exc
    join = _offer(
        launch, shared_secret(launch.run, os.environ), identity, "" if problem is None else str(problem)
    )
    connection = _connect(address, problem)
    if not Spawner(connection, here, join, None).serve():
        raise WorkerLostError(
            f"{launch.machine}, task {launch.task}: the controller at {address[0]} port {address[1]} went "
            "away or did not admit this task (its secret must be the same on all nodes)"
        )


def _connect(address: tuple[str, int], problem: RunError | None) -> socket.socket:
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            return socket.create_connection(address, timeout=10)
        except OSError as exc:
            if time.monotonic() > deadline:
                raise problem or WorkerLostError(
                    f"cannot reach the controller at {address[0]} port {address[1]} in {JOIN_SECONDS:.0f} s: "
                    f"{exc.strerror or exc}"
                ) from exc
        time.sleep(_RETRY_SECONDS)


def _here(controller: str, interface: str | None) -> Endpoint:
    try:
        return endpoint(controller, interface)
    except NoInterfaceError as exc:
        raise PreflightError([f"{socket.gethostname()}: {exc}"]) from exc


def _offer(launch: Launch, secret: str, plan: str, problem: str = "") -> Join:
    """What this process offers a controller."""
    return Join(
        secret=secret,
        task=launch.task,
        node=launch.node,
        slot=launch.slot,
        machine=launch.machine,
        software=software_versions(),
        plan=plan,
        memory_bytes=available_memory(),
        gpus=visible_gpus(),
        problem=problem,
    )


def visible_gpus() -> int:
    """NVIDIA GPUs that this process may use, by the system's device files."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = sum(p.name.removeprefix("nvidia").isdecimal() for p in Path("/dev").glob("nvidia[0-9]*"))
    return present if chosen is None else min(present, len([c for c in chosen.split(",") if c.strip()]))
