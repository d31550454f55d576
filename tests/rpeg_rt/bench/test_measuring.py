"""Workers that measure: kernels, communications, operators, and what goes wrong meanwhile."""

import dataclasses
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ir_schema.problem import Placement, Workload
from ir_schema.samples import Grid, OperatorCase, SamplesError, TransferSample, decode_samples, encode_samples
from rpeg_rt.allocation import everybody
from rpeg_rt.bench.cases import examining
from rpeg_rt.bench.crew import Workers, workers
from rpeg_rt.bench.jobs import Effort, Holding, Job, Operator, Result, Transfer
from rpeg_rt.bench.machine import Sweep, occupancy, shape_jobs, slowest, transfer_jobs
from rpeg_rt.cli import main
from rpeg_rt.engine.architecture import canonical_shapes
from rpeg_rt.failure import PreflightError, WorkerFailedError, WorkerLostError
from tests.rpeg_rt.test_launching import SLURM, joined

ONCE = Effort(0.0, 2, 2)
TINY = Sweep(
    width=4,
    rows=(2, 8),
    widths=(8, 16),
    oblong=((2, 8, 16),),
    copied=1 << 12,
    layer=(16, 2, 4),
    messages=(64, 256),
    effort=ONCE,
)
MODEL = replace(
    examining(False, True)[0].models["lm"], layers=2, hidden=32, ffn=48, vocabulary=128, kv_heads=2
)
SHORT = Workload(prompts=4, rollouts=2, prompt_length=4, response_length=4)


def case(role: str, *degrees: int, microbatches: int = 1, **changes: object) -> OperatorCase:
    data, pipeline, tensor = degrees
    placement = Placement(
        origin=(0, 0, 0),
        extent=(1, 1, data * pipeline * tensor),
        data_parallel=data,
        pipeline_parallel=pipeline,
        tensor_parallel=tensor,
        microbatches=microbatches,
    )
    return replace(OperatorCase(role=role, model=MODEL, workload=SHORT, placement=placement), **changes)


@pytest.fixture(scope="module")
def pair() -> Iterator[Workers]:
    with workers(None, 2, None, None) as crew:
        yield crew


def measured(crew: Workers, subject: OperatorCase, effort: Effort = ONCE) -> list[Result]:
    ranks = tuple(range(subject.placement.layout.gpus))
    return crew.measure(Job(Operator(subject), ranks, effort), "an operator")[0]


def held(crew: Workers, subject: OperatorCase) -> list[Result]:
    ranks = tuple(range(subject.placement.layout.gpus))
    return crew.measure(Job(Holding(subject), ranks, Effort()), "its memory")[0]


# What is measured ------------------------------------------------------------------------------------------


def test_kernels_and_communications_of_every_shape(pair: Workers) -> None:
    assert pair.nodes == ((0, 1),)
    jobs = [*shape_jobs(pair.nodes, False, TINY), *transfer_jobs(pair.nodes, 1, TINY)]
    # Products of four shapes, a copy and a layer for one and for two workers; four primitives of two sizes.
    assert len(jobs) == 2 * (4 + 1 + 1) + 4 * 2
    for what, job, _ in jobs:
        results, waited = pair.measure(job, what)
        seconds = slowest(results)
        assert len(seconds) == ONCE.least
        assert all(0 < s < waited for s in seconds)


def test_of_each_repetition_the_slowest_worker_counts() -> None:
    assert slowest([Result(seconds=(1.0, 4.0)), Result(seconds=(3.0, 2.0))]) == (3.0, 4.0)


def test_more_time_means_more_repetitions_within_limits(pair: Workers) -> None:
    subject = Transfer("all_reduce", 1024)
    few, many = (pair.measure(Job(subject, (0, 1), e), "")[0] for e in (ONCE, Effort(9.0, 2, 30)))
    assert {len(r.seconds) for r in few} == {2}
    assert {len(r.seconds) for r in many} == {30}
    assert [len(r.busy_seconds) for r in many] == [30, 30]


def test_memory_and_dispatch(pair: Workers) -> None:
    memory, times = occupancy(pair, gpu=False)
    assert memory is not None
    assert 50e6 < memory.idle_bytes < 2e9
    assert memory.total_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    assert len(times) == 50
    assert all(0 < t < 30 for t in times)


@pytest.mark.parametrize("degrees", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)], ids="{0[0]}".format)
@pytest.mark.parametrize("role", ["generation", "inference", "training"])
def test_operators_of_every_role_and_layout(pair: Workers, role: str, degrees: tuple[int, ...]) -> None:
    subject = case(role, *degrees, microbatches=2)
    results, watched = measured(pair, subject), held(pair, subject)
    assert len(results) == len(watched) == degrees[0] * degrees[1] * degrees[2]
    elements = sum(a * (b or [1])[0] for a, *b in canonical_shapes(MODEL).values())
    shards = degrees[1] * degrees[2]
    for result, memory in zip(results, watched, strict=True):
        assert len(result.seconds) == ONCE.least
        assert all(s > 0 for s in result.seconds)
        # A stage or tensor shard holds from 1 / (shards + 1) to all of the weights; training keeps a gradient
        # of each, and its replicas share two moments.
        copies = 2 + 2 / degrees[0] if role == "training" else 1
        least = 4 * elements * copies / (shards + 1)
        assert least < memory.tensor_bytes < 4 * elements * (copies + 1) + 400_000
        assert result.process_bytes is not None
        assert result.process_bytes > memory.tensor_bytes


def test_heads_and_lengths(pair: Workers) -> None:
    uneven = replace(SHORT, length_quantiles=((0.5, 2), (1.0, 4)))
    for role in ("inference", "training"):
        for head in ("scalar", "both"):
            subject = case(role, 2, 1, 1, model=replace(MODEL, head=head), workload=uneven)
            assert len(measured(pair, subject)) == 2


def test_more_work_takes_longer_and_more_memory(pair: Workers) -> None:
    large = replace(SHORT, prompts=64, rollouts=8)
    subjects = [case("training", 1, 1, 1, workload=w) for w in (SHORT, large)]
    short, longer = (measured(pair, subject, Effort(0.0, 3, 3))[0] for subject in subjects)
    assert min(longer.busy_seconds) > 2 * min(short.busy_seconds)
    short, longer = (held(pair, subject)[0] for subject in subjects)
    assert longer.tensor_bytes > short.tensor_bytes


# Tiers -----------------------------------------------------------------------------------------------------


def groups(nodes: list[list[int]], per_rack: int) -> dict[str, list[tuple[str, int, int]]]:
    found: dict[str, list[tuple[str, int, int]]] = {}
    for _, job, sample in transfer_jobs(nodes, per_rack, dataclasses.replace(TINY, messages=(64,))):
        assert isinstance(sample, TransferSample)
        assert len(job.ranks) == sample.participants
        kind = "p" if sample.primitive == "point_to_point" else sample.primitive
        found.setdefault(sample.tier, []).append((kind, sample.participants, sample.per_node))
    return {t: [(k, n, m) for k, n, m in s if k in ("p", "all_reduce")] for t, s in found.items()}


def test_every_tier_is_measured_that_can_be_reached() -> None:
    assert groups([[0]], 1) == {}
    assert groups([[0, 1]], 1) == {"intra": [("all_reduce", 2, 2), ("p", 2, 2)]}
    nodes = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    intra = [("all_reduce", 2, 2), ("all_reduce", 4, 4), ("p", 2, 2)]
    assert groups(nodes, 4) == {
        "intra": intra,
        "inter": [("all_reduce", 8, 4), ("all_reduce", 16, 4), ("p", 2, 1)],
    }
    assert groups(nodes, 2) == {
        "intra": intra,
        "inter": [("all_reduce", 8, 4), ("p", 2, 1)],
        "rack": [("all_reduce", 8, 4), ("all_reduce", 16, 4), ("p", 2, 1)],
    }


def test_workers_of_a_launcher_are_in_the_order_of_their_nodes() -> None:
    fleet = joined([5, 7, 5, 7])
    crew = everybody(fleet)
    assert crew.ranks == {0: (0,), 2: (1,), 1: (2,), 3: (3,)}
    assert Workers(crew).nodes == ((0, 1), (2, 3))
    assert Workers(crew).machines == ("n5", "n7")
    fleet.close()
    fleet = joined([5, 7], software={})
    with pytest.raises(PreflightError, match="n7 has torch None"):
        everybody(fleet)
    fleet.close()


# Files and faults -----------------------------------------------------------------------------------------


def test_a_measurement_from_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    grid, out = tmp_path / "grid.json", tmp_path / "samples.json"
    grid.write_bytes(msgspec.json.encode(Grid(cases=(case("inference", 1, 2, 1), case("training", 2, 1, 1)))))
    assert main(["bench", "operators", str(grid), "-o", str(out), "--workers", "2", "--quick"]) == 0
    samples = decode_samples(out.read_bytes())
    assert encode_samples(samples) == out.read_bytes()
    assert [o.case.role for o in samples.operators] == ["inference", "training"]
    for o in samples.operators:
        assert len(o.seconds) == len(o.busy_seconds) >= 3
    e = samples.environment
    assert (e.backend, e.accelerator, e.workers, e.threads, e.launcher) == ("gloo", None, (2,), 1, "")
    assert e.software["torch"]
    assert e.processors == len(os.sched_getaffinity(0))
    text = capfd.readouterr().err
    names = ["0/2  inference, dp1.pp2.tp1", "1/2  training, dp2.pp1.tp1"]
    assert text.splitlines() == [*names, *(f"{name}: memory" for name in names)]


@pytest.mark.parametrize("data", [b"{}", b"\xff", b"[1"])
def test_what_is_no_sample_file(data: bytes) -> None:
    with pytest.raises(SamplesError, match="not a sample file"):
        decode_samples(data)


def test_mistakes_are_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "samples.json")

    def told(*arguments: str) -> tuple[int, str]:
        return main(["bench", *arguments]), capfd.readouterr().err

    code, text = told("machine", "-o", out, "--operators", out)
    assert (code, "are one file" in text) == (2, True), text
    code, text = told("operators", str(tmp_path / "none.json"), "-o", out)
    assert (code, "cannot read the grid" in text) == (2, True), text
    code, text = told("machine", "-o", str(tmp_path / "nowhere" / "samples.json"))
    assert (code, "there is no directory" in text) == (2, True), text
    code, text = told("machine", "-o", str(tmp_path))
    assert (code, "it is a directory" in text) == (2, True), text
    code, text = told("machine", "-o", out, "--port", "3000")
    assert (code, "--interface and --port are for workers that Slurm" in text) == (2, True), text
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    code, text = told("machine", "-o", out, "--workers", "2")
    assert (code, "here Slurm starts them" in text) == (2, True), text
    assert not list(tmp_path.iterdir())


def test_a_failure_names_the_worker_and_what_it_did() -> None:
    wrong = case("inference", 1, 1, 1, model=replace(MODEL, attention_heads=3))
    with (
        pytest.raises(WorkerFailedError, match=r"worker 0 on .* failed at an operator: .*divide"),
        workers(None, 1, None, None) as crew,
    ):
        measured(crew, wrong)


def test_a_loss_names_the_worker_and_what_it_did() -> None:
    endless = Job(Transfer("all_reduce", 64), (0, 1), Effort(60.0, 10**6, 10**6))
    with workers(None, 2, None, None) as crew:
        threading.Timer(1.0, os.kill, (crew.pids[1], signal.SIGKILL)).start()
        with pytest.raises(WorkerLostError, match=r"worker 1 on .* was lost at work: killed by signal 9"):
            crew.measure(endless, "work")
