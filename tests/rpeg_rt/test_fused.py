"""Fused training: the order of microtasks is the plan's, in plan and trace alike."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ir_schema.model import Experts
from ir_schema.stages import Executable, Microtask, MicrotaskSchedule
from ir_schema.trace import Complete, Fused, Line, Part
from rpeg_rt.engine.microtasks import schedule_hash
from rpeg_rt.engine.sharding import in_lockstep
from rpeg_rt.failure import PreflightError
from rpeg_rt.load import load_plan
from rpeg_rt.preflight import Machine, check
from rpeg_rt.realise import Realisation
from rpeg_rt.run import Settings, execute
from rpeg_rt.trace import read_trace
from rpeg_rt.verify import verify_trace
from tests.reference.runs import from_problem
from tests.rpeg_rt.plans import colocated, executable, problem, trained, verify, write_plan
from tests.rpeg_rt.random_plans import CHARACTERS, write_tokenizer
from tests.rpeg_rt.test_algorithms import compare, outcome
from tests.rpeg_rt.test_runs import CASES

replace = msgspec.structs.replace
COMPOSITE = "actor_train+critic_train"
# Fewer rows in a minibatch (2) than the critic has microbatches.
WORKLOAD = {"prompts": 3, "rollouts": 2, "minibatches": 3}
PLAN = colocated() | trained("0-1", pp=2, mb=(2, 4))


def made() -> Executable:
    return executable(problem(fuse=True, workload=WORKLOAD), PLAN)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Line]]:
    """The plan and the trace of one run."""
    directory = tmp_path_factory.mktemp("run")
    path, trace = write_plan(directory, made()), directory / "trace.jsonl"
    execute(path, Settings(steps=2, trace=trace), lambda *_: None)
    return path, list(read_trace(trace))


def test_the_cases_with_fused_training_have_it_in_both_directions() -> None:
    plans = {name: executable(problem(**options), plan) for name, (options, plan) in CASES.items()}  # type: ignore[arg-type]
    fused = [e.microtasks[COMPOSITE] for name, e in plans.items() if name.startswith("fused")]
    assert {s.second_model_reversed for s in fused} == {True, False}


def test_what_serves_in_the_trained_layout_lies_as_it_does() -> None:
    plan = dict.fromkeys(PLAN, PLAN["actor_train"]) | trained("0-1", pp=2, mb=(2, 4))
    realisation = Realisation(executable(problem(fuse=True), plan))
    serving = realisation.serving
    assert serving["critic_inf"] == serving["critic_train"]
    assert realisation.ranks_of(serving["critic_train"]) == (1, 0)
    assert realisation.ranks_of(serving["actor_train"]) == realisation.ranks_of(serving["ref_inf"]) == (0, 1)
    one_behind = Realisation(executable(problem(fuse=True, staleness=1), plan)).serving
    assert one_behind["critic_inf"] != one_behind["critic_train"]
    assert one_behind["critic_inf"].reversed, "a copy in the same layout stays on its GPU"


def composites(lines: list[Line]) -> list[tuple[int, int, Fused]]:
    """Line, worker and report of every fused training."""
    return [
        (i, rank, part.fused)
        for i, line in enumerate(lines)
        if isinstance(line, Complete)
        for rank, part in line.parts.items()
        if part.fused is not None
    ]


def test_the_trace_has_the_microtasks_of_every_optimizer_step(run: tuple[Path, list[Line]]) -> None:
    schedule = made().microtasks[COMPOSITE]
    assert schedule.second_model_reversed
    found = composites(run[1])
    assert [rank for _, rank, _ in found] == [0, 1, 0, 1]
    for _, rank, fused in found:
        assert fused.schedule == schedule.hash
        planned = tuple(t for t in schedule.order[rank] if t.microbatch < 2)
        assert 0 < len(planned) < len(schedule.order[rank])
        assert fused.executed == (planned,) * 3


RAGGED = {
    "one stage": trained("0-1", dp=2, mb=(2, 3)),
    "two stages, the critic's reversed": trained("0-3", dp=2, pp=2, mb=(2, 4)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "two" in name else []) for name in RAGGED]
)
def test_replicas_with_different_rows_go_through_the_same_microtasks(name: str, tmp_path: Path) -> None:
    """Experts are split over two replicas, of which one has fewer rows of a minibatch, or none, and other
    lengths: all of them run every microtask, and the result is the plain process's."""
    made = problem(
        fuse=True,
        cost_model="megatron",
        workload={"prompts": 6, "rollouts": 1, "epochs": 2, "minibatches": 4},
        run={"steps": 1, "tokenizer": "tokenizer.json"},
    )
    experts = Experts(routed=4, top_k=2, ffn=8)
    changes = {"vocabulary": len(CHARACTERS) + 1, "family": "mixtral", "experts": experts}
    made = replace(made, models={n: replace(m, **changes) for n, m in made.models.items()})
    split = {v: replace(p, expert_parallel=2) for v, p in RAGGED[name].items()}
    plan = executable(made, colocated(dp=2) | split)
    schedule = plan.microtasks[COMPOSITE]
    assert in_lockstep(split["actor_train"].layout)
    path, trace = write_plan(tmp_path, plan), tmp_path / "trace.jsonl"
    write_tokenizer(tmp_path)
    lines, weights = outcome(path, trace)
    told = [part.fused for x in read_trace(trace) if isinstance(x, Complete) for part in x.parts.values()]
    orders = {f.executed for f in told if f is not None}
    assert orders == {(order,) * 8 for order in schedule.order}
    rows = [[sum(p % 4 == m for p in prompts) for m in range(4)] for prompts in (range(3), range(3, 6))]
    assert rows == [[1, 1, 1, 0], [1, 1, 0, 1]]
    compare(lines, weights, from_problem(made, tmp_path, verify))


def swapped(order: tuple[Microtask, ...]) -> tuple[Microtask, ...]:
    """The order with the first two neighbours of different models exchanged."""
    i = next(i for i in range(len(order) - 1) if order[i].model != order[i + 1].model)
    return (*order[:i], order[i + 1], order[i], *order[i + 2 :])


TRACES: dict[str, tuple[Callable[[Fused], Fused | None], str]] = {
    "another order": (lambda f: replace(f, executed=(f.executed[0], swapped(f.executed[1]), f.executed[2])),
                      "microtask "),
    "one microtask less": (lambda f: replace(f, executed=(f.executed[0][:-1], *f.executed[1:])), "was none"),
    "one optimizer step less": (lambda f: replace(f, executed=f.executed[1:]), "of optimizer step 2"),
    "another hash": (lambda f: replace(f, schedule="0" * 64), "followed schedule 000"),
    "no report": (lambda f: None, "followed schedule none"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_a_tampered_trace_is_caught(run: tuple[Path, list[Line]], name: str) -> None:
    tamper, words = TRACES[name]
    path, lines = run
    assert verify_trace(load_plan(path), lines).violations == []
    i, rank, fused = composites(lines)[2]
    line = lines[i]
    assert isinstance(line, Complete)
    parts = line.parts | {rank: replace(line.parts[rank], fused=tamper(fused))}
    changed = [*lines[:i], replace(line, parts=parts), *lines[i + 1 :]]
    (found,) = verify_trace(load_plan(path), changed).violations
    assert found.startswith(f"microtasks: Op `{COMPOSITE}` at step 1 (node ")
    assert words in found


def test_microtasks_where_nothing_is_fused_are_caught(run: tuple[Path, list[Line]]) -> None:
    path, lines = run
    i = next(i for i, x in enumerate(lines) if isinstance(x, Complete) and x.parts)
    line = lines[i]
    assert isinstance(line, Complete)
    rank, part = next(iter(line.parts.items()))
    assert isinstance(part, Part)
    parts = line.parts | {rank: replace(part, fused=composites(lines)[0][2])}
    (found,) = verify_trace(
        load_plan(path), [*lines[:i], replace(line, parts=parts), *lines[i + 1 :]]
    ).violations
    assert "is not fused in the plan" in found


def with_schedule(plan: Executable, schedule: MicrotaskSchedule) -> Executable:
    return replace(plan, microtasks={COMPOSITE: schedule})


def reorder(plan: Executable) -> Executable:
    schedule = plan.microtasks[COMPOSITE]
    return with_schedule(plan, replace(schedule, order=tuple(map(swapped, schedule.order))))


def against_1f1b(plan: Executable) -> Executable:
    schedule = plan.microtasks[COMPOSITE]
    changed = replace(schedule, order=(tuple(reversed(schedule.order[0])), *schedule.order[1:]))
    return with_schedule(plan, replace(changed, hash=schedule_hash(changed)))


def same_model(plan: Executable) -> Executable:
    nodes = [replace(n, members=("actor_train",) * 2) if n.members else n for n in plan.template]
    return replace(plan, template=tuple(nodes))


PLANS: dict[str, tuple[Callable[[Executable], Executable], str]] = {
    "another order": (reorder, "not those that the schedule's hash was made of"),
    "not 1F1B": (against_1f1b, "in 1F1B order"),
    "another hash": (
        lambda e: with_schedule(e, replace(e.microtasks[COMPOSITE], hash="0" * 64)),
        "not those that the schedule's hash",
    ),
    "no schedule": (lambda e: replace(e, microtasks={}), "has no microtask schedule"),
    "the other direction": (
        lambda e: with_schedule(e, replace(e.microtasks[COMPOSITE], second_model_reversed=False)),
        "are not those of stage",
    ),
    "other microbatches": (
        lambda e: replace(e, plan=e.plan | {"critic_train": PLAN["actor_train"]}),
        "model 1 at position 0",
    ),
    "another layout": (
        lambda e: replace(e, plan=e.plan | trained("0-1", dp=2, mb=(2, 4))),
        "a schedule of 2 positions for 1",
    ),
    "one model": (same_model, "two models that are trained in one layout"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_whose_microtasks_do_not_fit_is_refused(name: str) -> None:
    tamper, words = PLANS[name]
    machine = Machine(slots=4, memory_bytes=None)
    check(made(), machine)
    with pytest.raises(PreflightError, match=words):
        check(tamper(made()), machine)
