"""Runs whose tasks a launcher starts: who they are, how they meet, and what is refused before a start."""

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ir_schema.hardware import Provenance
from ir_schema.problem import Placement
from rpeg_rt.allocation import arrange
from rpeg_rt.checkpoints.export import ORIGIN, Origin
from rpeg_rt.clock import Clock
from rpeg_rt.failure import FileError, PreflightError
from rpeg_rt.fleet import Fleet
from rpeg_rt.joining import local_fleet
from rpeg_rt.launch import PORTS, detect
from rpeg_rt.load import load_plan
from rpeg_rt.network import NoInterfaceError, endpoint
from rpeg_rt.realise import Realisation
from rpeg_rt.secret import shared_secret
from rpeg_rt.verify import verify_file
from tests.rpeg_rt.plans import colocated, executable, problem, write_plan

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "r",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
}
SLURM = {
    "SLURM_CLUSTER_NAME": "c",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "node1",
}


def spread(nodes: int, gpus: int) -> dict[str, Placement]:
    """All vertices on all GPUs of several nodes."""
    everywhere = Placement(
        origin=(0, 0, 0),
        extent=(1, nodes, gpus),
        data_parallel=nodes * gpus,
        pipeline_parallel=1,
        tensor_parallel=1,
        microbatches=1,
    )
    return dict.fromkeys(colocated(), everywhere)


def spread_plan(directory: Path, nodes: int, gpus: int, *, seed: int = 0, hardware: str = "cpu-test") -> Path:
    """A plan that uses `gpus` GPUs of each of `nodes` nodes, for a machine of the given name."""
    made = problem(device_space=(1, nodes, gpus), run={"seed": seed})
    named = replace(made.hardware, provenance=Provenance(name=hardware, nominal=True, sources={}))
    return write_plan(directory, executable(replace(made, hardware=named), spread(nodes, gpus)))


def test_neither_controller_nor_task_imports_torch() -> None:
    code = "import sys, rpeg_rt.run; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# Who a process is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("environment", "launcher"), [(TORCHRUN, "torchrun"), (SLURM, "Slurm")])
def test_a_task_knows_itself_from_its_environment(environment: dict[str, str], launcher: str) -> None:
    found = detect(environment)
    assert found is not None
    assert (found.launcher, found.task, found.tasks, found.node, found.slot) == (launcher, 3, 4, 1, 1)
    assert found.port in PORTS
    restarted = environment | {"TORCHELASTIC_RESTART_COUNT": "1", "SLURM_RESTART_COUNT": "1"}
    other = detect(restarted)
    assert other is not None
    assert other.run != found.run
    with pytest.raises(FileError, match=r"(RANK|SLURM_PROCID) is 'x', not a number"):
        detect(environment | {"RANK": "x", "SLURM_PROCID": "x"})


def test_without_other_tasks_a_run_starts_its_own_workers() -> None:
    assert detect({}) is None
    assert detect({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}) is None  # a batch script, outside of srun
    assert detect(SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert detect(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}) is None


def test_one_key_gives_each_run_its_secret(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    first = shared_secret("job 1", home)
    key = tmp_path / "rpeg" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert shared_secret("job 1", home) == first != shared_secret("job 2", home)
    assert shared_secret("job 1", home | {"RPEG_RT_SECRET": "of all nodes alike"}) == "of all nodes alike"
    with pytest.raises(FileError, match="5 characters"):
        shared_secret("job 1", home | {"RPEG_RT_SECRET": "short"})
    key.chmod(0o644)
    with pytest.raises(FileError, match="others may read"):
        shared_secret("job 1", home)


def test_the_interface_is_that_of_the_route() -> None:
    assert endpoint("127.0.0.1", None).interface == "lo"
    assert endpoint("127.0.0.1", "lo").address == "127.0.0.1"
    with pytest.raises(NoInterfaceError, match=r"no interface `nope0` .* there are .*lo \(127\.0\.0\.1\)"):
        endpoint("127.0.0.1", "nope0")


# Clocks ---------------------------------------------------------------------------------------------------

WORK = st.lists(st.tuples(*[st.integers(0, 10**9)] * 4), min_size=1, max_size=20)


@given(st.integers(-(10**15), 10**15), st.floats(-1e-4, 1e-4), WORK)
def test_times_of_another_clock_lie_within_what_the_controller_saw(
    ahead: int, drift: float, work: list[tuple[int, int, int, int]]
) -> None:
    clock, now, until = Clock(), 0, 0
    for idle, there, busy, back in work:
        sent = now + idle
        start, finish = sent + there, sent + there + busy
        received = finish + back
        theirs = [round(t * (1 + drift)) - ahead for t in (start, finish)]
        told_start, told_finish = clock.translate(sent, *theirs, received)
        assert until <= sent <= told_start <= told_finish <= received
        now = until = received


@given(WORK)
def test_one_clock_is_left_alone(work: list[tuple[int, int, int, int]]) -> None:
    clock, now = Clock(), 0
    for idle, there, busy, back in work:
        start = now + idle + there
        now = start + busy + back
        assert clock.translate(start - there, start, start + busy, now) == (start, start + busy)


@given(st.integers(-(10**15), 10**15), st.integers(0, 10**6))
def test_equal_delays_give_the_exact_difference(ahead: int, delay: int) -> None:
    start, finish = 10**7, 2 * 10**7
    found = Clock().translate(start - delay, start - ahead, finish - ahead, finish + delay)
    assert found == (start, finish) or abs(ahead) <= delay


# The plan and the tasks ------------------------------------------------------------------------------------


def joined(nodes: list[int], **changes: object) -> Fleet:
    """A fleet whose tasks, on these nodes, have joined; the last one with `changes`."""
    fleet = local_fleet(len(nodes), "a plan")
    for task, node in enumerate(nodes):
        place = {"task": task, "node": node, "slot": nodes[:task].count(node), "machine": f"n{node}"}
        fleet.joins[task] = replace(fleet.own, **place, memory_bytes=1 << 40, gpus=0)
    fleet.joins[task] = replace(fleet.joins[task], **changes)
    return fleet


@pytest.fixture
def uneven() -> Realisation:
    """Both GPUs of node 0 and one of node 1."""
    alone = replace(spread(1, 1)["ref_inf"], origin=(0, 1, 0))
    plan = dict.fromkeys(colocated(), spread(1, 2)["ref_inf"]) | {"ref_inf": alone}
    return Realisation(executable(problem(device_space=(1, 2, 2)), plan))


def test_gpus_go_to_the_tasks_of_their_nodes_in_order(uneven: Realisation) -> None:
    fleet = joined([5, 7, 5, 7])
    crew = arrange(uneven, fleet)
    assert crew.ranks == {0: (0,), 2: (1,), 1: (2,)}  # task 3 has nothing to do
    assert crew.machines == ("n5", "n5", "n7")
    fleet.close()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"memory_bytes": 1 << 20},
            r"needs about 0\.. GiB of memory on n7 \(1 worker on the CPU\), 0\.0 GiB",
        ),
        ({"software": {}}, r"n7 has torch None, n5 has \d"),
        ({"plan": "another"}, r"n7 has another plan, another; n5 has a plan"),
        ({"problem": "it is closed"}, r"n7: it is closed"),
        ({"node": 8}, r"the plan needs 2 nodes with 2 tasks each \(0\.0, 0\.1\), these are 3 nodes"),
        ({"node": 5}, r"the plan needs 2 nodes with 2 tasks each, n5 has 3"),
    ],
)
def test_what_is_missing_on_a_node_is_told(
    uneven: Realisation, changes: dict[str, object], told: str
) -> None:
    fleet = joined([5, 5, 7, 7], **changes)
    with pytest.raises(PreflightError, match=told):
        arrange(uneven, fleet)
    fleet.close()


def test_fewer_gpus_than_the_plan_uses_are_refused(uneven: Realisation) -> None:
    fleet = joined([5, 5, 7, 7])
    fleet.joins |= {task: replace(fleet.joins[task], gpus=1) for task in (0, 1)}
    with pytest.raises(PreflightError, match=r"the plan uses 2 GPUs of node 0\.0, n5 shows 1"):
        arrange(uneven, fleet)
    fleet.close()


# Meeting --------------------------------------------------------------------------------------------------


class Tasks:
    """Tasks as torchrun would start them, by node."""

    def __init__(self, directory: Path, nodes: list[int], **environment: str) -> None:
        self._common = TORCHRUN | environment
        self._common |= {"TORCHELASTIC_RUN_ID": uuid.uuid4().hex, "WORLD_SIZE": str(len(nodes))}
        self._common |= {"XDG_CONFIG_HOME": str(directory), "PYTHONPATH": str(ROOT)}
        self.nodes = nodes
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, task: int, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        """Start one task."""
        before = self.nodes[:task].count(self.nodes[task])
        own = {"RANK": task, "LOCAL_RANK": before, "GROUP_RANK": self.nodes[task]}
        self.processes[task] = subprocess.Popen(
            [sys.executable, "-m", "rpeg_rt", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self._common | {k: str(v) for k, v in own.items()} | dict(environment or {}),
        )

    def end(self, task: int) -> tuple[int, str]:
        """Exit code and standard error of a task that ends by itself."""
        process = self.processes[task]
        _, text = process.communicate(timeout=PATIENCE)
        return process.returncode, text


@pytest.fixture
def tasks(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tasks]:
    made = Tasks(tmp_path, request.param)
    yield made
    for process in made.processes.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("tasks", [[0, 0, 0, 0], [0, 0, 0, 1]], indirect=True)
def test_another_shape_is_refused(tmp_path: Path, tasks: Tasks) -> None:
    plan = spread_plan(tmp_path, nodes=2, gpus=2)
    for task in range(4):
        tasks.start(task, plan)
    code, text = tasks.end(0)
    assert code == 3, text
    assert "the plan needs 2 nodes with 2 tasks each" in text
    assert "Traceback" not in text
    assert [tasks.end(task)[0] for task in (1, 2, 3)] == [0, 0, 0]  # told to leave


@pytest.mark.parametrize("tasks", [[0, 1, 2]], indirect=True)
def test_what_differs_between_nodes_is_told_at_once(tmp_path: Path, tasks: Tasks) -> None:
    (tmp_path / "other").mkdir()
    plan, other = spread_plan(tmp_path, 3, 1), spread_plan(tmp_path / "other", 3, 1, seed=1)
    tasks.start(0, plan)
    tasks.start(1, other)
    tasks.start(2, tmp_path / "nothing.json")
    code, text = tasks.end(0)
    assert code == 3, text
    assert f"  - {socket.gethostname()} (node 1) has another plan, " in text
    assert f"  - {socket.gethostname()} (node 2): cannot read the plan {tmp_path}/nothing.json" in text


@pytest.mark.parametrize("tasks", [[0, 1]], indirect=True)
def test_a_stranger_is_not_admitted_and_the_wait_can_be_ended(tmp_path: Path, tasks: Tasks) -> None:
    plan = spread_plan(tmp_path, 2, 1)
    tasks.start(0, plan)
    tasks.start(1, plan, environment={"RPEG_RT_SECRET": "not that of the other"})
    code, text = tasks.end(1)
    assert code == 4, text
    assert "went away or did not admit this task" in text
    tasks.processes[0].send_signal(signal.SIGTERM)
    code, text = tasks.end(0)
    assert (code, "error: interrupted by SIGTERM" in text) == (130, True), text


@pytest.mark.parametrize("tasks", [[0, 1]], indirect=True)
def test_where_the_controller_cannot_listen(tmp_path: Path, tasks: Tasks) -> None:
    plan = spread_plan(tmp_path, 2, 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        tasks.start(0, plan, "--port", taken.getsockname()[1])
        code, text = tasks.end(0)
    assert code == 3, text
    assert "cannot listen on 127.0.0.1 port" in text
    tasks.start(0, plan, "--interface", "nope0")
    code, text = tasks.end(0)
    assert code == 3, text
    assert "there is no interface `nope0`" in text
    tasks.start(0, plan, "--slots", 2)
    assert tasks.end(0)[0] == 2
    tasks.start(0, plan, environment={"MASTER_ADDR": "no.such.host.invalid"})
    code, text = tasks.end(0)
    assert code == 2, text
    assert "set MASTER_ADDR to its IPv4 address" in text


@pytest.mark.parametrize("tasks", [[0, 1]], indirect=True)
def test_all_tasks_end_with_0_where_nothing_is_left_to_do(tmp_path: Path, tasks: Tasks) -> None:
    plan = spread_plan(tmp_path, 2, 1)
    loaded = load_plan(plan)
    run = loaded.executable.problem.run
    assert run is not None
    origin = Origin(plan=loaded.id, seed=run.seed, steps=run.steps)
    for model in loaded.executable.problem.graph.trainable:
        (tmp_path / "run" / model).mkdir(parents=True)
        (tmp_path / "run" / model / ORIGIN).write_bytes(msgspec.json.encode(origin))
    for task in range(2):
        tasks.start(task, plan, "--save", tmp_path / "run", "--resume", tmp_path / "run")
    assert [tasks.end(task) for task in range(2)] == [(0, ""), (0, "")]


def test_torchrun_on_two_nodes(tmp_path: Path) -> None:
    plan, trace = spread_plan(tmp_path, 2, 1), tmp_path / "trace.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    agents = [
        subprocess.Popen(
            [*command, f"--node-rank={node}", "-m", "rpeg_rt", str(plan), "--trace", str(trace)],
            cwd=ROOT,
            env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    try:
        texts = [agent.communicate(timeout=PATIENCE)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], texts
    assert "3 steps in " in texts[0]
    verdict = verify_file(trace, plan)
    assert (verdict.violations, verdict.exit_code) == ([], 0)
