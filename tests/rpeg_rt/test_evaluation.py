"""Held-out evaluation: who is asked what, what is recorded, and how the trace is checked."""

import json
from pathlib import Path
from queue import SimpleQueue

import msgspec
import numpy as np
import pytest

from ir_schema.problem import Placement
from rpeg_rt.data.prompts import load_prompts
from rpeg_rt.data.tokenizers import ByteTokenizer
from rpeg_rt.evaluation import examination
from rpeg_rt.failure import UserCodeError
from rpeg_rt.host import HELD_OUT, Host, Verified
from rpeg_rt.load import load_plan
from rpeg_rt.protocol import Answers, from_array, to_array
from rpeg_rt.realise import Realisation
from rpeg_rt.run import Settings, execute
from rpeg_rt.trace import Dispatch, Evaluation, TraceWriter, read_trace
from rpeg_rt.verify import verify_trace
from tests.reference.runs import from_problem
from tests.rpeg_rt.plans import colocated, executable, place, problem, verify, write_plan

QUESTIONS = 7
RUN = {"eval_prompts": "heldout.jsonl"}


def write_held_out(directory: Path) -> Path:
    path = directory / "heldout.jsonl"
    lines = [json.dumps({"prompt": f"xy{i}", "bonus": i / 8}) for i in range(QUESTIONS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def started(
    directory: Path, plan: dict[str, Placement], **options: object
) -> tuple[Realisation, Host, SimpleQueue[Verified]]:
    made = problem(run=dict(RUN), **options)  # type: ignore[arg-type]
    write_plan(directory, executable(made, plan))
    write_held_out(directory)
    done: SimpleQueue[Verified] = SimpleQueue()
    return Realisation(executable(made, plan)), Host(made, 0, directory, done.put), done


def test_every_replica_of_the_trained_policy_gets_its_block(tmp_path: Path) -> None:
    plan = colocated(dp=2, actor_train=place("0-3", dp=2, tp=2))
    exam = examination(*started(tmp_path, plan)[:2])
    assert exam is not None
    assert sorted(exam.questions) == [0, 1, 2, 3]
    blocks = {rank: (q.first, q.prompts.shape) for rank, q in exam.questions.items()}
    assert blocks == {0: (0, (3, 6)), 1: (0, (3, 6)), 2: (3, (4, 6)), 3: (3, (4, 6))}
    assert from_array(exam.questions[2].prompts)[0].tolist() == [-1, -1, -1, *b"xy3"]
    assert {q.vertex for q in exam.questions.values()} == {"actor_train"}


def test_answers_are_put_in_order_and_judged(tmp_path: Path) -> None:
    realisation, host, done = started(tmp_path, colocated(dp=2))
    exam = examination(realisation, host)
    assert exam is not None
    tokens = np.full((QUESTIONS, 14), -1, dtype=np.int32)
    tokens[:, 6] = range(65, 65 + QUESTIONS)
    exam.submit({1: Answers(3, 2, to_array(tokens[3:])), 0: Answers(0, 2, to_array(tokens[:3]))})
    judged = done.get(timeout=30)
    assert judged.x == HELD_OUT
    expected = [verify(f"xy{i}", chr(65 + i), {"bonus": i / 8}) for i in range(QUESTIONS)]
    assert judged.rewards.tolist() == expected
    event = exam.result(judged, 5, 9)
    assert (event.reward, event.prompts) == (pytest.approx(np.mean(expected)), QUESTIONS)
    assert event.correct == np.mean([r >= 1 for r in expected])
    assert event.versions == {0: 2, 1: 2}


def test_a_failing_verifier_names_the_prompt(tmp_path: Path) -> None:
    realisation, host, done = started(tmp_path, colocated(dp=1))
    host.held_out[4].record.pop("bonus")
    exam = examination(realisation, host)
    assert exam is not None
    exam.submit({0: Answers(0, 0, to_array(np.full((QUESTIONS, 14), -1, dtype=np.int32)))})
    judged = done.get(timeout=30)
    with pytest.raises(UserCodeError, match="failed on the response to held-out prompt 4: KeyError"):
        exam.result(judged, 0, 1)


def test_nothing_to_ask(tmp_path: Path) -> None:
    realisation, host, _ = started(tmp_path, colocated(dp=1))
    host.held_out = []
    assert examination(realisation, host) is None
    (tmp_path / "model").mkdir()
    rewarded = started(tmp_path / "model", colocated(reward_inf=place("0")), reward_model=True)
    assert examination(*rewarded[:2]) is None


@pytest.mark.parametrize(
    "plan",
    [colocated(dp=2), colocated(actor_gen=place("0"), actor_train=place("0-1", pp=2, mb=2))],
    ids=["data parallel", "pipeline"],
)
def test_a_run_is_examined_before_and_after(tmp_path: Path, plan: dict[str, Placement]) -> None:
    made = problem(run=dict(RUN))
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
