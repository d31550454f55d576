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
from rpeg_rt.preflight import check, plausible
from rpeg_rt.secret import VARIABLE

START_MINUTES = 10
MARGIN = 3
"""A time limit allows these minutes for the start, and this many times the predicted time: predictions from
nominal hardware files are that far off."""
SIGNAL_SECONDS = 60
"""How long before the time limit a run is asked to stop, besides the time of a step; Slurm may be half a
minute late."""
_LONGEST_SIGNAL = 65535


@dataclass(frozen=True)
class Job:
    """What a person decides about a job: `time` as Slurm writes it (None: from the prediction), for `steps`
    RL steps (None: the plan's), and `options` of `rpeg-rt`, of which those that the script must know come
    apart too."""

    partition: str | None = None
    account: str | None = None
    time: str | None = None
    steps: int | None = None
    interface: str | None = None
    save: Path | None = None
    trace: Path | None = None
    options: Sequence[str] = ()


def batch_script(path: Path, job: Job) -> str:
    """The script for `sbatch` that runs the plan in `path` on as many nodes and GPUs as it uses. Raises
    FileError, and PreflightError for a plan that cannot run anywhere."""
    plan = load_plan(path)
    executable = plan.executable
    plausible(executable)
    nodes = plan_nodes(check(executable, None))
    per_node = max(len(ranks) for ranks in nodes.values())
    run = executable.problem.run
    assert run is not None, "preflight refuses a plan without a run"
    step = MARGIN * executable.prediction.score.step_time_s
    warning = min(SIGNAL_SECONDS + math.ceil(step), _LONGEST_SIGNAL)
    seconds = warning + step * (run.steps if job.steps is None else job.steps)
    directives = {
        "job-name": executable.problem.name,
        "nodes": len(nodes),
        "ntasks-per-node": per_node,
        "gpus-per-node": None if executable.prediction.hardware.startswith("cpu") else per_node,
        "partition": job.partition,
        "account": job.account,
        "time": job.time or START_MINUTES + math.ceil(seconds / 60),
        "signal": f"USR1@{warning}",
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
        again=_again(job),
        command=shlex.join(command),
        requeue="" if job.save is None else _REQUEUE,
    )


def _again(job: Job) -> str:
    """What a job that runs again does otherwise: it goes on where it was, and keeps the traces before."""
    lines = []
    if job.save is not None:
        lines.append('  options+=(--resume "$save")')
    if job.trace is not None:
        stem, suffix = shlex.quote(str(job.trace.with_suffix(""))), shlex.quote(job.trace.suffix)
        lines.append(f'  options+=(--trace {stem}".$SLURM_RESTART_COUNT"{suffix})')
    if not lines:
        return ""
    snapshots = "" if job.save is None else _SNAPSHOTS.format(save=shlex.quote(str(job.save)))
    condition = 'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then'
    return "\n".join([snapshots + condition, *lines, "fi\n"])


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

_SNAPSHOTS = """\
save={save}
newest() {{ ls "$save" 2>/dev/null | grep -xE 'step-[0-9]{{8,}}' | sort -V | tail -n 1; }}
began=$(newest)
"""

_REQUEUE = """\
# Asked to stop before the time limit, or bereft of a worker or a task: go on from the newest snapshot, unless
# this start has left none that is newer than what it began with, or the job itself is ended.
case $code in
4 | 5 | 130 | 137 | 143)
  if [ -z "$ended" ] && [ "$(newest)" != "$began" ]; then
    echo "requeue: exit code $code, to go on from $save/$(newest)" >&2
    scontrol requeue "$SLURM_JOB_ID"
  fi
  ;;
esac
"""

_SCRIPT = """\
#!/bin/bash
{directives}
#SBATCH --requeue

# Plan {plan}
# Where the controller, the first task, is reached, and the secret by which tasks know each other.
export MASTER_ADDR=$({address})
export {variable}=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')

options=()
{again}
# Slurm signals the tasks, which end the run in order; srun and this shell must outlast them.
ended=
trap 'ended=1' TERM
trap : USR1
srun --kill-on-bad-exit=1 --export=ALL {command} "${{options[@]}}" &
step=$!
while kill -0 $step 2>/dev/null; do wait $step; done  # which a signal ends too
wait $step
code=$?
{requeue}exit $code
"""
