"""The command line: what goes where, exit codes, and that starting it is cheap."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ir_schema.envelope import decode_stage, encode_stage
from ir_schema.problem import Problem
from rpegc.cli import foreign_packages
from rpegc.cli.group import COMMANDS, run
from rpegc.diagnostics.catalogue import read_catalogue
from rpegc.pipeline import option_types
from rpegc.registry import load_pass
from tests.rpegc.conftest import CASES
from tests.rpegc.fakes import FAKES

ROOT = Path(__file__).parents[2]
ORIGINAL = CASES / "decided" / "01-ppo-sync-colocated-one-layout.json"
MAIN = "from rpegc.cli import main; main()"


def spawn(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A JSON problem with a complete plan, in the interchange form."""
    value = json.loads(ORIGINAL.read_text())
    del value["expected"], value["fields"]
    path = tmp_path / "case.json"
    path.write_text(json.dumps(value))
    return path


Rpegc = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rpegc(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rpegc:
    """Runs a command in an empty directory; its exit code, stdout and stderr."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        code = run([str(a) for a in arguments])
        return (code, *capfd.readouterr())

    return call


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["diff", "--help"], ["x.rpeg", "--help"], []])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from rpegc.cli.group import run
assert run({arguments!r}) == 0
heavy = {{"torch", "networkx", "numpy", "scipy", "megatron", "passes.search"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: rpegc" in done.stdout


def test_help_shows_both_forms_and_every_command(rpegc: Rpegc) -> None:
    code, out, _ = rpegc("--help")
    assert code == 0
    assert "rpegc FILE [-O0..-O3] -o OUT" in out
    assert "--save-stages" in out
    assert all(f"\n  {command.name} " in out for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek"], "did you mean the command `check`?"),
        (["none.rpeg"], "cannot read `none.rpeg`: no such file"),
        (["-O2"], "no input"),
        (["a.rpeg", "--from", "b.json"], "both FILE and `--from` are given"),
        (["a.rpeg", "--emit", "schedule"], "did you mean `scheduled`?"),
        (["a.rpeg", "-p", "verify,serch"], "did you mean `search`?"),
        (
            ["a.rpeg", "-p", "unroll,verify"],
            "pass `verify` needs stage `problem`, but `unroll` makes `unrolled`",
        ),
        (["a.rpeg", "-O7"], "Invalid value for '-O'"),
        (["a.rpeg", "b.rpeg"], "unexpected extra argument"),
        (["a.rpeg", "--print-after", "lowr"], "did you mean `lower`?"),
        (["a.rpeg", "--as-printed", "--cost-model", "megatron"], "`--as-printed` means cost model `paper`"),
        (["a.rpeg", "--cost-model", "nope"], "unknown cost model `nope`"),
        (["a.rpeg", "-O3", "-p", "verify"], "`-O3` and `-p` both choose the passes"),
        (["a.rpeg", "-o", "none/x.json"], "there is no directory `none`"),
        (["report", "a.rpeg", "-o", "none/x.html"], "there is no directory `none`"),
        (["a.rpeg", "--nonsense"], "help: `rpegc --help` shows"),
        (["check", "--nonsense"], "help: `rpegc check --help` shows"),
        (["fmt", "-w", "-"], "standard input cannot be rewritten"),
        (["explain", "E2O3"], "no diagnostic has code"),
        (["schema", "graph"], "unknown stage `graph`"),
        (["passes", "unrol"], "did you mean `unroll`?"),
        (["dump", "none.json"], "cannot read `none.json`"),
        (["diff", "none.json", "none.json"], "cannot read `none.json`"),
    ],
)
def test_usage_errors_exit_2(rpegc: Rpegc, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "a.rpeg").write_text("rpeg 1\n")
    code, out, err = rpegc(*arguments)
    assert code == 2
    assert message in err
    assert out == ""


def test_usage_errors_take_the_form_asked_for(rpegc: Rpegc) -> None:
    _, _, err = rpegc("x.rpeg", "--nonsense", "--message-format", "json")
    assert json.loads(err)["code"] == "E932"
    _, _, err = rpegc("check", "--nonsense", "--message-format=concise")
    assert err.startswith("error[E932]: ")


@pytest.mark.parametrize("arguments", ["--help", "passes", "CASE --emit problem -o -", "CASE -O0 -q --json"])
@pytest.mark.parametrize("target", [">&-", ">/dev/full"])
def test_lost_output_is_reported(case: Path, arguments: str, target: str) -> None:
    words = arguments.replace("CASE", shlex.quote(str(case)))
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(MAIN)} {words} {target}"
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error[E912]: cannot write to standard output")
    assert done.stderr.count("\n") == 2


def test_findings_in_stage_files_name_the_file(rpegc: Rpegc, case: Path, tmp_path: Path) -> None:
    assert rpegc(case, "--emit", "configuration", "--search", "none", "-o", "a.json")[0] == 0
    (tmp_path / "b.json").write_text((tmp_path / "a.json").read_text().replace('"steps"', '"stops"', 1))
    (tmp_path / "c.rpeg").write_text("rpeg 1\ngraph g {\n  cluster { rakcs = 1 }\n}\n")
    for arguments in (["diff", "a.json", "b.json"], ["dump", "b.json"], ["report", "b.json", "--json"]):
        assert " --> b.json\n" in rpegc(*arguments)[2]
    assert " --> b.json\n" in rpegc("--from", "b.json")[2]
    assert " --> c.rpeg:3:13\n" in rpegc("diff", "c.rpeg", "a.json")[2]


def test_json_and_the_artefact_cannot_share_stdout(rpegc: Rpegc, case: Path) -> None:
    code, out, err = rpegc(case, "--json", "-o", "-")
    assert code == 2
    assert "both need stdout" in err
    assert json.loads(out)["outcome"] == "error"


def test_caret_into_the_pipeline(rpegc: Rpegc) -> None:
    _, _, err = rpegc("x.rpeg", "-p", "verify,search{bugdet=5}")
    assert "verify,search{bugdet=5}" in err
    assert err.count("^") == len("bugdet")


def test_print_pipeline(rpegc: Rpegc, case: Path) -> None:
    code, out, _ = rpegc("--print-pipeline", "-O2", "--seed", "7", "--budget", "50")
    assert code == 0
    assert out.startswith("verify,search{")
    assert out.endswith(",unroll,lower,cost,schedule,assemble\n")
    assert "seed=7" in out
    assert "budget=50" in out
    again = rpegc("--print-pipeline", "-p", out.strip())
    assert again[:2] == (0, out)
    assert rpegc(case, "--print-pipeline", "--emit", "lowered")[1].endswith(",unroll,lower\n")


def test_the_plan_in_the_file_is_taken(rpegc: Rpegc, case: Path) -> None:
    code, out, err = rpegc(case, "--search", "none", "--emit", "scheduled", "-o", "-")
    assert (code, err) == (0, "")
    _, body = decode_stage(out.encode())
    expected = json.loads((CASES / "decided" / "01-ppo-sync-colocated-one-layout.json").read_text())[
        "expected"
    ]
    assert body.makespan_ns == expected["makespan_ns"]


def test_a_problem_is_read_from_stdin(case: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from rpegc.cli import main; main()",
            "-",
            "--search",
            "none",
            "-o",
            "p.json",
            "-q",
        ],
        input=case.read_bytes(),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    envelope, _ = decode_stage((tmp_path / "p.json").read_bytes())
    assert envelope.schema == "rpeg.executable"


def test_stages_are_saved_and_resumed(rpegc: Rpegc, case: Path, tmp_path: Path) -> None:
    assert rpegc(case, "--search", "none", "--save-stages", "s", "-o", "a.json", "--verify-each")[0] == 0
    names = sorted(p.name for p in (tmp_path / "s").iterdir())
    assert names == [
        "00-input.problem.json",
        "01-verify.problem.json",
        "02-search.configuration.json",
        "03-unroll.unrolled.json",
        "04-lower.lowered.json",
        "05-cost.costed.json",
        "06-schedule.scheduled.json",
        "07-assemble.executable.json",
    ]
    whole = (tmp_path / "a.json").read_bytes()
    for name in names[2:]:
        assert rpegc("--from", f"s/{name}", "-o", "b.json")[0] == 0
        resumed, kept = (decode_stage(data)[0] for data in ((tmp_path / "b.json").read_bytes(), whole))
        assert (resumed.id, resumed.body) == (kept.id, kept.body)
    code, _, err = rpegc("--from", "s/04-lower.lowered.json", "--search", "sa", "-o", "b.json")
    assert code == 2
    assert "`--search` is about the search, and the plan in stage `lowered` is settled" in err
    code, _, err = rpegc("--from", "s/04-lower.lowered.json", "--as-printed", "-o", "b.json")
    assert code == 2
    assert "are settled" in err


def test_a_later_stage_is_no_problem(rpegc: Rpegc, case: Path) -> None:
    rpegc(case, "--search", "none", "-o", "plan.exe.json")
    code, _, err = rpegc("plan.exe.json", "-o", "b.json")
    assert code == 2
    assert "resume from it with `--from plan.exe.json`" in err


def test_a_crash_can_be_replayed(rpegc: Rpegc, case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpegc.pipeline.load_pass", FAKES.__getitem__)
    text = "tune{steps=3},plan{fault=crash},spread"
    code, out, err = rpegc(case, "-p", text, "-o", "x.json")
    assert (code, out) == (70, "")
    assert "error[E990]: pass `plan` crashed" in err
    replay = next(line for line in err.splitlines() if "rpegc --from" in line)
    arguments = shlex.split(replay.strip())[1:]
    assert arguments[3] == "plan{fault=crash},spread"
    code, _, again = rpegc(*arguments)
    assert code == 70
    assert "RuntimeError: out of luck" in again
    assert not Path("x.json").exists()


def test_a_crash_of_the_front_end_can_be_replayed(
    rpegc: Rpegc, case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("rpegc.cli.compilation.parse_problem", broken)
    code, _, err = rpegc(case, "-o", "x.json")
    assert code == 70
    replay = next(line for line in err.splitlines() if line.strip().startswith("rpegc rpegc-crash-"))
    assert rpegc(*shlex.split(replay.strip())[1:])[0] == 70
    assert Path(shlex.split(replay.strip())[1]).read_bytes() == case.read_bytes()


def test_a_changed_stage_file_is_refused(rpegc: Rpegc, case: Path, tmp_path: Path) -> None:
    rpegc(case, "--search", "none", "--emit", "lowered", "-o", "a.json")
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(text.replace('"prompts": 128', '"prompts": 256', 1))
    code, _, err = rpegc("--from", "a.json", "-o", "b.json")
    assert code == 1
    assert "error[E904]" in err
    assert not (tmp_path / "b.json").exists()


def test_json_tells_the_outcome(rpegc: Rpegc, case: Path) -> None:
    code, out, err = rpegc(case, "--search", "none", "--json", "-o", "plan.exe.json", "--seed", "3")
    assert (code, err) == (0, "")
    found = json.loads(out)
    envelope, body = decode_stage(Path("plan.exe.json").read_bytes())
    assert found["outcome"] == "ok"
    assert found["plan_id"] == envelope.id
    assert found["tokens_per_second"] == body.prediction.score.tokens_per_s
    assert found["step_time_s"] == body.prediction.score.step_time_s
    assert found["peak_memory_bytes"] <= found["memory_limit_bytes"]
    assert [s["stage"] for s in found["stages"]][-1] == "executable"
    assert {
        "utilization",
        "evaluations",
        "cache_hits",
        "search_seconds",
        "seed",
        "termination",
    } <= found.keys()
    assert found["diagnostics"] == []


def test_json_tells_what_is_wrong(rpegc: Rpegc, case: Path) -> None:
    value = json.loads(case.read_text())
    value["workload"]["prompts"] = 0
    case.write_text(json.dumps(value))
    code, out, err = rpegc(case, "--json")
    found = json.loads(out)
    assert code == 1
    assert found["outcome"] == "error"
    assert found["plan_id"] is None
    assert [d["code"] for d in found["diagnostics"]] == ["E303"]
    assert "error[E303]" in err


@pytest.mark.parametrize(("gigabytes", "code"), [(24, "E420"), (10, "E421")])
def test_json_tells_that_nothing_fits(rpegc: Rpegc, case: Path, gigabytes: int, code: str) -> None:
    value = json.loads(case.read_text())
    value["plan"] = {}
    value["hardware"]["memory_bytes"] = gigabytes * 1e9
    case.write_text(json.dumps(value))
    exit_code, out, _ = rpegc(case, "--json", "--budget", "20")
    found = json.loads(out)
    assert exit_code == 1
    assert found["outcome"] == "infeasible"
    assert {d["code"] for d in found["diagnostics"]} == {code}


def test_a_plan_that_does_not_fit_is_refused_but_can_be_looked_at(rpegc: Rpegc, case: Path) -> None:
    value = json.loads(case.read_text())
    value["hardware"]["memory_bytes"] = 1e9
    case.write_text(json.dumps(value))
    code, out, err = rpegc(case, "--search", "none", "--json", "-o", "plan.exe.json")
    assert code == 1
    assert json.loads(out)["outcome"] == "infeasible"
    assert json.loads(out)["peak_memory_bytes"] > 1e9
    assert "error[E420]" in err
    assert not Path("plan.exe.json").exists()
    code, out, err = rpegc(case, "--search", "none", "--emit", "scheduled", "-o", "-")
    assert code == 0
    assert not decode_stage(out.encode())[1].memory_feasible
    assert "warning[W402]" in err


def test_as_printed_forces_the_papers_form(rpegc: Rpegc, case: Path) -> None:
    _, out, _ = rpegc(case, "--search", "none", "--as-printed", "--emit", "problem", "-o", "-")
    options = decode_stage(out.encode())[1].options
    assert (options.as_printed, options.cost_model) == (True, "paper")


def test_summary_is_for_people(rpegc: Rpegc, case: Path) -> None:
    code, out, _ = rpegc(case, "--search", "none", "--summary")
    assert code == 0
    for word in (
        "actor_train",
        "step time",
        "tokens/s",
        "utilisation",
        "peak memory",
        "the plan in the file",
    ):
        assert word in out
    code, out, err = rpegc(case, "--search", "none", "--summary", "-o", "-")
    assert decode_stage(out.encode())[0].schema == "rpeg.executable"
    assert "step time" in err


def test_time_passes_and_print_after(rpegc: Rpegc, case: Path) -> None:
    _, _, err = rpegc(case, "--search", "none", "-o", "x.json", "--time-passes", "--print-after", "schedule")
    assert "-- after schedule: scheduled " in err
    assert "critical path" in err
    assert err.rstrip().endswith("total")


def test_check_counts_every_file(rpegc: Rpegc, case: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.rpeg").write_text("rpeg 1\ngraph g {\n  nonsense\n}\n")
    assert rpegc("check", case)[0] == 0
    code, out, err = rpegc("check", case, "bad.rpeg", "--message-format", "github")
    assert (code, out) == (1, "")
    assert "::error file=bad.rpeg,line=3" in err
    code, _, err = rpegc("check", "bad.rpeg", "--message-format", "json")
    assert json.loads(err.splitlines()[0])["file"] == "bad.rpeg"


def test_fmt_goes_to_text_and_back(rpegc: Rpegc, case: Path, tmp_path: Path) -> None:
    _, text, _ = rpegc("fmt", case)
    (tmp_path / "a.rpeg").write_text(text)
    assert rpegc("fmt", "--check", "a.rpeg")[0] == 0
    _, back, _ = rpegc("fmt", "--json", "a.rpeg")
    assert msgspec.json.decode(back, type=Problem) == msgspec.json.decode(case.read_bytes(), type=Problem)
    (tmp_path / "a.rpeg").write_text(text.replace("\n", "\n\n"))
    code, _, err = rpegc("fmt", "--check", "a.rpeg")
    assert (code, err) == (1, "a.rpeg: would change\n")
    assert rpegc("fmt", "-w", "a.rpeg")[0] == 0
    code, _, err = rpegc("fmt", "-w", case)
    assert code == 2
    assert "would change the form" in err


def test_diff_exit_codes(rpegc: Rpegc, case: Path, problem: Problem, tmp_path: Path) -> None:
    assert rpegc("diff", case, case)[:2] == (0, "the same problem\n")
    other = msgspec.structs.replace(problem, options=msgspec.structs.replace(problem.options, steps=4))
    (tmp_path / "b.json").write_bytes(encode_stage(other))
    code, out, _ = rpegc("diff", case, "b.json")
    assert code == 1
    assert "~ options.steps: 8 => 4 (-50 %)" in out
    code, out, _ = rpegc("diff", case, "b.json", "--json")
    assert code == 1
    [change] = json.loads(out)["changes"]
    assert (change["path"], change["before"], change["after"], change["percent"]) == (
        "options.steps",
        8,
        4,
        -50,
    )
    (tmp_path / "bad.json").write_text("{")
    assert rpegc("diff", case, "bad.json")[0] == 2
    rpegc(case, "--search", "none", "-o", "plan.exe.json")
    code, _, err = rpegc("diff", case, "plan.exe.json")
    assert code == 2
    assert "cannot be compared" in err


def test_dump_and_dot(rpegc: Rpegc, case: Path) -> None:
    for stage in ("configuration", "unrolled", "lowered", "costed", "scheduled", "executable"):
        rpegc(case, "--search", "none", "--emit", stage, "-o", "s.json")
        code, out, _ = rpegc("dump", "s.json")
        assert code == 0
        assert out.startswith(f"# {stage} ")
        code, out, _ = rpegc("dump", "s.json", "--dot")
        assert code == 0
        assert out.startswith(f"digraph {stage} {{")
        assert "actor_gen" in out


def test_every_code_is_explained(rpegc: Rpegc) -> None:
    for code in read_catalogue():
        assert rpegc("explain", code.lower())[0] == 0


def test_passes_are_listed_and_shown(rpegc: Rpegc) -> None:
    _, out, _ = rpegc("passes")
    assert "unrolled -> lowered" in out
    assert "-O2" in out
    _, out, _ = rpegc("passes", "search")
    assert "budget" in out
    assert "rpeg 0" in out
    for option in option_types(load_pass("search")):
        assert f"`{option}`" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed(shell: str) -> None:
    done = spawn("completion", shell)
    assert done.returncode == 0
    assert "_RPEGC_COMPLETE" in done.stdout


@pytest.fixture(scope="module")
def completes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """What bash offers for the last word of a line, through the function that `rpegc completion` prints."""
    folder = tmp_path_factory.mktemp("completion")
    command = folder / "rpegc"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{MAIN}' \"$@\"\n")
    command.chmod(0o755)
    script = folder / "ask.bash"
    script.write_text(
        spawn("completion", "bash").stdout
        + """
compopt() { :; }  # it needs an interactive shell
call() { _rpegc_completion rpegc; }
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
compgen -F call -- "${COMP_WORDS[-1]}" 2>/dev/null
"""
    )
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"

    def ask(line: str) -> list[str]:
        done = subprocess.run(
            ["bash", str(script), *line.split(" ")],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.split()

    return ask


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rpegc di", ["diff"]),
        ("rpegc --sav", ["--save-stages"]),
        ("rpegc a.rpeg --sav", ["--save-stages"]),
        ("rpegc a.rpeg --search gr", ["greedy"]),
        ("rpegc a.rpeg --emit sch", ["scheduled"]),
        ("rpegc a.rpeg --cost-model pa", ["paper"]),
        ("rpegc a.rpeg --print-after a", ["all", "assemble"]),
        ("rpegc a.rpeg -p ver", ["verify"]),
        ("rpegc a.rpeg -p verify,search{seed=1},un", ["verify,search{seed=1},unroll"]),
        ("rpegc passes lo", ["lower"]),
        ("rpegc schema exe", ["executable"]),
        ("rpegc explain E30", [f"E30{i}" for i in range(1, 9)]),
        ("rpegc model llama-3.1-8", ["llama-3.1-8b"]),
        ("rpegc lengths --br", ["--breakpoints"]),
        ("rpegc nothing-like-it", []),
    ],
)
def test_bash_completes(completes: Callable[[str], list[str]], line: str, offered: list[str]) -> None:
    assert completes(line) == offered


@pytest.mark.parametrize("words", ["rpegc a", "rpegc diff a", "rpegc a.rpeg -o b", "rpegc lengths a"])
def test_files_are_left_to_the_shell(words: str) -> None:
    count = str(words.count(" "))
    done = spawn(_RPEGC_COMPLETE="bash_complete", COMP_WORDS=words.replace(" ", "\n"), COMP_CWORD=count)
    assert done.stdout.startswith("file,")


def test_our_packages_are_ours() -> None:
    assert foreign_packages() == {}


def test_a_foreign_package_is_named_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / "__init__.py").write_text("")
    done = spawn("--help", cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 2
    assert str(tmp_path / "passes" / "__init__.py") in done.stderr
    assert "error[E910]" in done.stderr
