"""A plan as a Slurm job: the batch script, and its submission."""

import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rpeg_rt.allocation import plan_nodes
from rpeg_rt.failure import FileError
from rpeg_rt.load import load_plan
from rpeg_rt.preflight import check
from rpeg_rt.secret import VARIABLE

START_MINUTES = 10
MARGIN = 3
"""A time limit allows these minutes for the start, and this many times the predicted time: predictions from
nominal hardware files are that far off."""
SIGNAL_SECONDS = 60
"""How long before the time limit a run is asked to stop; Slurm may be half a minute late."""


@dataclass(frozen=True)
class Job:
    """What a person decides about a job: `time` as Slurm writes it (None: from the prediction), for `steps`
    RL steps (None: the plan's), and `options` of `rpeg-rt`."""

    partition: str | None = None
    account: str | None = None
    time: str | None = None
    steps: int | None = None
    interface: str | None = None
    options: Sequence[str] = ()


def batch_script(path: Path, job: Job) -> str:
    """The script for `sbatch` that runs the plan in `path` on as many nodes and GPUs as it uses. Raises
    FileError, and PreflightError for a plan that cannot run anywhere."""
    plan = load_plan(path)
    executable = plan.executable
    nodes = plan_nodes(check(executable, None))
    per_node = max(len(ranks) for ranks in nodes.values())
    run = executable.problem.run
    assert run is not None, "preflight refuses a plan without a run"
    seconds = executable.prediction.score.step_time_s * (run.steps if job.steps is None else job.steps)
    directives = {
        "job-name": executable.problem.name,
        "nodes": len(nodes),
        "ntasks-per-node": per_node,
        "gpus-per-node": None if executable.prediction.hardware.startswith("cpu") else per_node,
        "partition": job.partition,
        "account": job.account,
        "time": job.time or START_MINUTES + math.ceil(MARGIN * seconds / 60),
        "signal": f"USR1@{SIGNAL_SECONDS}",
        "output": "%x-%j.out",
        "open-mode": "append",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in directives.items() if value is not None]
    command = [sys.executable, "-m", "rpeg_rt", str(path.resolve()), *job.options]
    return _SCRIPT.format(
        directives="\n".join(lines),
        plan=plan.id,
        address=_ADDRESS_OF_NODE if job.interface is None else _of_interface(job.interface),
        variable=VARIABLE,
        command=shlex.join(command),
    )


def submit(script: str) -> str:
    """Hand a script to `sbatch`; the job's id. Raises FileError where there is no Slurm, or it refuses."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as exc:
        raise FileError("there is no Slurm here (no `sbatch` in PATH); --print shows the script") from exc
    if done.returncode:
        raise FileError(f"sbatch refused the job: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]


def _of_interface(name: str) -> str:
    return f'ip -4 -o addr show dev {shlex.quote(name)} | awk \'{{ sub("/.*", "", $4); print $4; exit }}\''


_ADDRESS_OF_NODE = (
    'scontrol show node "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)" -o'
    " | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p'"
)

_SCRIPT = """\
#!/bin/bash
{directives}
#SBATCH --requeue

# Plan {plan}
# Where the controller, the first task, is reached, and the secret by which tasks know each other.
export MASTER_ADDR=$({address})
export {variable}=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')

# Slurm signals the tasks, which end the run in order; srun and this shell must outlast them.
trap : TERM USR1
srun --kill-on-bad-exit=1 --export=ALL {command} &
step=$!
while kill -0 $step 2>/dev/null; do wait $step; code=$?; done
exit $code
"""
