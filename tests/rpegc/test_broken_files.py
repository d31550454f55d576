"""Whatever a file contains, the command ends with a documented exit code and a clear finding."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ir_schema.diagnostics import DiagnosticError
from ir_schema.envelope import encode_stage
from ir_schema.problem import Edge
from ir_schema.stages import Configuration, Lowered, Scheduled
from passes.cost import cost
from passes.lower import lower
from passes.schedule import schedule
from passes.unroll import unroll
from passes.verify import Verify
from rpegc import invariants
from rpegc.cli.group import run
from rpegc.frontend import load
from tests.rpegc.conftest import CASES, case_problem, configured

ROOT = Path(__file__).parents[2]
PIPELINE = "verify,search{method=greedy},unroll,lower,cost,schedule,assemble"
replace = msgspec.structs.replace

bounded = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


def outcome(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(list(arguments))
    return code, "".join(capfd.readouterr())


def assert_told(
    capfd: pytest.CaptureFixture[str], *arguments: str, codes: tuple[int, ...] = (0, 1, 2)
) -> str:
    code, said = outcome(capfd, *arguments)
    assert code in codes, said
    assert "Traceback" not in said
    assert "E990" not in said
    assert code == 0 or "error[E" in said
    return said


# Whole files ---------------------------------------------------------------------------------------------

TEXT = (ROOT / "examples" / "ppo_tiny.rpeg").read_text()
CASE = sorted((CASES / "decided").glob("01*.json"))[0].read_text()
PROBLEM = {k: v for k, v in json.loads(CASE).items() if k not in ("fields", "expected")}
FILES = {
    "empty": b"",
    "zeros": bytes(1000),
    "binary": bytes(range(256)) * 16,
    "utf-16": TEXT.encode("utf-16"),
    "truncated text": TEXT[:300].encode(),
    "truncated JSON": CASE[:900].encode(),
    "text after JSON": (CASE + "}").encode(),
    "two graphs": (TEXT + TEXT.removeprefix("rpeg 1")).encode(),
    "deep objects": b'{"a":' * 20_000,
    "deep arrays": b'{"a":' + b"[" * 20_000,
    "deep blocks": b"rpeg 1\ngraph g { " + b"x { " * 10_000,
    "deep parentheses": b"rpeg 1\ngraph g { container c { elements = " + b"(" * 20_000,
    "deep list": b"rpeg 1\ngraph g { workload { prompts = " + b"[" * 20_000,
    "a long line": b"rpeg 1\ngraph g { " + b"x" * 1_000_000,
    "many lines": b"rpeg 1\ngraph g {\n" + b"  # c\n" * 200_000 + b"}\n",
    "many mistakes": b"rpeg 1\ngraph g {\n" + b"  bogus x { y = 1 }\n" * 5_000 + b"}\n",
    "unclosed string": b'rpeg 1\ngraph g { about "' + b"x" * 100_000,
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_kind(name: str, sandbox: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (sandbox / "input").write_bytes(FILES[name])
    for command in (["check"], ["fmt"], [], ["dump"], ["report", "--json"]):
        extra = ["-o", "out.json"] if not command else []
        said = assert_told(capfd, *command, "input", *extra, codes=(1,) if command != ["fmt"] else (0, 1))
        assert len(said) < 200_000 or command == ["fmt"]
    assert_told(capfd, "--from", "input", "-o", "out.json", codes=(1,))
    assert_told(capfd, "diff", "input", "input", codes=(2,))
    assert not list(sandbox.glob("rpegc-crash-*"))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("NaN", "E010"),
        ("Infinity", "E010"),
        ("-Infinity", "E010"),
        ("1e999", "E016"),
        ("9" * 5000, "E016"),
        ("-1", "E303"),
        ("0", "E303"),
        ("1000000000", "E305"),
        ("1.5", "E014"),
        ('"8"', "E014"),
        ("null", "E014"),
        ("true", "E014"),
        ("[8]", "E014"),
        ("{}", "E014"),
        ('1, "prompts": 2', "E013"),
    ],
)
def test_values_of_every_kind(
    value: str, code: str, sandbox: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads(CASE)
    del raw["fields"], raw["expected"]
    raw["workload"]["prompts"] = "HERE"
    (sandbox / "input.json").write_text(json.dumps(raw, indent=1).replace('"HERE"', value))
    said = assert_told(capfd, "check", "input.json", codes=(1,))
    assert f"error[{code}]" in said
    assert "input.json:" in said


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("device_space", None, [1000, 1000, 1000]),
        ("options", "steps", 10**7),
        ("workload", "epochs", 10**9),
        ("workload", "prompt_length", 10**9),
        ("hardware", "memory_bandwidth", 1e-300),
        ("hardware", "peak_flops", 1e300),
        ("hardware", "kernel_seconds", 1e300),
    ],
)
def test_magnitudes_that_no_machine_has(
    section: str, field: str | None, value: object, sandbox: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads(CASE)
    del raw["fields"], raw["expected"]
    if field is None:
        raw[section] = value
    else:
        raw[section][field] = value
    (sandbox / "input.json").write_text(json.dumps(raw))
    assert "error[E305]" in assert_told(capfd, "check", "input.json", codes=(1,))


# Stages whose id fits but whose content does not ----------------------------------------------------------


def stages() -> tuple[Configuration, Lowered, Scheduled]:
    configuration = configured(case_problem(sorted((CASES / "decided").glob("01*.json"))[0]))
    lowered = lower(unroll(configuration))
    return configuration, lowered, schedule(cost(lowered))


def unsound() -> Iterator[tuple[str, Any]]:
    configuration, lowered, scheduled = stages()
    graph = configuration.problem.graph
    backwards = tuple(Edge(e.target, e.source, e.container) for e in graph.data_edges)
    looped = replace(graph, data_edges=(*graph.data_edges, *backwards))
    yield "no plan", replace(configuration, plan={})
    yield "cyclic graph", replace(configuration, problem=replace(configuration.problem, graph=looped))
    zero = {v: replace(p, data_parallel=0) for v, p in configuration.plan.items()}
    yield "no replicas", replace(configuration, plan=zero)
    nodes = lowered.nodes
    for name, change in {
        "cyclic nodes": {"predecessors": (len(nodes) - 1,)},
        "unknown predecessor": {"predecessors": (99999,)},
        "negative predecessor": {"predecessors": (-1,)},
        "unknown vertex": {"vertex": "nobody"},
        "wrong id": {"id": 1},
    }.items():
        yield name, replace(lowered, nodes=(replace(nodes[0], **change), *nodes[1:]))
    yield "no nodes", replace(lowered, nodes=())
    yield "unknown critical node", replace(scheduled, critical_path=(99999,))
    first = replace(scheduled.nodes[0], time_ns=-5)
    yield "negative time", replace(scheduled, nodes=(first, *scheduled.nodes[1:]))


@pytest.mark.parametrize(("name", "stage"), list(unsound()), ids=lambda x: x if isinstance(x, str) else "")
def test_unsound_stages_are_refused(
    name: str, stage: Any, sandbox: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (sandbox / "stage.json").write_bytes(encode_stage(stage))
    for arguments in (
        ["--from", "stage.json", "-o", "x"],
        ["dump", "stage.json"],
        ["report", "stage.json", "--json"],
    ):
        assert "error[E905]" in assert_told(capfd, *arguments, codes=(1,)), name
    assert "error[E905]" in assert_told(capfd, "diff", "stage.json", "stage.json", codes=(2,))


# One value at a time --------------------------------------------------------------------------------------

VALUES = (None, -1, "zz", [], 10**19)
PARTS = 5
"""Each has all values, in other places."""


def paths(raw: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if above:
        yield above
    inside = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    for key, value in inside:
        yield from paths(value, (*above, key))


def with_one_change(raw: Any) -> Iterator[Any]:
    """`raw` with one of `VALUES` in every place, and with every place left out."""
    for path in paths(raw):
        for value in (*VALUES, "left out"):
            changed = json.loads(json.dumps(raw))
            at = changed
            for key in path[:-1]:
                at = at[key]
            if value == "left out":
                del at[path[-1]]
            else:
                at[path[-1]] = value
            yield changed


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, PARTS))])
def test_every_value_of_a_problem_is_checked(part: int) -> None:
    """Nothing but findings comes of a problem with one wrong value."""
    accepted = 0
    for raw in itertools.islice(with_one_change(PROBLEM), part, None, PARTS):
        with contextlib.suppress(DiagnosticError):
            Verify().run(load(json.dumps(raw).encode(), "input.json", ROOT).problem)
            accepted += 1
    assert accepted


def test_every_value_of_a_stage_is_checked() -> None:
    configuration = stages()[0]
    for raw in with_one_change(json.loads(encode_stage(configuration))["body"]):
        with contextlib.suppress(msgspec.ValidationError):
            list(invariants.unsound(msgspec.convert(raw, Configuration)))


# Anything at all ------------------------------------------------------------------------------------------


@st.composite
def edited(draw: st.DrawFn, text: str) -> str:
    """`text` after a few random edits: cuts, repetitions, foreign characters, other numbers."""
    for _ in range(draw(st.integers(1, 3))):
        a = draw(st.integers(0, len(text)))
        b = min(len(text), a + draw(st.sampled_from([0, 1, 2, 7, 40, 400])))
        middle = draw(
            st.one_of(
                st.just(""),
                st.just(text[a:b] * 2),
                st.text("{}[]()=:,.-+*/#\"'\\ \n@0189aeE_\x00\x7fé\U0001f600\u2028", max_size=6),
                st.sampled_from(
                    ["-1", "0", "1e400", "99999999999999999999", "none", "true", "nan", "actor", "}"]
                ),
            )
        )
        text = text[:a] + middle + text[b:]
    return text


ANY_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 10**20),
        st.floats(allow_nan=False, width=32),
        st.text(max_size=5),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def with_other_values(draw: st.DrawFn, raw: Any) -> Any:
    """`raw` with one or two values anywhere in it replaced, removed or moved."""
    raw = json.loads(json.dumps(raw))
    for _ in range(draw(st.integers(1, 2))):
        at, path = raw, []
        while isinstance(at, dict | list) and at and (not path or draw(st.integers(0, 4))):
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            path.append((at, draw(st.sampled_from(keys))))
            at = at[path[-1][1]]
        if not path:
            continue
        holder, key = path[-1]
        match draw(st.sampled_from(["replace", "remove", "swap"])):
            case "replace":
                holder[key] = draw(ANY_JSON)
            case "remove":
                del holder[key]
            case "swap":
                keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
                other = draw(st.sampled_from(keys))
                holder[key], holder[other] = holder[other], holder[key]
    return raw


def compile_whatever(name: str, content: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / name).write_text(content)
    assert_told(capfd, "check", name)
    assert_told(capfd, "fmt", name)
    assert_told(capfd, name, "-p", PIPELINE, "--summary", "-o", "out.exe.json")
    assert not list(folder.glob("rpegc-crash-*"))


@bounded
@given(text=edited(TEXT))
def test_any_text(text: str, sandbox: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compile_whatever("input.rpeg", text, sandbox, capfd)


@bounded
@given(raw=with_other_values(PROBLEM))
def test_any_problem(raw: Any, sandbox: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compile_whatever("input.json", json.dumps(raw), sandbox, capfd)


@bounded
@given(data=st.data())
def test_any_stage_file(data: st.DataObject, sandbox: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Other content under its right id, where it can be had."""
    kind, text = data.draw(st.sampled_from(STAGES))
    envelope = data.draw(with_other_values(json.loads(text)))
    with contextlib.suppress(msgspec.ValidationError, ValueError, KeyError, TypeError):
        stage = msgspec.convert(envelope["body"], kind)
        (sandbox / "stage.json").write_bytes(encode_stage(stage))
        assert_told(capfd, "--from", "stage.json", "-o", "out.exe.json")
        assert_told(capfd, "report", "stage.json", "--json")
    (sandbox / "stage.json").write_text(json.dumps(envelope))
    assert_told(capfd, "dump", "stage.json")
    assert_told(capfd, "diff", "stage.json", "stage.json")


STAGES = [(type(s), encode_stage(s).decode()) for s in stages()]
