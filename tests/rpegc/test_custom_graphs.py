"""A graph that no preset makes goes through every pass: two trained actors of which one answers the other, a
frozen judge that generates, two reward models, a program that scores, an output container."""

import random
from pathlib import Path

import pytest

from ir_schema.envelope import decode_stage
from ir_schema.problem import Problem
from ir_schema.stages import Configuration, Executable, Scheduled
from passes.evaluate import evaluate
from passes.search.evaluator import Evaluator
from passes.search.space import build
from passes.search.structures import structures
from rpegc.cli.group import run
from rpegc.frontend import load
from rpegc.invariants import violations

DEBATE = Path(__file__).parent / "graphs" / "debate.rpeg"
FORMS = {
    "megatron": {},
    "paper": {"cost_model": "paper"},
    "as printed": {"as_printed": True, "cost_model": "paper"},
}


def debate(**options: object) -> Problem:
    return load(DEBATE.read_bytes(), DEBATE.name, DEBATE.parent, options).problem


def compiled(tmp_path: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> Executable:
    out = tmp_path / "plan.exe.json"
    code = run([*arguments, "--budget", "150", "--verify-each", "-q", "-o", str(out)])
    assert code == 0, capfd.readouterr().err
    body = decode_stage(out.read_bytes())[1]
    assert isinstance(body, Executable)
    return body


@pytest.mark.parametrize(
    "options", [[], ["--cost-model", "paper"], ["--as-printed"], ["-O0"], ["-O1"]], ids=" ".join
)
def test_it_compiles_in_every_form(
    options: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = compiled(tmp_path, capfd, str(DEBATE), *options)
    run_vertices = {m for n in found.template if n.kind == "Op" for m in (n.members or (n.vertex,))}
    assert run_vertices == {v.name for v in found.problem.graph.vertices}
    assert found.prediction.score.memory_feasible
    moved = {n.container for n in found.template if n.kind == "Comm"}
    assert "metrics" not in moved
    assert "X" not in moved


def test_text_and_json_compile_to_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = compiled(tmp_path, capfd, str(DEBATE))
    assert run(["fmt", "--json", str(DEBATE)]) == 0
    as_json = tmp_path / "debate.json"
    as_json.write_text(capfd.readouterr().out)
    assert compiled(tmp_path, capfd, str(as_json)) == text


@pytest.mark.parametrize("form", FORMS)
def test_random_plans_of_every_structure(form: str) -> None:
    """Every pass keeps its invariants, and the fast evaluator agrees with the passes."""
    rng = random.Random(form)
    for structure, problem in structures(debate(**FORMS[form])):
        space, empty = build(0, structure, problem)
        assert not empty
        for _ in range(2):
            plan = {v: rng.choice(list(space.candidates[v])) for v in space.vertices}
            if problem.options.fuse:
                first, second = (set(space.candidates[v]) for v in problem.options.fuse)
                both = rng.choice(sorted(first & second, key=str))
                plan |= dict.fromkeys(problem.options.fuse, both)
            scheduled = evaluate(Configuration(problem=problem, plan=plan))
            assert isinstance(scheduled, Scheduled)
            assert violations(scheduled) == []
            assert any(n.members for n in scheduled.nodes) == bool(problem.options.fuse)
            fast = Evaluator(problem).evaluate(plan)
            assert (fast.makespan_ns, fast.peak_bytes) == (scheduled.makespan_ns, scheduled.max_peak_bytes)


def test_the_judge_follows_both_actors_and_both_trainings_follow_the_judge() -> None:
    problem = debate()
    structure, chosen = structures(problem)[0]
    space, _ = build(0, structure, chosen)
    plan = {v: next(iter(space.candidates[v])) for v in space.vertices}
    nodes = evaluate(Configuration(problem=chosen, plan=plan)).nodes
    start, finish = {}, {}
    for n in nodes:
        if n.kind == "Op":
            for name in n.members or (n.vertex,):
                start.setdefault((name, n.step), n.start_ns)
                finish[name, n.step] = n.finish_ns
    for k in range(chosen.options.steps):
        assert start["bob_gen", k] >= finish["alice_gen", k]
        assert start["judge_gen", k] >= max(finish["alice_gen", k], finish["bob_gen", k])
        for trainer in ("alice_train", "bob_train"):
            assert start[trainer, k] >= finish["judge_gen", k]
        assert start["bob_train", k] >= finish["correct_inf", k]
