"""Runs on a real Slurm cluster of four nodes: started by srun or sbatch, stopped, and bereft of a task."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rpeg_rt.cli import main
from rpeg_rt.cli.run import run_command
from rpeg_rt.slurm import Job, batch_script
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


def check_trace(directory: Path, code: int, name: str = "trace.jsonl") -> None:
    """The trace is whole and faithful as far as the run went, and says how it ended."""
    verdict = verify_file(directory / name, directory / "plan.exe.json")
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
        r"^error: worker 1 \(GPU 0\.1\.0\) on node1 was lost .*: killed by signal 9 \(", text, re.M
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
    """A plan (for two nodes of one task each) that is submitted, with options for the run and for the job."""

    def __init__(
        self,
        cluster: dict[str, str],
        directory: Path,
        *run: str,
        job: Sequence[str] = (),
        plan: Path | None = None,
    ) -> None:
        path = spread_plan(directory, nodes=2, gpus=1) if plan is None else plan
        command = [sys.executable, "-m", "rpeg_rt", "slurm", str(path), *job]
        self.environment, self.directory = cluster, directory
        done = subprocess.run(
            [*command, "--", "--trace", "trace.jsonl", *run],
            cwd=directory,
            env=cluster,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.split()[-1]
        self.log = directory / f"tiny-{self.id}.out"

    def await_text(self, pattern: str, count: int = 1) -> None:
        """Wait until something stands in the output so often."""
        wait_until(
            lambda: self.log.exists() and len(re.findall(pattern, self.log.read_text(), re.M)) >= count,
            PATIENCE,
        )

    def await_end(self) -> str:
        """The output of the job, once it has ended for good."""
        squeue = ["squeue", "-h", "-j", self.id]
        wait_until(lambda: not subprocess.check_output(squeue, env=self.environment), PATIENCE)
        return self.log.read_text()

    def call(self, *command: str) -> None:
        """Put a command of Slurm to the job."""
        subprocess.run([*command, self.id], env=self.environment, check=True)

    def code(self) -> int:
        """The exit code of its last start."""
        shown = subprocess.check_output(["scontrol", "show", "job", self.id], env=self.environment, text=True)
        return int(shown.partition(" ExitCode=")[2].partition(":")[0])


STEPS = 40
SAVING = ("--steps", str(STEPS), "--save", "run")


class Whole:
    """The run of the plan in `directory` that nothing disturbs, beside a job of the same plan."""

    def __init__(self, cluster: dict[str, str], directory: Path) -> None:
        own = directory / "whole"
        own.mkdir()
        plan = spread_plan(own, nodes=2, gpus=1)
        self.step = Step(
            cluster, own, "-N2 --ntasks-per-node=1", plan, "--steps", STEPS, "--save", own / "run"
        )

    def ends_with_the_weights_of(self, other: Path) -> bool:
        code, text = self.step.end()
        assert code == 0, text
        found = []
        for directory in (self.step.directory / "run", other):
            found.append(
                {p.relative_to(directory): p.read_bytes() for p in directory.glob("*/model.safetensors")}
            )
        assert len(found[0]) == 2
        return found[0] == found[1]


def test_before_its_time_limit_a_job_is_requeued_and_goes_on(cluster: dict[str, str], tmp_path: Path) -> None:
    job = Batch(cluster, tmp_path, *SAVING)
    whole = Whole(cluster, tmp_path)
    job.await_text("^step 1/")
    job.call("scancel", "--signal=USR1")  # as Slurm does by itself
    text = job.await_end()
    (step,) = map(int, re.findall(rf"interrupted by SIGUSR1 after step (\d+) of {STEPS}; ", text))
    assert f"requeue: exit code 130, to go on from run/step-{step:08d}" in text
    assert f"note: resuming after step {step} from run/step-{step:08d}" in text
    assert (text.count("requeue: "), job.code()) == (1, 0), text
    assert whole.ends_with_the_weights_of(tmp_path / "run")
    check_trace(tmp_path, 130)
    check_trace(tmp_path, 0, "trace.1.jsonl")
    wait_until(lambda: not processes_of(tmp_path))


@pytest.mark.slow
def test_a_job_that_loses_a_task_goes_on_from_its_newest_snapshot(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    job = Batch(cluster, tmp_path, *SAVING, "--save-every", "2")
    wait_until(lambda: any((tmp_path / "run").glob("step-*")), PATIENCE)
    _, task = worker_and_task_on("node1", tmp_path)
    os.kill(task, signal.SIGKILL)
    whole = Whole(cluster, tmp_path)
    text = job.await_end()
    assert (text.count("requeue: "), job.code()) == (1, 0), text
    assert "note: resuming after step " in text
    assert whole.ends_with_the_weights_of(tmp_path / "run")
    check_trace(tmp_path, 4)
    check_trace(tmp_path, 0, "trace.1.jsonl")


@pytest.mark.slow
def test_a_job_that_fails_again_and_again_is_not_requeued_for_ever(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    """A verifier that ends a run which has left snapshots; a worker that is lost before there is one."""
    (tmp_path / "failing").mkdir()
    plan = spread_plan(tmp_path / "failing", nodes=2, gpus=1)
    verifier = plan.parent / "tiny_verifier.py"
    counting = "    global n\n    n += 1\n    assert n < 30, 'no more'\n    return "
    verifier.write_text("n = 0\n" + verifier.read_text().replace("    return ", counting))
    job = Batch(cluster, plan.parent, *SAVING, "--save-every", "1", plan=plan)
    text = job.await_end()
    assert "AssertionError: no more" in text
    assert any((plan.parent / "run").glob("step-*"))
    assert ("requeue: " in text, job.code()) == (False, 6), text

    other = Batch(cluster, tmp_path, "--steps", str(LONG), "--save", "run")
    other.await_text("^step 1/")
    os.kill(worker_and_task_on("node1", tmp_path)[0], signal.SIGKILL)
    text = other.await_end()
    assert ("requeue: " in text, other.code()) == (False, 4), text


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--save", "run", "--save-every", "1")], ids=["plain", "saving"])
def test_a_requeued_job_runs_again_and_a_cancelled_one_ends(
    cluster: dict[str, str], tmp_path: Path, options: tuple[str, ...]
) -> None:
    plan = spread_plan(tmp_path, nodes=2, gpus=2)
    job = Batch(cluster, tmp_path, "--steps", str(LONG), *options, plan=plan)
    job.await_text("^step ")
    job.call("scontrol", "requeue")
    job.await_text("rpeg-rt: exit code 130")
    seen = len(re.findall("^step ", job.log.read_text(), re.M))
    job.await_text("^step ", seen + 1)
    assert ("note: resuming after step " in job.log.read_text()) == bool(options)
    job.call("scancel")
    text = job.await_end()
    assert text.count("error: interrupted by SIGTERM") == text.count("rpeg-rt: exit code 130") == 2, text
    assert "requeue: " not in text  # by Slurm only
    check_trace(tmp_path, 130, "trace.1.jsonl")
    wait_until(lambda: not processes_of(tmp_path))


@pytest.mark.slow
def test_the_time_limit(cluster: dict[str, str], tmp_path: Path) -> None:
    job = Batch(cluster, tmp_path, "--steps", str(LONG), "--save", "run", job=("--time", "2"))
    job.await_text("^step 1/")
    job.await_text("^requeue: exit code 130")  # asked 60 s before
    job.await_text("^note: resuming after step ")
    job.call("scancel")
    assert "error: interrupted by SIGUSR1" in job.await_end()
    check_trace(tmp_path, 130)


# The script, without a cluster -----------------------------------------------------------------------------


def script_of(directory: Path, *options: str) -> str:
    """The script for a plan of two nodes, run with options of `rpeg-rt`."""
    plan = spread_plan(directory, nodes=2, gpus=1)
    run = run_command.make_context("rpeg-rt", [str(plan), *options]).params
    return batch_script(plan, Job(save=run["save"], trace=run["trace"], options=options))


def batch(directory: Path, script: str, step: str, restarts: int | None = None) -> tuple[int, str, list[str]]:
    """Run a batch script where an srun does `step`: its code, what it says, and what Slurm was asked for."""
    tools = directory / "tools"
    tools.mkdir(exist_ok=True)
    calls = directory / "calls"
    calls.unlink(missing_ok=True)
    for name, body in (("srun", step), ("scontrol", "")):
        (tools / name).write_text(f'#!/bin/bash\necho {name} "$@" >> {calls}\n{body}\n')
        (tools / name).chmod(0o755)
    variables = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    variables |= {} if restarts is None else {"SLURM_RESTART_COUNT": str(restarts)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=directory, env=variables, capture_output=True, text=True, check=False
    )
    asked = calls.read_text().splitlines()
    return done.returncode, done.stderr, [c for c in asked if not c.startswith("scontrol show")]


@pytest.mark.parametrize("code", [0, 2, 3, 4, 5, 6, 7, 8, 130, 137])
@pytest.mark.parametrize("further", [True, False])
def test_what_is_requeued(tmp_path: Path, code: int, *, further: bool) -> None:
    script = script_of(tmp_path, "--save", "a run", "--save-every", "2")
    (tmp_path / "a run" / "step-00000002").mkdir(parents=True)
    step = f"mkdir 'a run/step-{4 if further else 2:08d}'; exit {code}"
    found, _, asked = batch(tmp_path, script, step, restarts=1)
    assert found == code
    assert ("scontrol requeue 7" in asked) == (further and code in (4, 5, 130, 137))


def test_what_is_not_saved_is_not_requeued(tmp_path: Path) -> None:
    found, _, asked = batch(tmp_path, script_of(tmp_path), "exit 130")
    assert (found, len(asked)) == (130, 1)


def test_a_cancelled_job_is_not_requeued_by_its_script(tmp_path: Path) -> None:
    script = script_of(tmp_path, "--save", "run")
    step = "kill -TERM $PPID; sleep 0.2; mkdir -p run/step-00000001; exit 130"
    found, _, asked = batch(tmp_path, script, step)
    assert (found, "scontrol requeue 7" in asked) == (130, False)


def test_a_job_that_runs_again_resumes_and_keeps_the_trace_before(tmp_path: Path) -> None:
    script = script_of(tmp_path, "--save", "run", "--trace", "a b.jsonl")

    def options(restarts: int | None) -> str:
        _, _, (call,) = batch(tmp_path, script, "", restarts)
        return call.partition("plan.exe.json ")[2]

    given = "--save run --trace a b.jsonl"
    assert options(None) == given
    assert options(1) == f"{given} --resume run --trace a b.1.jsonl"  # it begins anew without a snapshot
    (tmp_path / "run" / "step-00000003").mkdir(parents=True)
    assert options(None) == given  # snapshots of another run are for `rpeg-rt` to refuse
    assert options(2) == f"{given} --resume run --trace a b.2.jsonl"


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
    assert f"-m rpeg_rt {plan} --data 'a b' --interface ib0 \"${{options[@]}}\" &" in script
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
