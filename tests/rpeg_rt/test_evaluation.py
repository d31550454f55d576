"""Held-out evaluation: who is asked what, what is recorded, and how the trace is checked."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import msgspec
import numpy as np
import pytest

from ir_schema.problem import Placement
from ir_schema.trace import Dispatch, Evaluation
from rpeg_rt.data.prompts import load_prompts
from rpeg_rt.data.tokenizers import ByteTokenizer
from rpeg_rt.evaluation import examination
from rpeg_rt.failure import FileError, UserCodeError
from rpeg_rt.host import Host
from rpeg_rt.load import load_plan
from rpeg_rt.pool import HELD_OUT, Verified
from rpeg_rt.protocol import Answers, from_array, to_array
from rpeg_rt.realise import Realisation
from rpeg_rt.run import Settings, execute
from rpeg_rt.trace import TraceWriter, read_trace
from rpeg_rt.verify import verify_trace
from tests.reference.runs import from_problem
from tests.rpeg_rt.plans import colocated, executable, from_pairs, place, problem, verify, write_plan

QUESTIONS = 7
RUN = {"eval_prompts": "heldout.jsonl"}


def write_held_out(directory: Path) -> Path:
    path = directory / "heldout.jsonl"
    lines = [json.dumps({"prompt": f"xy{i}", "bonus": i / 8}) for i in range(QUESTIONS)]
    path.write_text("\n".join(lines) + "\n")
    return path


class Started(Protocol):
    """Gives the parts of a run under a plan that an examination needs, and where verdicts go."""

    def __call__(
        self, directory: Path, plan: dict[str, Placement], **options: object
    ) -> tuple[Realisation, Host, SimpleQueue[Verified]]: ...


@pytest.fixture
def started() -> Iterator[Started]:
    with ExitStack() as ending:

        def start(
            directory: Path, plan: dict[str, Placement], **options: object
        ) -> tuple[Realisation, Host, SimpleQueue[Verified]]:
            made = problem(run=dict(RUN), **options)  # type: ignore[arg-type]
            write_plan(directory, executable(made, plan))
            write_held_out(directory)
            done: SimpleQueue[Verified] = SimpleQueue()
            host = Host(made, 0, directory, done.put)
            ending.callback(host.close)
            return Realisation(executable(made, plan)), host, done

        yield start


def test_every_replica_of_the_trained_policy_gets_its_block(tmp_path: Path, started: Started) -> None:
    plan = colocated(dp=2, actor_train=place("0-3", dp=2, tp=2))
    exam = examination(*started(tmp_path, plan)[:2])
    assert exam is not None
    assert sorted(exam.rounds[0]) == [0, 1, 2, 3]
    blocks = {rank: (q.first, q.rows.shape) for rank, q in exam.rounds[0].items()}
    assert blocks == {0: (0, (3, 6)), 1: (0, (3, 6)), 2: (3, (4, 6)), 3: (3, (4, 6))}
    assert from_array(exam.rounds[0][2].rows)[0].tolist() == [-1, -1, -1, *b"xy3"]
    assert {q.vertex for q in exam.rounds[0].values()} == {"actor_train"}


def test_ranks_that_split_sequences_have_questions_of_their_own(tmp_path: Path, started: Started) -> None:
    """But for pairs, whose sequences they split."""
    plan = colocated(dp=2, actor_train=place("0-3", cp=2, tp=2))
    exam = examination(*started(tmp_path, plan)[:2])
    assert exam is not None
    assert {rank: (q.first, q.rows.shape[0]) for rank, q in exam.rounds[0].items()} == {
        0: (0, 3),
        1: (0, 3),
        2: (3, 4),
        3: (3, 4),
    }


def test_answers_are_put_in_order_and_judged(tmp_path: Path, started: Started) -> None:
    realisation, host, done = started(tmp_path, colocated(dp=2))
    exam = examination(realisation, host)
    assert exam is not None
    tokens = np.full((QUESTIONS, 14), -1, dtype=np.int32)
    tokens[:, 6] = range(65, 65 + QUESTIONS)
    exam.take({1: Answers(3, 2, to_array(tokens[3:])), 0: Answers(0, 2, to_array(tokens[:3]))})
    exam.submit()
    judged = done.get(timeout=30)
    assert judged.x == HELD_OUT
    expected = [verify(f"xy{i}", chr(65 + i), {"bonus": i / 8}) for i in range(QUESTIONS)]
    assert judged.rewards.tolist() == expected
    event = exam.result(judged, 2, 5, 9)
    assert (event.reward, event.prompts) == (pytest.approx(np.mean(expected)), QUESTIONS)
    assert event.correct == np.mean([r >= 1 for r in expected])
    assert event.versions == {0: 2, 1: 2}


def test_a_failing_verifier_names_the_prompt(tmp_path: Path, started: Started) -> None:
    realisation, host, done = started(tmp_path, colocated(dp=1))
    host.held_out[4].record.pop("bonus")
    exam = examination(realisation, host)
    assert exam is not None
    exam.take({0: Answers(0, 0, to_array(np.full((QUESTIONS, 14), -1, dtype=np.int32)))})
    exam.submit()
    judged = done.get(timeout=30)
    with pytest.raises(UserCodeError, match="failed on the response to held-out prompt 4: KeyError"):
        exam.result(judged, 0, 0, 1)


def test_nothing_to_ask(tmp_path: Path, started: Started) -> None:
    realisation, host, _ = started(tmp_path, colocated(dp=1))
    host.held_out = []
    assert examination(realisation, host) is None
    (tmp_path / "model").mkdir()
    rewarded = started(tmp_path / "model", colocated(reward_inf=place("0")), reward_model=True)
    assert examination(*rewarded[:2]) is None


@pytest.mark.parametrize(
    "plan",
    [colocated(dp=2), colocated(actor_gen=place("0"), actor_train=place("0-3", pp=2, mb=2, cp=2))],
    ids=["data parallel", "pipeline, sequences split"],
)
def test_a_run_is_examined_before_and_after(tmp_path: Path, plan: dict[str, Placement]) -> None:
    made = problem(run=dict(RUN), cost_model="megatron")
    path, trace = write_plan(tmp_path, executable(made, plan)), tmp_path / "trace.jsonl"
    held_out = load_prompts(write_held_out(tmp_path), ByteTokenizer(), prompt_length=6).prompts
    outcome = execute(path, Settings(steps=2, trace=trace), lambda *_: None)

    plain = from_problem(made, tmp_path, verify)
    before = plain.examine(held_out)
    list(plain.train(2))
    after = plain.examine(held_out)
    assert [e.reward for e in outcome.evaluations] == pytest.approx(
        [float(before.mean()), float(after.mean())]
    )
    assert not before.equal(after)
    lines = list(read_trace(trace))
    assert [isinstance(line, Evaluation) for line in lines] == [
        False,
        True,
        *[False] * (len(lines) - 4),
        True,
        False,
    ]

    def violations(changed: list[object]) -> list[str]:
        writer = TraceWriter(tmp_path / "changed.jsonl")
        for line in changed:
            writer.write(line)  # type: ignore[arg-type]
        writer.close()
        return verify_trace(load_plan(path), read_trace(tmp_path / "changed.jsonl")).violations

    assert violations(lines) == []
    last = lines[-2]
    assert isinstance(last, Evaluation)
    stale = msgspec.structs.replace(last, versions=dict.fromkeys(last.versions, 1))
    assert any("version: held-out evaluation" in v for v in violations([*lines[:-2], stale, lines[-1]]))
    first = next(i for i, line in enumerate(lines) if isinstance(line, Dispatch))
    amid = [lines[0], *lines[2 : first + 1], lines[1], *lines[first + 1 :]]
    assert any("exclusivity: held-out evaluation" in v for v in violations(amid))


def test_a_run_pauses_for_evaluations(tmp_path: Path) -> None:
    made = problem(run=dict(RUN), staleness=1)
    plan = colocated(dp=1, actor_train=place("1"), critic_train=place("1"))
    path, trace = write_plan(tmp_path, executable(made, plan)), tmp_path / "trace.jsonl"
    held_out = load_prompts(write_held_out(tmp_path), ByteTokenizer(), prompt_length=6).prompts
    metrics = tmp_path / "metrics.jsonl"
    settings = Settings(steps=5, trace=trace, metrics=metrics, eval_every=2)
    assert execute(path, settings, lambda *_: None).trace_verified

    plain = from_problem(made, tmp_path, verify)
    expected = [float(plain.examine(held_out).mean())]
    for _ in plain.train(5):
        expected.append(float(plain.examine(held_out).mean()))
    figures = [
        line["evaluation"]
        for line in map(json.loads, metrics.read_text().splitlines())
        if "evaluation" in line
    ]
    assert {f["step"]: f["reward"] for f in figures} == pytest.approx({k: expected[k] for k in (0, 2, 4, 5)})
    lines = list(read_trace(trace))
    at = [i for i, line in enumerate(lines) if isinstance(line, Evaluation)]
    assert [lines[i].step for i in at] == [0, 2, 4, 5]  # type: ignore[union-attr]

    def violations(changed: list[object]) -> str:
        writer = TraceWriter(tmp_path / "changed.jsonl")
        for line in changed:
            writer.write(line)  # type: ignore[arg-type]
        writer.close()
        return " ".join(verify_trace(load_plan(path), read_trace(tmp_path / "changed.jsonl")).violations)

    middle = at[1]
    assert "before the held-out evaluation after 2 steps" in violations(lines[:middle] + lines[middle + 1 :])
    early = msgspec.structs.replace(lines[middle], step=3)  # type: ignore[type-var]
    assert "is that after 3 steps, due was 2" in violations([*lines[:middle], early, *lines[middle + 1 :]])
    header = msgspec.structs.replace(lines[0], eval_every=None)  # type: ignore[type-var]
    assert "order: held-out evaluation" in violations([header, *lines[1:]])


def test_held_out_pairs_are_scored(tmp_path: Path) -> None:
    run = RUN | {"algorithm": "dpo", "eval_prompts": "prompts.jsonl"}
    made = from_pairs(problem(run=run, cost_model="megatron"))
    plan = {"ref_inf": place("0-1", cp=2), "actor_inf": place("1"), "actor_train": place("0-1", dp=2)}
    path = write_plan(tmp_path, executable(made, plan))
    outcome = execute(path, Settings(steps=2, eval_every=1), lambda *_: None)
    plain = from_problem(made, tmp_path, None)
    expected = [plain.examine(plain.prompts.prompts)]
    expected += [plain.examine(plain.prompts.prompts) for _ in plain.train(2)]
    assert [e.reward for e in outcome.evaluations] == pytest.approx(
        [float(m.mean()) for m in expected], abs=1e-9
    )
    shares = [float((m > 1e-6).double().mean()) for m in expected[1:]]
    assert [e.correct for e in outcome.evaluations] == [0.5, *shares]
    assert expected[2].mean() > 0


def test_evaluations_need_prompts(tmp_path: Path) -> None:
    path = write_plan(tmp_path, executable(problem(), colocated()))
    with pytest.raises(FileError, match="--eval-every needs held-out prompts: give `eval_prompts`"):
        execute(path, Settings(eval_every=3), lambda *_: None)
