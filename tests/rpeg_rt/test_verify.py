"""A faithful trace is accepted; every kind of tampering is named by the rule that it breaks."""

import hashlib
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ir_schema.trace import BrokenTraceError, Complete, Dispatch, Footer, Line
from rpeg_rt.cli import main
from rpeg_rt.load import load_plan
from rpeg_rt.perfetto import convert
from rpeg_rt.run import Settings, execute
from rpeg_rt.trace import TraceWriter, read_trace
from rpeg_rt.verify import verify_trace
from tests.rpeg_rt.plans import colocated, executable, place, problem, write_plan

Lines = list[Line]

# Generation in three phases, transfers of rows, resharding, rings of versions, a verifier.
PLAN = colocated(dp=2) | {
    "ref_inf": place("2"),
    "critic_inf": place("2"),
    "actor_train": place("0-1", tp=2),
    "critic_train": place("2"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The plan and the trace of one run."""
    directory = tmp_path_factory.mktemp("run")
    made = problem(quantiles=((0.4, 3), (0.75, 6), (1.0, 8)), staleness=1)
    path = write_plan(directory, executable(made, PLAN))
    trace = directory / "trace.jsonl"
    execute(path, Settings(steps=4, trace=trace), lambda *_: None)
    return path, trace


def violations(run: tuple[Path, Path], lines: Lines) -> list[str]:
    return verify_trace(load_plan(run[0]), lines).violations


def test_the_trace_of_a_run_is_accepted(run: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(read_trace(run[1]))
    assert violations(run, lines) == []
    assert main(["verify", str(run[1]), str(run[0])]) == 0
    assert "verified: " in capsys.readouterr().out


def test_any_changed_byte_is_caught(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run[1].read_bytes()
    dice = random.Random(5)
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    places = {dice.randrange(len(whole)) for _ in range(60)} | {0, ends[0], ends[-1], len(whole) - 3}
    for at in places:
        changed = bytearray(whole)
        changed[at] = (changed[at] + dice.randrange(1, 256)) % 256
        broken = tmp_path / "broken.jsonl"
        broken.write_bytes(changed)
        assert verify_trace(load_plan(run[0]), read_trace(broken)).violations, at
    assert main(["verify", str(broken), str(run[0])]) == 7
    assert capsys.readouterr().err.splitlines()[-1] == "rpeg-rt: exit code 7 (verification failed)"


@pytest.mark.parametrize("cut", [1, 400, "line"])
def test_a_trace_that_was_cut_is_caught(run: tuple[Path, Path], tmp_path: Path, cut: int | str) -> None:
    whole = run[1].read_bytes()
    kept = b"".join(whole.splitlines(keepends=True)[:-1]) if cut == "line" else whole[: -int(cut)]
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(kept)
    assert verify_trace(load_plan(run[0]), read_trace(broken)).violations


def test_a_plan_that_was_changed_or_another_one_is_caught(run: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_plan(tmp_path, executable(problem(), colocated(dp=2)))
    assert main(["verify", str(run[1]), str(other)]) == 7
    text = run[0].read_text()
    assert text.count('"microbatches": 1') > 1
    (tmp_path / "tampered.json").write_text(text.replace('"microbatches": 1', '"microbatches": 2', 1))
    assert main(["verify", str(run[1]), str(tmp_path / "tampered.json")]) == 7
    assert main(["verify", str(run[1]), str(tmp_path / "missing.json")]) == 2
    assert main(["verify", str(tmp_path / "missing.jsonl"), str(run[0])]) == 2


def test_a_file_of_another_kind_is_no_violation(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, trace = run
    empty = tmp_path / "empty"
    empty.touch()
    timeline = str(tmp_path / "timeline.json")
    cases = [
        (["verify", plan, trace], f"{trace} is not a plan: "),
        (["verify", plan, plan], f"{plan} is not a trace "),
        (["verify", trace, trace], f"{trace} is not a plan: "),
        (["verify", empty, plan], f"{empty} is not a trace: it is empty"),
        (["verify", trace, empty], f"{empty} is not a plan: "),
        (["verify", tmp_path, plan], f"cannot read the trace {tmp_path}: "),
        (["trace", empty, "--perfetto", timeline], f"{empty} is not a trace: it is empty"),
        (["trace", plan, "--perfetto", timeline], f"{plan} is not a trace"),
    ]
    for arguments, message in cases:
        assert main([str(a) for a in arguments]) == 2
        assert message in capsys.readouterr().err
    assert not Path(timeline).exists()


# Tampering by somebody who also repairs the hash chain: the events themselves must be implausible.


def index(lines: Lines, event: type, **fields: Any) -> int:
    """Position of the first line of type `event` with such fields."""
    return next(
        i
        for i, line in enumerate(lines)
        if isinstance(line, event) and all(getattr(line, f) == v for f, v in fields.items())
    )


def nodes_of(lines: Lines, kind: str, step: int | None = None) -> list[tuple[int, int]]:
    found = [x for x in lines if isinstance(x, Dispatch) and x.kind == kind]
    return [(x.node, x.step) for x in found if step is None or x.step == step]


def complete_of(lines: Lines, node: int, step: int) -> int:
    return index(lines, Complete, node=node, step=step)


def op(lines: Lines, vertex: str, step: int, phase: int = 1) -> int:
    """Position of the completion of an Op."""
    d = lines[index(lines, Dispatch, vertex=vertex, step=step, phase=phase, kind="Op")]
    assert isinstance(d, Dispatch)
    return complete_of(lines, d.node, step)


def change(lines: Lines, i: int, **fields: Any) -> None:
    lines[i] = msgspec.structs.replace(lines[i], **fields)


def change_part(lines: Lines, i: int, rank: int | None = None, **fields: Any) -> None:
    event = lines[i]
    assert isinstance(event, Complete)
    rank = next(iter(event.parts)) if rank is None else rank
    parts = dict(event.parts)
    parts[rank] = msgspec.structs.replace(parts[rank], **fields)
    change(lines, i, parts=parts)


def part(lines: Lines, i: int, rank: int | None = None) -> Any:
    event = lines[i]
    assert isinstance(event, Complete)
    return event.parts[next(iter(event.parts)) if rank is None else rank]


def moving(lines: Lines) -> tuple[int, int]:
    """A completion in which a worker sent something, and that worker."""
    for i, line in enumerate(lines):
        if isinstance(line, Complete):
            for rank, p in line.parts.items():
                if p.sent:
                    return i, rank
    raise AssertionError("nothing moved")


def drop_node(lines: Lines) -> None:
    d = next(
        i
        for i, x in enumerate(lines)
        if isinstance(x, Dispatch) and x.vertex == "critic_train" and x.step == 3
    )
    event = lines[d]
    assert isinstance(event, Dispatch)
    del lines[complete_of(lines, event.node, event.step)]
    del lines[d]
    change(lines, -1, dispatched=lines[-1].dispatched - 1, completed=lines[-1].completed - 1)  # type: ignore[union-attr]


def swap_dispatches(lines: Lines) -> None:
    i = next(
        i
        for i in range(len(lines) - 1)
        if isinstance(lines[i], Dispatch) and isinstance(lines[i + 1], Dispatch)
    )
    a, b = lines[i], lines[i + 1]
    assert isinstance(a, Dispatch)
    assert isinstance(b, Dispatch)
    lines[i] = msgspec.structs.replace(b, time_ns=a.time_ns)
    lines[i + 1] = msgspec.structs.replace(a, time_ns=b.time_ns)


def dispatch_early(lines: Lines) -> None:
    """A training Op is dispatched right after the header."""
    i = index(lines, Dispatch, vertex="actor_train", step=0)
    event = lines.pop(i)
    lines.insert(1, msgspec.structs.replace(event, time_ns=lines[1].time_ns))  # type: ignore[union-attr]


def dispatch_late(lines: Lines) -> None:
    """A node could start, but another completion comes first."""
    i = next(
        i
        for i in range(len(lines) - 2)
        if isinstance(lines[i], Dispatch)
        and isinstance(lines[i + 1], Complete)
        and (lines[i].node, lines[i].step) != (lines[i + 1].node, lines[i + 1].step)  # type: ignore[union-attr]
    )
    lines[i], lines[i + 1] = (
        lines[i + 1],
        msgspec.structs.replace(lines[i], time_ns=lines[i + 1].time_ns),  # type: ignore[union-attr]
    )


def repeat(lines: Lines) -> None:
    lines.insert(2, lines[1])


def rows_of(p: Any) -> dict[str, Any]:
    return {a: tuple((x + 1, y + 1) for x, y in r) for a, r in p.rows.items()}


def steal_row(lines: Lines) -> None:
    """A phase leaves one sequence more than the plan says."""
    i = op(lines, "actor_gen", 0, phase=1)
    p = part(lines, i)
    change_part(lines, i, rows=dict.fromkeys(p.rows, ((0, 4),)))


TAMPERING: dict[str, tuple[Callable[[Lines], Any], str]] = {
    "plan id": (lambda x: change(x, 0, plan="0" * 64), "plan"),
    "devices": (lambda x: change(x, 0, workers={0: "0.0.1", 1: "0.0.0", 2: "0.0.2"}), "binding"),
    "precision": (lambda x: change(x, 0, precision="float32"), "plan"),
    "fewer steps": (lambda x: change(x, 0, steps=3), "plan"),
    "more steps": (lambda x: change(x, 0, steps=5), "plan"),
    "no header": (lambda x: x.pop(0), "integrity"),
    "no footer": (lambda x: x.pop(), "integrity"),
    "two footers": (lambda x: x.append(x[-1]), "integrity"),
    "counts": (lambda x: change(x, -1, completed=x[-1].completed + 1), "integrity"),
    "a missing node": (drop_node, "plan"),
    "a missing completion": (lambda x: x.pop(op(x, "actor_train", 3)), "integrity"),
    "a missing dispatch": (lambda x: x.pop(index(x, Dispatch, vertex="ref_inf", step=0)), "plan"),
    "a node twice": (repeat, "plan"),
    "an unknown node": (lambda x: change(x, 1, node=99), "plan"),
    "an unknown step": (lambda x: change(x, 1, step=9), "plan"),
    "another kind": (lambda x: change(x, 1, kind="Comm"), "binding"),
    "another vertex": (lambda x: change(x, 1, vertex="critic_train"), "binding"),
    "another phase": (lambda x: change(x, 1, phase=2), "binding"),
    "other workers": (lambda x: change(x, 1, workers=(0, 2)), "binding"),
    "a worker less": (
        lambda x: change(x, op(x, "actor_gen", 0), parts={0: part(x, op(x, "actor_gen", 0), 0)}),
        "binding",
    ),
    "no host": (lambda x: change(x, op(x, "reward_inf", 0), host=None), "binding"),
    "before a predecessor": (dispatch_early, "dependence"),
    "another order": (swap_dispatches, "order"),
    "a late start": (dispatch_late, "order"),
    "time backwards": (lambda x: change(x, 3, time_ns=0), "time"),
    "work before dispatch": (lambda x: change_part(x, op(x, "actor_train", 1), start_ns=1), "time"),
    "work after completion": (lambda x: change_part(x, op(x, "actor_train", 1), finish_ns=10**15), "time"),
    "another layout": (lambda x: change_part(x, op(x, "actor_train", 1), layout="dp2.pp1.tp1"), "layout"),
    "an older version": (lambda x: change_part(x, op(x, "actor_gen", 3), reads={"actor": 1}), "version"),
    "a newer version": (lambda x: change_part(x, op(x, "actor_gen", 2), reads={"actor": 2}), "version"),
    "beyond the bound": (lambda x: change_part(x, op(x, "actor_gen", 3), reads={"actor": 0}), "staleness"),
    "another version written": (
        lambda x: change_part(x, op(x, "critic_train", 2), writes={"critic": 9}),
        "version",
    ),
    "no version written": (lambda x: change_part(x, op(x, "critic_train", 2), writes={}), "version"),
    "fewer bytes": (lambda x: change_part(x, *moving(x), sent={}), "bytes"),
    "more bytes": (
        lambda x: change_part(x, *moving(x), sent={k: v + 8 for k, v in part(x, *moving(x)).sent.items()}),
        "bytes",
    ),
    "bytes to another": (lambda x: change_part(x, *moving(x), received={0: 1}), "bytes"),
    "other rows": (
        lambda x: change_part(x, op(x, "ref_inf", 1), rows=rows_of(part(x, op(x, "ref_inf", 1)))),
        "rows",
    ),
    "no rows": (lambda x: change_part(x, op(x, "critic_inf", 1), rows={}), "rows"),
    "more rows in a phase": (steal_row, "phase"),
}


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_is_named_by_its_rule(run: tuple[Path, Path], name: str) -> None:
    tamper, rule = TAMPERING[name]
    lines = list(read_trace(run[1]))
    tamper(lines)
    found = violations(run, lines)
    assert any(v.startswith(f"{rule}: ") for v in found), found


def test_overlap_of_two_nodes_on_one_worker_names_both_and_their_times(run: tuple[Path, Path]) -> None:
    lines = list(read_trace(run[1]))
    i = op(lines, "critic_train", 0)
    until = part(lines, i, 2).finish_ns
    later = next(
        j for j in range(i + 1, len(lines)) if isinstance(lines[j], Complete) and 2 in lines[j].parts
    )  # type: ignore[union-attr]
    change_part(lines, later, 2, start_ns=until - 1)
    found = [v for v in violations(run, lines) if v.startswith("exclusivity: worker 2 started")]
    assert len(found) == 1
    assert "before it had finished Op `critic_train` at step 0" in found[0]
    assert f"{until - 1} ns" in found[0]
    assert f"{until} ns" in found[0]


def test_the_chain_covers_every_line_before(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path)
    event = Footer(time_ns=1, exit_code=0, message="", dispatched=0, completed=0)
    for _ in range(3):
        writer.write(event)
    writer.close()
    first, second, third = path.read_bytes().splitlines(keepends=True)
    assert first != second
    assert list(read_trace(path)) == [event] * 3
    for order in ([second, first, third], [first, third], [second, third]):
        path.write_bytes(b"".join(order))
        with pytest.raises(BrokenTraceError, match=r"line [12] was changed"):
            list(read_trace(path))
    body = first.split(b',"chain"')[0]
    assert hashlib.sha256(body).hexdigest().encode() in first


def test_perfetto_has_a_track_per_gpu_and_a_span_per_report(run: tuple[Path, Path], tmp_path: Path) -> None:
    lines = list(read_trace(run[1]))
    made = convert(lines)
    spans = [e for e in made["traceEvents"] if e["ph"] == "X"]
    reports = sum(len(x.parts) + (x.host is not None) for x in lines if isinstance(x, Complete))
    assert len(spans) == reports
    tracks = {e["tid"]: e["args"]["name"] for e in made["traceEvents"] if e["name"] == "thread_name"}
    assert [tracks[i] for i in range(3)] == [f"GPU 0.0.{i} (worker {i})" for i in range(3)]
    assert {s["tid"] for s in spans} == set(tracks)
    for tid in tracks:
        mine = sorted((s["ts"], s["ts"] + s["dur"]) for s in spans if s["tid"] == tid)
        if tid < 3:
            assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(mine))
    starts = [e["id"] for e in made["traceEvents"] if e["ph"] == "s"]
    assert starts
    assert sorted(starts) == sorted(e["id"] for e in made["traceEvents"] if e["ph"] == "f")
    out = tmp_path / "p.json"
    assert main(["trace", str(run[1]), "--perfetto", str(out)]) == 0
    assert msgspec.json.decode(out.read_bytes()) == msgspec.json.decode(msgspec.json.encode(made))
