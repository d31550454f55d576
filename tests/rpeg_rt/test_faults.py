"""Every way in which a run can fail: a clear message, the documented exit code, no process left behind."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from ir_schema.problem import Optimizer, Placement, Problem
from rpeg_rt import run as run_module
from rpeg_rt.cli import main
from rpeg_rt.interludes import Interludes
from rpeg_rt.signals import Stopped, complete, on_interrupt, stoppable
from rpeg_rt.snapshots.directory import newest
from rpeg_rt.snapshots.saver import Saver
from rpeg_rt.verify import verify_file
from tests.rpeg_rt.plans import colocated, executable, place, problem, without_critic, write_plan

replace = msgspec.structs.replace
LONG = 5000
PATIENCE = 60.0


def rpeg_rt(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "import sys; from rpeg_rt.cli import main; sys.exit(main())"]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )


def descendants(pid: int) -> dict[int, str]:
    """Living processes below `pid`, with their command lines."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = (Path("/proc") / str(child) / "cmdline").read_text().replace("\0", " ")
            waiting.append(child)
    return found


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def left_after(pids: list[int], seconds: float = 5.0) -> list[int]:
    """Those of some processes that still live when there was time for all to end."""
    deadline = time.monotonic() + seconds
    while (left := alive(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@contextmanager
def long_run(
    tmp_path: Path, plan: dict[str, Placement], *options: object
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A run that has finished a step, and the processes below it: the spawner first, then its workers."""
    path = write_plan(tmp_path, executable(problem(), plan))
    process = rpeg_rt(path, "--steps", LONG, "--trace", tmp_path / "trace.jsonl", *options)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("step "), process.stderr.read()
        everyone = descendants(process.pid)
        below = [pid for pid, command in everyone.items() if "rpeg_rt.judge" not in command]
        assert len(below) == 3
        yield process, below
        assert left_after(list(everyone)) == []
    finally:
        process.kill()
        process.wait()


def end(process: subprocess.Popen[str], code: int, within: float) -> str:
    """The standard error of a run that ends by itself with `code`."""
    began = time.monotonic()
    _, text = process.communicate(timeout=PATIENCE + within)
    assert process.returncode == code, text
    assert time.monotonic() - began < within
    assert re.fullmatch(rf"rpeg-rt: exit code {code} \(.*\)", text.splitlines()[-1])
    assert "Traceback" not in text
    return text


def check_trace(tmp_path: Path, code: int) -> None:
    """The trace is whole and faithful as far as the run went, and says how it ended."""
    verdict = verify_file(tmp_path / "trace.jsonl", tmp_path / "plan.exe.json")
    assert verdict.violations == []
    assert verdict.exit_code == code
    assert verdict.nodes > 0


DISJOINT = colocated() | {"ref_inf": place("1"), "critic_inf": place("1"), "critic_train": place("1")}


@pytest.mark.parametrize("plan", [colocated(dp=2), DISJOINT], ids=["collective", "disjoint"])
def test_a_killed_worker(tmp_path: Path, plan: dict[str, Placement]) -> None:
    with long_run(tmp_path, plan) as (process, below):
        os.kill(below[-1], signal.SIGKILL)
        text = end(process, 4, within=5)
    assert f"worker 1 (GPU 0.0.1) on {socket.gethostname()} was lost" in text
    assert "killed by signal 9" in text
    assert re.search(r"at step \d+ \(node \d+\)|had nothing to do", text)
    check_trace(tmp_path, 4)


def test_ctrl_c(tmp_path: Path) -> None:
    with long_run(tmp_path, colocated(dp=2)) as (process, _):
        process.send_signal(signal.SIGINT)
        end(process, 130, within=5)
    check_trace(tmp_path, 130)


def test_a_stopped_worker_is_a_stall(tmp_path: Path) -> None:
    with long_run(tmp_path, colocated(dp=2), "--node-seconds", 3) as (process, below):
        os.kill(below[1], signal.SIGSTOP)
        text = end(process, 5, within=12)
    assert re.search(r"did not complete before its deadline, after \d s; still waiting for worker", text)
    check_trace(tmp_path, 5)


@pytest.mark.slow
def test_a_stopped_worker_is_missed_soon_whatever_was_predicted(tmp_path: Path) -> None:
    with long_run(tmp_path, colocated(dp=2)) as (process, below):
        os.kill(below[-1], signal.SIGSTOP)
        text = end(process, 5, within=100)
    assert re.search(r"worker 1 \(GPU 0\.0\.1\) on \S+ \(without a sign of life for 6\d s\)", text)
    assert "worker 0 (GPU 0.0.0) on " in text or "still waiting for worker 1" in text
    check_trace(tmp_path, 5)


@pytest.mark.parametrize("victim", ["controller", "spawner"])
def test_no_worker_outlives_controller_or_spawner(tmp_path: Path, victim: str) -> None:
    with long_run(tmp_path, colocated(dp=2)) as (process, below):
        os.kill(process.pid if victim == "controller" else below[0], signal.SIGKILL)
        process.wait(PATIENCE)
    if victim == "spawner":
        assert process.returncode == 4


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code and standard error of a command line in this process, which leaves no other behind."""
    before = descendants(os.getpid())
    code = main([str(a) for a in arguments])
    assert descendants(os.getpid()).keys() <= before.keys()
    text = capsys.readouterr().err
    if code:
        assert text.splitlines()[-1].startswith(f"rpeg-rt: exit code {code} (")
    return code, text


def with_verifier(directory: Path, body: str) -> Path:
    """A plan whose verifier does `body`."""
    name = f"bad_{abs(hash(directory))}"
    (directory / f"{name}.py").write_text(f"def verify(prompt, response, record):\n    {body}\n")
    return write_plan(directory, executable(problem(verifier=f"{name}:verify"), colocated()))


def test_a_verifier_that_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = with_verifier(tmp_path, "return record['nothing']")
    code, text = run_cli(capsys, path, "--trace", tmp_path / "trace.jsonl")
    assert code == 6, text
    assert all(w in text for w in ("reward_inf", "response ", "step 0", "KeyError: 'nothing'", "bad_")), text
    check_trace(tmp_path, 6)


def test_a_verifier_that_hangs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = with_verifier(tmp_path, "import time; print('asleep'); time.sleep(1000)")
    code, text = run_cli(capfd, path, "--node-seconds", 4)
    assert code == 5, text
    assert re.search(r"`reward_inf` at step 0 \(node \d\) did not complete .* waiting for its verifier", text)
    assert "asleep" in text


@pytest.mark.parametrize("option", ["--trace", "--metrics"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    path = write_plan(tmp_path, executable(problem(), colocated()))
    code, text = run_cli(capsys, path, option, "/dev/full", "--steps", 1)
    assert code == 2
    assert f"error: cannot write the {option[2:]} /dev/full: No space left on device" in text


def listens_for(process: subprocess.Popen[str], number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_in_the_first_moments_ends_the_program_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    """At once, and a little later: imports, and what is looked at before anything is started."""
    path = write_plan(tmp_path, executable(problem(), colocated()))
    for seconds in (0.0, 0.15):
        process = rpeg_rt(path)
        while not listens_for(process, signal.SIGTERM):
            assert process.poll() is None
        time.sleep(seconds)
        process.send_signal(number)
        text = end(process, 130, within=20)
        assert f"error: interrupted by {number.name}\n" in text


def interrupted_early(tmp_path: Path, plan: Path) -> str:
    """What a run says that gets SIGTERM when its first process is there; none may be left."""
    process = rpeg_rt(plan, "--trace", tmp_path / "trace.jsonl")
    try:
        deadline = time.monotonic() + PATIENCE
        while not (below := list(descendants(process.pid))) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        text = end(process, 130, within=10)
        assert below
        assert left_after(below) == []
        return text
    finally:
        process.kill()
        process.wait()


def test_a_signal_while_a_verifier_is_loaded(tmp_path: Path) -> None:
    path = with_verifier(tmp_path, "return 0.0")
    (module,) = tmp_path.glob("bad_*.py")
    module.write_text("import time\ntime.sleep(1000)\n" + module.read_text())
    assert "error: interrupted by SIGTERM\n" in interrupted_early(tmp_path, path)
    verdict = verify_file(tmp_path / "trace.jsonl", path)
    assert (verdict.violations, verdict.exit_code) == ([], 130)


def test_a_signal_is_heard_once() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def asked() -> None:
        with stoppable(last=False):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGUSR1)  # the way out is not cut off

    heard: list[int] = []

    def failing() -> None:
        with stoppable(last=False):
            try:
                with on_interrupt(heard.append):
                    signal.raise_signal(signal.SIGINT)
                    raise KeyError
            finally:
                signal.raise_signal(signal.SIGINT)

    def at_the_end() -> None:
        with stoppable(last=False), complete():
            signal.raise_signal(signal.SIGTERM)  # it comes too late
            signal.raise_signal(signal.SIGINT)

    for call, outcome in ((asked, Stopped), (failing, KeyError), (at_the_end, Stopped)):
        with pytest.raises(outcome):
            call()
    assert heard == [signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interrupt_while_workers_start_ends_at_once(tmp_path: Path) -> None:
    path = write_plan(tmp_path, executable(problem(), colocated()))
    interrupted_early(tmp_path, path)
    verdict = verify_file(tmp_path / "trace.jsonl", path)
    assert (verdict.violations, verdict.exit_code) == ([], 130)


def test_weights_that_explode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = problem(run={"optimizer": Optimizer(learning_rate=1e160)})
    path = write_plan(tmp_path, executable(made, colocated()))
    saving = ("--save", tmp_path / "run", "--save-every", 1)
    got, text = run_cli(capsys, path, "--trace", tmp_path / "trace.jsonl", *saving)
    assert got == 8, text
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["step-00000001"]  # nothing of what exploded
    assert re.search(
        r"worker 0 \(GPU 0\.0\.0\) on .* failed in `\w+` at step 1 \(node \d\): .*not finite", text
    )
    check_trace(tmp_path, 8)


def test_the_directory_of_the_weights_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_plan(tmp_path, executable(problem(), colocated()))
    weights = tmp_path / "some" / "where"
    assert run_cli(capsys, path, "--steps", 1, "--save", weights)[0] == 0
    files = {m: {p.name for p in (weights / m).iterdir()} for m in ("actor", "critic")}
    whole = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "rpeg.json"}
    assert files == {"actor": whole | {"generation_config.json"}, "critic": whole}
    code, text = run_cli(capsys, path, "--steps", 1, "--save", weights)
    assert code == 2
    assert f"{weights / 'actor'} exists already; give --save another directory" in text
    code, text = run_cli(capsys, path, "--steps", 1, "--save", path / "below")
    assert code == 2
    assert f"error: cannot create the directory {path / 'below'}: Not a directory" in text
    code, text = run_cli(capsys, path, "--steps", 1, "--trace", tmp_path / "no" / "trace")
    assert code == 2
    assert "cannot write the trace" in text


@pytest.mark.slow
def test_a_worker_that_runs_out_of_memory(tmp_path: Path) -> None:
    with long_run(tmp_path, colocated(dp=2)) as (process, below):
        used = int(Path(f"/proc/{below[1]}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.prlimit(below[1], resource.RLIMIT_AS, (used // 2, used // 2))
        text = end(process, 4, within=60)
    assert re.search(r"^error: worker 0 \(GPU 0\.0\.0\) on .*(memory|alloc|was lost)", text, re.MULTILINE), (
        text
    )
    check_trace(tmp_path, 4)


@pytest.mark.slow
def test_a_slow_worker_is_waited_for(tmp_path: Path) -> None:
    """It works for a tenth of the time, and much longer than what was predicted of it."""
    path = write_plan(tmp_path, executable(problem(), colocated(dp=2)))
    process = rpeg_rt(path, "--steps", 6, "--trace", tmp_path / "trace.jsonl")
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("step ")
        worker = list(descendants(process.pid))[-1]
        while process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGSTOP)
                time.sleep(0.27)
                os.kill(worker, signal.SIGCONT)
                time.sleep(0.03)
        _, text = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, text
    finally:
        process.kill()
        process.wait()
    check_trace(tmp_path, 0)


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """A file system of its own that holds so much."""
    directory.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", directory], check=False
    ).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_between_two_snapshots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The snapshot before is there, whole, and is what the run goes on from; a damaged one is passed over."""
    path = write_plan(tmp_path, executable(problem(), colocated(dp=2)))
    with small_disk(tmp_path / "small", "64m") as disk:
        first = ("--save", disk / "run", "--save-every", 1, "--trace", tmp_path / "trace.jsonl")
        assert run_cli(capsys, path, *first, "--steps", 1)[0] == 0
        one = sum(f.stat().st_size for f in (disk / "run" / "step-00000001").iterdir())
        free = shutil.disk_usage(disk).free
        (disk / "other").write_bytes(bytes(free - one // 2))
        for model in ("actor", "critic"):
            shutil.rmtree(disk / "run" / model)
        code, text = run_cli(capsys, path, *first, "--resume", disk / "run", "--steps", 3)
        assert code == 2, text
        assert re.search(
            r"warning: the snapshot after step 2 could not be written to \S*: .*[Nn]o space left on device"
            r".*; the run goes on, and the snapshots before are still there",
            text,
        )
        assert re.search(r"^error: .*[Nn]o space left on device", text, re.MULTILINE)
        assert [p.name for p in (disk / "run").iterdir() if p.name.startswith(("step", ".step"))] == [
            "step-00000001"
        ]
        check_trace(tmp_path, 2)
        damaged = disk / "run" / "step-00000002"
        (disk / "other").unlink()
        shutil.copytree(damaged.with_name("step-00000001"), damaged)
        for model in ("actor", "critic"):
            shutil.rmtree(disk / "run" / model, ignore_errors=True)
        code, text = run_cli(capsys, path, *first, "--resume", disk / "run", "--steps", 2)
    assert code == 0, text
    assert re.search(
        r"warning: the snapshot \S*step-00000002 is damaged: .*; falling back to the one before", text
    )
    assert "note: resuming after step 1 from " in text


def test_a_phase_in_which_no_response_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tenth of eight responses over two replicas is none: who waits for them goes on with nothing."""
    made = executable(
        problem(quantiles=((0.1, 2), (1.0, 8))), colocated(dp=2, ref_inf=place("2"), critic_inf=place("2"))
    )
    assert {n.phases for n in made.template if n.vertex == "reward_inf"} == {2}
    path = write_plan(tmp_path, made)
    code, text = run_cli(capsys, path, "--steps", 2, "--trace", tmp_path / "trace.jsonl")
    assert code == 0, text
    check_trace(tmp_path, 0)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["snapshot", "weights", "verification"])
def test_a_signal_while_something_is_written_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    where, name = {
        "snapshot": (Saver, "take"),
        "weights": (Interludes, "save_weights"),
        "verification": (run_module, "verify_trace"),
    }[moment]
    original = getattr(where, name)

    def signalled(*arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments)

    monkeypatch.setattr(where, name, signalled)
    path = write_plan(tmp_path, executable(problem(), colocated()))
    saving = ("--save", tmp_path / "run", "--save-every", 2, "--trace", tmp_path / "trace.jsonl")
    code, text = run_cli(capsys, path, "--steps", 4, *saving)
    if moment == "snapshot":
        assert "interrupted by SIGTERM after step 2 of 4; go on with --resume " in text
        assert not list((tmp_path / "run").glob("*/model.safetensors"))
    else:
        assert len(list((tmp_path / "run").glob("*/model.safetensors"))) == 2
    assert code == (130 if moment == "snapshot" else 0), text
    assert newest(tmp_path / "run", pytest.fail)[1].step == (2 if moment == "snapshot" else 4)
    check_trace(tmp_path, code)


def test_held_out_prompts_that_nobody_judges_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = problem(reward_model=True, run={"eval_prompts": "prompts.jsonl"})
    path = write_plan(tmp_path, executable(made, colocated(reward_inf=place("0"))))
    code, text = run_cli(capsys, path, "--steps", 1)
    assert code == 0, text
    assert re.search(r"^warning: the held-out prompts prompts.jsonl are not used: only a verifier", text)


def test_a_model_for_which_there_is_no_memory(tmp_path: Path) -> None:
    """The prediction, which preflight goes by, is of a smaller one."""
    made = executable(problem(), colocated(dp=2))
    huge = replace(made.problem.models["critic"], ffn=2**31 - 16)
    models = made.problem.models | {"critic": huge}
    path = write_plan(tmp_path, replace(made, problem=replace(made.problem, models=models)))
    space = 64 * 1024**3
    done = subprocess.run(
        [sys.executable, "-m", "rpeg_rt", path],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (space, space)),
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    code, text = done.returncode, done.stderr
    assert code == 4, text
    assert re.search(
        r"^error: worker [01] \(GPU 0\.0\.[01]\) on .* failed outside of any node: model `critic` of "
        r"`critic_inf`, `critic_train` could not be made: RuntimeError: .*can't allocate memory",
        text,
        re.MULTILINE,
    )
    assert not re.search(r"Traceback|was lost", text)


def test_files_at_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_plan(tmp_path, executable(problem(), colocated()))
    prompts = tmp_path / "prompts.jsonl"
    whole = prompts.read_text()

    prompts.write_text("{not json\n")
    code, text = run_cli(capsys, path)
    assert code == 6
    assert "prompts.jsonl:1" in text
    prompts.write_text(whole)
    prompts.unlink()
    code, text = run_cli(capsys, path)
    assert code == 2
    assert "prompts.jsonl" in text
    prompts.write_text(whole)

    plan = path.read_text()
    assert '"steps": 3' in plan
    path.write_text(plan.replace('"steps": 3', '"steps": 4'))
    code, text = run_cli(capsys, path)
    assert code == 2
    assert "E904" in text
    path.write_text("nonsense")
    assert run_cli(capsys, path)[0] == 2
    assert run_cli(capsys, tmp_path / "missing.json")[0] == 2
    assert run_cli(capsys, path, "--no-such-option")[0] == 2


def test_preflight_names_all_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = problem()
    odd = replace(made.models["actor"], mlp_bias=True)
    path = write_plan(
        tmp_path, executable(replace(made, models=made.models | {"actor": odd}), colocated(dp=4))
    )
    code, text = run_cli(capsys, path, "--slots", 2)
    assert code == 3
    assert "the plan uses 4 GPUs (0.0.0 … 0.0.3), this machine has 2 slots" in text
    assert "\n  - vertex `actor_gen`, model `actor`: " in text


def test_a_graph_that_is_not_of_its_algorithm_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusals(made: Problem) -> list[str]:
        plan = {v.name: place("0") for v in made.graph.vertices}
        code, text = run_cli(capsys, write_plan(tmp_path, executable(made, plan)))
        assert code == 3, text
        return [line for line in text.splitlines() if line.startswith("  - ")]

    bare = without_critic(problem())
    (lacking,) = refusals(bare)
    assert "`actor_train` (training) must have exactly one container of values" in lacking
    assert "trained by PPO, not 0" in lacking
    first, second = refusals(replace(bare, run=None))
    assert "the plan has no `run` section" in first
    assert second == lacking
    several = " ".join(refusals(problem(run={"algorithm": "grpo"})))
    assert "`critic_train` (training) trains a value function, which GRPO has not" in several
    assert "`actor_train` (training) reads values (`v`), which GRPO has no use for" in several
    pairs = " ".join(refusals(without_critic(problem(run={"algorithm": "dpo"}))))
    assert "reads `logp_actor`, log-probabilities of responses just generated, but DPO learns" in pairs
    assert "learns from pairs, but `Y` is generated by `actor_gen`" in pairs


def test_another_node_shape_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = colocated() | {
        "critic_train": Placement(
            origin=(0, 1, 0),
            extent=(1, 1, 1),
            data_parallel=1,
            pipeline_parallel=1,
            tensor_parallel=1,
            microbatches=1,
        )
    }
    path = write_plan(tmp_path, executable(problem(device_space=(1, 2, 2)), plan))
    code, text = run_cli(capsys, path)
    assert code == 3
    assert "2 nodes (0.0, 0.1)" in text


def test_help_is_quick_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(w in text for w in ("--steps", "--slots", "--trace", "verify", "perfetto", "130 interrupted"))
    assert main(["verify", "--help"]) == 0
    script = (
        "import sys; from rpeg_rt.cli import main; main(['--help']); print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import json; {script}"], capture_output=True, text=True, check=True
    )
    modules = json.loads(done.stdout.splitlines()[-1])
    assert not {"torch", "numpy", "networkx"} & set(modules)
