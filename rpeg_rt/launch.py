"""Who started this process: one task of a Slurm step or of torchrun, or a person at a prompt.

A launcher starts as many tasks as the plan has workers. Task 0 is the controller; every other finds it at
an address and a port that all derive alike from what the launcher tells them.
"""

import hashlib
import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from rpeg_rt.failure import FileError

PORTS = range(20000, 32768)
"""Below the ports that Linux gives away by itself."""

_SCONTROL_SECONDS = 30.0


@dataclass(frozen=True)
class Launch:
    """One task of `tasks`: the index of its node, its place among the node's tasks, and the node's name.

    `run` tells this run from all others of the same user; `controller` is where task 0 runs, as the launcher
    says (None: ask Slurm).
    """

    launcher: str
    task: int
    tasks: int
    node: int
    slot: int
    machine: str
    run: str
    controller: str | None

    @property
    def port(self) -> int:
        """The port at which the controller listens, unless another is chosen."""
        digest = hashlib.sha256(self.run.encode()).digest()
        return PORTS[int.from_bytes(digest[:8], "big") % len(PORTS)]


def detect(environment: Mapping[str, str]) -> Launch | None:
    """The task that this process is, from its environment; None for a run that starts its own workers (also
    where the launcher started no other task). Raises FileError for an environment that makes no sense."""
    if "TORCHELASTIC_RUN_ID" in environment:
        launch = _torchrun(environment)
    elif "SLURM_STEP_ID" in environment and "SLURM_STEP_NUM_TASKS" in environment:
        launch = _slurm(environment)
    else:
        return None
    return launch if launch.tasks > 1 else None


def controller_address(launch: Launch, environment: Mapping[str, str]) -> str:
    """The IPv4 address at which tasks look for the controller. Raises FileError where it cannot be found."""
    name = launch.controller or _first_node(environment)
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as exc:
        raise FileError(
            f"cannot find the address of {name}, where the controller runs ({exc.strerror or exc}); "
            "set MASTER_ADDR to its IPv4 address"
        ) from exc
    return str(found[0][4][0])


def _torchrun(environment: Mapping[str, str]) -> Launch:
    node = _number(environment, "GROUP_RANK")
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    return Launch(
        launcher="torchrun",
        task=_number(environment, "RANK"),
        tasks=_number(environment, "WORLD_SIZE"),
        node=node,
        slot=_number(environment, "LOCAL_RANK"),
        machine=f"{socket.gethostname()} (node {node})",
        run=" ".join(["torchrun", *(environment.get(name, "") for name in names)]),
        controller=environment.get("MASTER_ADDR") or None,
    )


def _slurm(environment: Mapping[str, str]) -> Launch:
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    return Launch(
        launcher="Slurm",
        task=_number(environment, "SLURM_PROCID"),
        tasks=_number(environment, "SLURM_STEP_NUM_TASKS"),
        node=_number(environment, "SLURM_NODEID"),
        slot=_number(environment, "SLURM_LOCALID"),
        machine=environment.get("SLURMD_NODENAME") or socket.gethostname(),
        run=" ".join(["slurm", *(environment.get(name, "") for name in names)]),
        controller=environment.get("MASTER_ADDR") or None,
    )


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise FileError(f"the launcher's environment variable {name} is {text!r}, not a number")
    return int(text)


def _first_node(environment: Mapping[str, str]) -> str:
    """Where the first node of the step is reached; node names themselves need not resolve."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    (first, *_) = _scontrol("hostnames", nodes).split() or [nodes]
    for word in _scontrol("node", first, "-o").split():
        key, _, value = word.partition("=")
        if key == "NodeAddr":
            return value
    return first


def _scontrol(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", "show", *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SCONTROL_SECONDS,
            env=dict(os.environ),
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise FileError(
            f"cannot ask Slurm where the controller runs ({exc}); set MASTER_ADDR to the IPv4 address of "
            "the step's first node"
        ) from exc
    return done.stdout
