"""Whole runs on real workers: what goes on from a snapshot ends where a run without a stop ends.

Under one plan to the same bits; under another to the same numbers up to rounding (in float64, in units of
learning rate times optimizer steps).
"""

import json
import os
import random
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from ir_schema.model import Experts
from ir_schema.problem import Optimizer, Placement, Problem
from ir_schema.trace import Dispatch, Footer, Header, Line, Snapshot, Stopping
from rpeg_rt.cli import main
from rpeg_rt.failure import InterruptedRunError
from rpeg_rt.load import load_plan
from rpeg_rt.run import Settings, execute
from rpeg_rt.snapshots.directory import newest, place_of
from rpeg_rt.trace import read_trace
from rpeg_rt.verify import verify_file, verify_trace
from tests.rpeg_rt.plans import colocated, executable, place, problem, trained, without_critic, write_plan
from tests.rpeg_rt.random_plans import random_plan, random_problem
from tests.rpeg_rt.test_algorithms import PRESETS, write_problem

Weights = dict[str, dict[str, torch.Tensor]]
replace = msgspec.structs.replace

STEPS = 4
MADE = problem(
    staleness=2,
    quantiles=((0.5, 4), (1.0, 8)),
    workload={"epochs": 2, "minibatches": 2},
    run={"steps": STEPS, "optimizer": Optimizer(learning_rate=1e-3, warmup_steps=20)},
    device_space=(1, 1, 2),
    cost_model="megatron",
)
PLAN = colocated(
    dp=2, actor_train=place("0-1", pp=2, mb=2), critic_train=place("0-1", cp=2), ref_inf=place("0")
)
OTHER = colocated(
    tp=2, actor_train=place("0-1", cp=2), critic_inf=place("1"), critic_train=place("0-1", pp=2)
)


def no_progress(*_: object) -> None:
    """Nobody looks."""


def weights(directory: Path, models: tuple[str, ...]) -> Weights:
    return {m: load_file(directory / m / "model.safetensors") for m in models}


def same(some: Weights, others: Weights) -> bool:
    assert some.keys() == others.keys()
    return all(torch.equal(t, others[m][name]) for m, tensors in some.items() for name, t in tensors.items())


def farthest(some: Weights, others: Weights) -> float:
    return max(
        float((t - others[m][n]).abs().max()) for m, tensors in some.items() for n, t in tensors.items()
    )


@dataclass
class Story:
    """A run without a stop, and one that was stopped by a signal in its first step: their directories."""

    plan: Path
    whole: Path
    stopped: Path

    def resumed(self, to: Path, plan: Path | None = None, **settings: object) -> Weights:
        path = self.plan if plan is None else plan
        given = Settings(save=to, resume=self.stopped, trace=to.with_suffix(".trace"), **settings)  # type: ignore[arg-type]
        outcome = execute(path, given, no_progress)
        assert outcome.first == newest(self.stopped, pytest.fail)[1].step > 0
        assert not verify_file(to.with_suffix(".trace"), path).violations
        return weights(to, ("actor", "critic"))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    base = tmp_path_factory.mktemp("story")
    made = Story(write_plan(base, executable(MADE, PLAN)), base / "whole", base / "stopped")
    execute(made.plan, Settings(save=made.whole, metrics=base / "whole.jsonl"), no_progress)
    stop = Settings(save=made.stopped, metrics=base / "stopped.jsonl", trace=base / "stopped.trace")
    with pytest.raises(InterruptedRunError, match=r"SIGTERM after step \d of 4; go on with --resume"):
        execute(made.plan, stop, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    return made


def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bits(story: Story, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes((story.plan.parent / "stopped.jsonl").read_bytes())
    found = story.resumed(tmp_path / "resumed", metrics=metrics)
    assert same(found, weights(story.whole, ("actor", "critic")))
    whole, mine = (
        [json.loads(x) for x in p.read_text().splitlines()]
        for p in (story.plan.parent / "whole.jsonl", metrics)
    )
    timeless = [
        [{k: v for k, v in line.items() if "train" in k or k == "step"} for line in x] for x in (whole, mine)
    ]
    assert timeless[0] == timeless[1]


def test_it_goes_on_under_another_plan(story: Story, tmp_path: Path) -> None:
    path = write_plan(tmp_path, executable(MADE, OTHER))
    found = story.resumed(tmp_path / "resumed", path)
    assert 0 < farthest(found, weights(story.whole, ("actor", "critic"))) < 1e-4 * 1e-3 * STEPS * 4


@pytest.mark.slow
def test_it_goes_on_with_other_staleness(story: Story, tmp_path: Path) -> None:
    """Fresher, and then staler than what there is."""
    fresh = write_plan(tmp_path, executable(replace(MADE, graph=problem().graph), OTHER))
    found = story.resumed(tmp_path / "resumed", fresh, save_every=3)
    assert farthest(found, weights(story.whole, ("actor", "critic"))) > 0
    again = Settings(save=tmp_path / "again", resume=tmp_path / "resumed", steps=STEPS + 2)
    assert execute(story.plan, again, no_progress).first == STEPS


def test_the_trace_of_a_stopped_run_verifies_and_tampering_is_caught(story: Story) -> None:
    plan, lines = load_plan(story.plan), list(read_trace(story.plan.parent / "stopped.trace"))
    assert not verify_trace(plan, lines).violations
    header, footer = lines[0], lines[-1]
    assert isinstance(header, Header)
    assert isinstance(footer, Footer)
    assert footer.exit_code == 130
    (at,) = [i for i, line in enumerate(lines) if isinstance(line, Snapshot)]
    (stop,) = [i for i, line in enumerate(lines) if isinstance(line, Stopping)]
    taken, stopping = lines[at], lines[stop]
    assert isinstance(taken, Snapshot)
    assert isinstance(stopping, Stopping)
    last = max(i for i, line in enumerate(lines) if isinstance(line, Dispatch))

    def changed(i: int, line: Line) -> list[Line]:
        return [*lines[:i], line, *lines[i + 1 :]]

    tampered: dict[str, list[list[Line]]] = {
        "order": [
            changed(at, replace(taken, step=taken.step + 1)),
            changed(stop, replace(stopping, step=stopping.step + 1)),
            [*lines[:last], taken, *lines[last:]],
            lines[:stop] + lines[stop + 1 :],
        ],
        "version": [
            changed(at, replace(taken, versions=taken.versions | {"actor": (taken.step,)})),
            changed(0, replace(header, oldest={"actor": 1})),
        ],
        "plan": [changed(0, replace(header, first=2))],
        "exclusivity": [[*lines[: last + 1], taken, *lines[last + 1 :]]],
    }
    for rule, cases in tampered.items():
        for case in cases:
            assert any(v.startswith(rule) for v in verify_trace(plan, case).violations), rule


def test_what_cannot_go_on_is_refused_with_its_exit_code(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*arguments: object) -> tuple[int, str]:
        code = main([str(a) for a in arguments])
        return code, capsys.readouterr().err

    assert MADE.run is not None
    resume = ("--resume", story.stopped)
    other = write_plan(
        tmp_path,
        executable(
            without_critic(replace(MADE, run=replace(MADE.run, algorithm="grpo"))),
            {v: p for v, p in PLAN.items() if "critic" not in v},
        ),
    )
    code, said = fails(other, *resume)
    assert (code, "`run.algorithm` was ppo and is grpo" in said) == (3, True)
    code, said = fails(story.plan, "--save", story.stopped)
    assert (code, "has snapshots of a run already" in said) == (2, True)
    code, said = fails(story.plan, "--resume", tmp_path)
    assert (code, "has no snapshot" in said) == (2, True)
    code, said = fails(story.plan, "--save-every", 1)
    assert (code, "--save-every needs --save" in said) == (2, True)


def test_what_is_left_of_a_run_that_was_killed_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had all its steps, but not all its models."""
    path, run = write_plan(tmp_path, executable(problem(), colocated())), tmp_path / "run"

    def goes_on(*options: object) -> tuple[int, str]:
        code = main([str(a) for a in (path, "--resume", run, *options)])
        return code, "".join(capsys.readouterr())

    saving, trace = ("--save", run), tmp_path / "trace.jsonl"
    assert main([str(a) for a in (path, *saving, "--steps", 2, "--save-every", 2)]) == 0
    assert goes_on(*saving, "--steps", 1)[0] == 2
    assert goes_on("--steps", 2) == (0, "nothing is left to do: the run has its 2 steps\n")
    done = (0, f"nothing is left to do: the run has its 2 steps, and its trained models are in {run}\n")
    assert goes_on(*saving, "--steps", 2) == done
    shutil.copytree(run, tmp_path / "whole")
    whole, actor = weights(tmp_path / "whole", ("actor", "critic")), (run / "actor").stat()
    (run / "critic").rename(run / ".critic.part")
    (run / ".critic.part" / "model.safetensors").write_bytes(b"half of it")
    code, said = goes_on(*saving, "--steps", 2, "--trace", trace)
    assert (code, "what was left after 2 steps in " in said) == (0, True), said
    verdict = verify_file(trace, path)
    assert (verdict.violations, verdict.nodes, verdict.exit_code) == ([], 0, 0)
    assert same(weights(run, ("actor", "critic")), whole)
    assert (run / "actor").stat() == actor
    for snapshot in run.glob("step-*"):  # a run that leaves its models only
        shutil.rmtree(snapshot)
    assert goes_on(*saving, "--steps", 2) == done
    code, said = goes_on(*saving, "--steps", 3)  # of another end
    assert (code, f"{run / 'actor'} exists already" in said) == (2, True), said


@pytest.mark.slow
def test_models_are_written_from_a_snapshot_and_whatever_is_missing(tmp_path: Path) -> None:
    path, run = write_plan(tmp_path, executable(MADE, PLAN)), tmp_path / "run"
    execute(path, Settings(save=run, save_every=STEPS), no_progress)
    whole = weights(run, ("actor", "critic"))
    other = Settings(save=tmp_path / "other", resume=run)
    assert execute(path, other, no_progress).rewards == ()
    assert same(weights(tmp_path / "other", ("actor", "critic")), whole)
    shutil.rmtree(place_of(run, STEPS))
    shutil.rmtree(run / "actor")
    again = execute(path, Settings(save=run, resume=run), no_progress)  # from its first step
    assert len(again.rewards) == STEPS
    assert same(weights(run, ("actor", "critic")), whole)


def compiled(directory: Path, case: str, seed: int) -> tuple[Path, Problem]:
    """A random problem of a preset with a random plan, or what random problems seldom are."""
    dice = random.Random(f"{case} {seed}")
    if case in PRESETS:
        made = random_problem(dice, dice.choice([2, 3, 4]), case)
        plan = random_plan(dice, made)
    else:
        fused = case.startswith("fused")
        run = {"precision": "bfloat16" if case.startswith("bfloat16") else "float32"}
        made = problem(fuse=fused, staleness=int(case[-1]), quantiles=((0.5, 4), (1.0, 8)), run=run)
        plan = colocated(dp=2) | (
            trained("0-1", pp=2, mb=(2, 2)) if fused else {"critic_train": place("2-3", dp=2)}
        )
        directory.mkdir()
        return write_plan(directory, executable(made, plan)), made
    return write_problem(directory, made, plan), made


@pytest.mark.slow
def test_experts_go_on_under_another_plan(tmp_path: Path) -> None:
    """Their weights and moments lie on other ranks than before, with other experts beside them."""
    run = {"algorithm": "grpo", "steps": 4, "optimizer": Optimizer(learning_rate=1e-3)}
    made = without_critic(problem(run=run, workload={"rollouts": 2}, device_space=(1, 1, 4)))
    experts = Experts(routed=4, top_k=2, ffn=12, shared_ffn=8, shared_gate=True, dense_layers=1)
    changes = {"family": "qwen2_moe", "experts": experts}
    made = replace(made, models={n: replace(m, **changes) for n, m in made.models.items()})

    def written(name: str, everywhere: Placement, train: Placement) -> Path:
        plan = dict.fromkeys(("actor_gen", "ref_inf"), everywhere) | {"actor_train": train}
        (tmp_path / name).mkdir()
        return write_plan(tmp_path / name, executable(made, plan))

    first = written("first", place("0-1", dp=2, ep=2), place("0-3", dp=2, tp=2, mb=2, ep=4))
    other = written("other", place("0-1", tp=2, ep=2), place("0-1", dp=2, ep=2, mb=3))
    execute(first, Settings(save=tmp_path / "whole"), no_progress)
    execute(first, Settings(steps=2, save=tmp_path / "half", save_every=2), no_progress)
    trace = tmp_path / "trace"
    execute(other, Settings(save=tmp_path / "rest", resume=tmp_path / "half", trace=trace), no_progress)
    assert not verify_file(trace, other).violations
    whole, found = (weights(tmp_path / name, ("actor",)) for name in ("whole", "rest"))
    assert 0 < farthest(found, whole) < 1e-4 * 1e-3 * 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "case", [*PRESETS, "bfloat16 1", "fused 0", "fused 1", "fused 2", "apart 0", "apart 1", "apart 2"]
)
def test_any_algorithm_and_plan_resumes_to_the_same_bits(case: str, seed: int, tmp_path: Path) -> None:
    path, made = compiled(tmp_path / "one", case, seed)
    execute(path, Settings(steps=5, save=tmp_path / "whole"), no_progress)
    execute(path, Settings(steps=3, save=tmp_path / "first", save_every=2), no_progress)
    execute(
        path, Settings(steps=4, save=tmp_path / "more", resume=tmp_path / "first", save_every=4), no_progress
    )
    trained_models = made.graph.trainable
    if seed == 1:  # also from before the last
        place_of(tmp_path / "first", 3).rename(tmp_path / "away")
    execute(path, Settings(steps=5, save=tmp_path / "last", resume=tmp_path / "first"), no_progress)
    execute(path, Settings(steps=5, save=tmp_path / "third", resume=tmp_path / "more"), no_progress)
    whole = weights(tmp_path / "whole", trained_models)
    assert same(weights(tmp_path / "last", trained_models), whole)
    assert same(weights(tmp_path / "third", trained_models), whole)
