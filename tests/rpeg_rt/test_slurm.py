"""Runs on a real Slurm cluster of four nodes: started by srun or sbatch, stopped, and bereft of a task."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpeg_rt.cli import main
from rpeg_rt.verify import verify_file
from tests.rpeg_rt.cluster import lacking, slurm_cluster, wait_until
from tests.rpeg_rt.test_launching import ROOT, spread_plan

PATIENCE = 120.0
LONG = 5000


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    if reason := lacking():
        pytest.skip(reason)
    with slurm_cluster(4) as environment:
        yield environment | {"PYTHONPATH": str(ROOT)}


class Step:
    """One srun of a plan, in a directory that also holds the user's key."""

    def __init__(self, cluster: dict[str, str], directory: Path, shape: str, *arguments: object) -> None:
        self.log, self.directory = directory / "log", directory
        command = ["srun", "--kill-on-bad-exit=1", *shape.split(), sys.executable, "-m", "rpeg_rt"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *map(str, arguments)],
                stdout=log,
                stderr=log,
                env=cluster | {"XDG_CONFIG_HOME": str(directory)},
            )

    def end(self) -> tuple[int, str]:
        """Exit code and output of a step that ends by itself."""
        code = self.process.wait(PATIENCE)
        return code, self.log.read_text()


def processes_of(directory: Path) -> dict[int, dict[str, str]]:
    """Environments of the living processes that the directory's plan is run by, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            command = (entry / "cmdline").read_text() if variables else ""
        except OSError:
            continue
        if str(directory) in command and "rpeg_rt" in command and "srun" not in command.split("\0")[0]:
            found[int(entry.name)] = dict(v.decode().split("=", 1) for v in variables if b"=" in v)
    return found


def worker_and_task_on(node: str, directory: Path) -> tuple[int, int]:
    """The process of a node's only worker, and the task that started it."""
    there = [pid for pid, env in processes_of(directory).items() if env.get("SLURMD_NODENAME") == node]
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in there}
    (worker,) = [pid for pid in there if parents[pid] in there]
    return worker, parents[worker]


def check_trace(directory: Path, code: int) -> None:
    """The trace is whole and faithful as far as the run went, and says how it ended."""
    verdict = verify_file(directory / "trace.jsonl", directory / "plan.exe.json")
    assert (verdict.violations, verdict.exit_code) == ([], code)
    assert verdict.nodes > 0


def test_one_srun_runs_a_plan_over_four_nodes(cluster: dict[str, str], tmp_path: Path) -> None:
    plan = spread_plan(tmp_path, nodes=4, gpus=1)
    code, text = Step(
        cluster, tmp_path, "-N4 --ntasks-per-node=1", plan, "--trace", tmp_path / "trace.jsonl"
    ).end()
    assert code == 0, text
    assert "3 steps in " in text
    assert "on 4 workers" in text
    check_trace(tmp_path, 0)


@pytest.fixture
def long_step(cluster: dict[str, str], tmp_path: Path) -> Iterator[Step]:
    """A run on two nodes that has finished a step."""
    plan = spread_plan(tmp_path, nodes=2, gpus=1)
    options = ("--steps", LONG, "--trace", tmp_path / "trace.jsonl")
    step = Step(cluster, tmp_path, "-N2 --ntasks-per-node=1", plan, *options)
    try:
        wait_until(lambda: "step 1/" in step.log.read_text() or step.process.poll() is not None, PATIENCE)
        yield step
        wait_until(lambda: not processes_of(tmp_path))
    finally:
        step.process.kill()
        step.process.wait()


def test_a_killed_worker_ends_the_run_on_all_nodes(long_step: Step) -> None:
    worker, _ = worker_and_task_on("node1", long_step.directory)
    os.kill(worker, signal.SIGKILL)
    code, text = long_step.end()
    assert code == 4, text
    assert re.search(
        r"^error: worker 1 \(GPU 0\.1\.0\) on node1 was lost .*: killed by signal 9$", text, re.M
    )
    assert "rpeg-rt: exit code 4" in text
    check_trace(long_step.directory, 4)


@pytest.mark.slow
def test_a_killed_task_ends_the_run_on_all_nodes(long_step: Step) -> None:
    _, task = worker_and_task_on("node1", long_step.directory)
    os.kill(task, signal.SIGKILL)
    _, text = long_step.end()  # the code is srun's choice among those of its tasks
    assert re.search(r"^error: worker 1 \(GPU 0\.1\.0\) on node1 was lost ", text, re.M), text
    assert "rpeg-rt: exit code 4" in text
    check_trace(long_step.directory, 4)


class Batch:
    """A plan for two nodes of two tasks each, submitted, until it has finished a step."""

    def __init__(self, cluster: dict[str, str], directory: Path, *options: str) -> None:
        plan = spread_plan(directory, nodes=2, gpus=2)
        command = [sys.executable, "-m", "rpeg_rt", "slurm", str(plan), *options]
        run = ["--", "--steps", str(LONG), "--trace", "trace.jsonl"]
        self.environment = cluster
        done = subprocess.run(
            [*command, *run], cwd=directory, env=cluster, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.split()[-1]
        self.log = directory / f"tiny-{self.id}.out"
        self.await_steps(1)

    def await_steps(self, runs: int) -> None:
        """Wait until as many runs of this job have finished their first step."""
        wait_until(
            lambda: self.log.exists() and len(re.findall("^step 1/", self.log.read_text(), re.M)) == runs,
            PATIENCE,
        )

    def await_end(self) -> str:
        """The output of the job, once it has ended."""
        squeue = ["squeue", "-h", "-j", self.id]
        wait_until(lambda: not subprocess.check_output(squeue, env=self.environment), PATIENCE)
        return self.log.read_text()

    def call(self, *command: str) -> None:
        """Put a command of Slurm to the job."""
        subprocess.run([*command, self.id], env=self.environment, check=True)


def test_the_signal_before_a_time_limit_ends_a_batch_job_in_order(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    job = Batch(cluster, tmp_path)
    job.call("scancel", "--signal=USR1")
    text = job.await_end()
    assert "error: interrupted by SIGUSR1\nrpeg-rt: exit code 130" in text
    shown = subprocess.check_output(["scontrol", "show", "job", job.id], env=cluster, text=True)
    assert "ExitCode=130:0" in shown
    check_trace(tmp_path, 130)
    wait_until(lambda: not processes_of(tmp_path))


@pytest.mark.slow
def test_a_requeued_job_runs_again_and_a_cancelled_one_ends(cluster: dict[str, str], tmp_path: Path) -> None:
    job = Batch(cluster, tmp_path)
    job.call("scontrol", "requeue")
    job.await_steps(2)
    job.call("scancel")
    text = job.await_end()
    assert text.count("error: interrupted by SIGTERM\nrpeg-rt: exit code 130") == 2, text
    check_trace(tmp_path, 130)
    wait_until(lambda: not processes_of(tmp_path))


@pytest.mark.slow
def test_the_time_limit(cluster: dict[str, str], tmp_path: Path) -> None:
    job = Batch(cluster, tmp_path, "--time", "2")  # minutes; the signal comes 60 s before
    assert "error: interrupted by SIGUSR1\nrpeg-rt: exit code 130" in job.await_end()
    check_trace(tmp_path, 130)


def test_a_batch_script_asks_for_what_the_plan_uses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = spread_plan(tmp_path, nodes=2, gpus=2, hardware="h100")
    arguments = ["slurm", str(plan), "--partition", "long", "--account", "lab", "--print"]
    assert main([*arguments, "--", "--data", "a b", "--interface", "ib0"]) == 0
    script = capsys.readouterr().out
    directives = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", script, re.M))
    assert directives["nodes"] == directives["ntasks-per-node"] == directives["gpus-per-node"] == "2"
    assert (directives["partition"], directives["account"]) == ("long", "lab")
    assert int(directives["time"]) >= 10
    assert f"-m rpeg_rt {plan} --data 'a b' --interface ib0 &" in script
    assert "addr show dev ib0" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0

    on_cpu = spread_plan(tmp_path, nodes=2, gpus=2)
    assert main(["slurm", str(on_cpu), "--print"]) == 0
    assert "gpus-per-node" not in capsys.readouterr().out

    assert main(["slurm", str(plan), "--time", "soon"]) == 2
    assert main(["slurm", str(plan), "--", "--nonsense"]) == 2
    assert main(["slurm", str(tmp_path / "nothing")]) == 2
    capsys.readouterr()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["slurm", str(plan)]) == 2
    assert "there is no Slurm here (no `sbatch` in PATH)" in capsys.readouterr().err
