"""A real Slurm cluster of several nodes on this machine, for tests: no accounting, no control groups, all
listeners on loopback. It needs munge and Slurm's controller, daemon and client, and root."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "squeue", "sinfo", "scontrol")
PATIENCE = 30.0

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={state}/munge.sock,cred_expire=10
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/spool-%n
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd-%n.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
KillWait=5
ReturnToService=2
JobRequeue=1
NodeName=DEFAULT CPUs=4 State=UNKNOWN
NodeName=node[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port={first_port}-{last_port}
PartitionName=test Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def lacking() -> str:
    """Why no cluster can be started here; empty if one can."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"Slurm is not installed: no {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "the daemons of Slurm are started as root"


@contextmanager
def slurm_cluster(nodes: int) -> Iterator[dict[str, str]]:
    """The environment in which commands reach a cluster of `nodes` nodes."""
    state = Path(tempfile.mkdtemp(prefix="rpeg-slurm-"))  # short: paths of sockets are limited
    state.chmod(0o755)
    environment = os.environ | {"SLURM_CONF": str(state / "slurm.conf")}
    port = _free_ports(nodes + 1)
    host = socket.gethostname().partition(".")[0]
    text = _CONFIGURATION.format(
        host=host, state=state, port=port, last=nodes - 1, first_port=port + 1, last_port=port + nodes
    )
    (state / "slurm.conf").write_text(text)
    (state / "ctld").mkdir()
    secure = state / "munge"
    secure.mkdir(mode=0o700)
    (secure / "key").touch(mode=0o600)
    (secure / "key").write_bytes(secrets.token_bytes(1024))
    munge = [f"--{what}-file={secure}/{what}" for what in ("key", "pid", "log", "seed")]
    try:
        for command in (
            ["munged", *munge, f"--socket={state}/munge.sock"],
            ["slurmctld", "-i"],
            *(["slurmd", "-N", f"node{n}"] for n in range(nodes)),
        ):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (command, done.stderr)
        idle = ["sinfo", "-h", "-t", "idle", "-o", "%D"]
        wait_until(lambda: _output(idle, environment).strip() == str(nodes))
        yield environment
    finally:
        _output(["scancel", "-u", "root"], environment)
        with suppress(AssertionError):
            wait_until(lambda: not _output(["squeue", "-h"], environment))
        for pattern in ("slurmd-*.pid", "slurmctld.pid", "munge/pid"):
            for file in state.glob(pattern):
                with suppress(ProcessLookupError):
                    os.kill(int(file.read_text()), signal.SIGKILL)  # in order they take seconds
        shutil.rmtree(state, ignore_errors=True)


def wait_until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Look again until something holds; fails if it does not."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def _output(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.stdout


def _free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on."""
    for first in range(17000, 19900, count):
        with suppress(OSError):
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
            return first
    raise AssertionError("no free ports")
