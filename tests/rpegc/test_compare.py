"""`rpegc compare`: plans obey the restrictions, optima against brute force, and what is printed of them."""

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ir_schema.base import Role
from ir_schema.device import Allocation
from ir_schema.diagnostics import DiagnosticError
from ir_schema.problem import PartialPlacement, Problem, SearchSpace
from passes.search.candidates import Enumeration
from passes.search.constraints import Rules
from passes.search.evaluator import Evaluator
from passes.search.infeasible import with_memory
from passes.search.restriction import PEERS
from passes.search.settings import Settings
from passes.search.structures import structures
from passes.structure import Plan
from rpegc.cli.group import run
from rpegc.compare import plot as plot_module
from rpegc.compare.data import Comparison, Entry
from rpegc.compare.run import compare, systems
from rpegc.compare.show import as_text
from rpegc.inputs import parse_problem
from tests.rpegc.conftest import measured

HEAD = """rpeg 1
graph small {
  options { steps = 6, cost_model = "paper" }
  cluster { hardware = "h100", racks = 1, nodes = 1, gpus = GPUS }
  workload {
    prompts = 8, rollouts = 2, prompt_length = 96, response_length = 256
    length_quantiles = [[0.5, 64], [1.0, 256]]
  }
  model actor : lm { arch = "tiny-small", trainable = true }
  model reference : lm { arch = "tiny-small" }
"""
GRPO = """  verifier exact { seconds_per_response = 1e-6 }
  use grpo { actor = actor, reference = reference, reward = exact }
}
"""
PPO = """  model critic : scalar { arch = "tiny-small", trainable = true }
  model reward : scalar { arch = "tiny-small" }
  use ppo { actor = actor, critic = critic, reference = reference, reward = reward }
}
"""
ASYNCHRONOUS = SearchSpace(staleness={"actor": (0, 1)})

Rule = Callable[[Problem, Plan], bool]


def problem_of(rest: str, gpus: int, search: SearchSpace = ASYNCHRONOUS) -> Problem:
    stage = parse_problem((HEAD.replace("GPUS", str(gpus)) + rest).encode(), "small.rpeg").run.stage
    assert isinstance(stage, Problem)
    return msgspec.structs.replace(stage, search=search)


def compared(problem: Problem, *names: str, budget: int = 60, jobs: int = 1) -> Comparison:
    return compare(problem, systems(names), Settings(budget=budget, threads=1), jobs=jobs)


def entry(found: Comparison, name: str) -> Entry:
    return next(e for e in found.entries if e.name == name)


# The restrictions, said once more: of a problem whose structural choices are made, and of a plan of it.


def gpus_by_role(problem: Problem, plan: Plan) -> dict[Role, list[frozenset[str]]]:
    """The GPUs of every operator, by role."""
    sets: dict[Role, list[frozenset[str]]] = {}
    for v in problem.graph.vertices:
        if v.name in plan:
            names = Allocation(origin=plan[v.name].origin, extent=plan[v.name].extent).device_names()
            sets.setdefault(v.role, []).append(frozenset(names))
    return sets


def one_group_each(problem: Problem, plan: Plan) -> dict[Role, frozenset[str]] | None:
    """The GPUs of each role; None where the operators of some role stand apart."""
    sets = gpus_by_role(problem, plan)
    return {r: s[0] for r, s in sets.items()} if all(len(set(s)) == 1 for s in sets.values()) else None


def staleness(problem: Problem) -> set[int]:
    return {problem.graph.staleness.get(m, 0) for m in problem.graph.trainable}


def synchronous(problem: Problem) -> bool:
    return staleness(problem) == {0}


def fixed_microbatches(problem: Problem, plan: Plan) -> bool:
    role = {v.name: v.role for v in problem.graph.vertices}
    for name, p in plan.items():
        wanted = p.pipeline_parallel * (2 if role[name] == "training" else 1)
        if p.microbatches != (wanted if p.pipeline_parallel > 1 else 1):
            return False
    return True


def generation_apart(problem: Problem, plan: Plan) -> bool:
    group = one_group_each(problem, plan)
    return (
        group is not None
        and group["inference"] == group["training"]
        and not group["generation"] & group["training"]
    )


def colocated(problem: Problem, plan: Plan) -> bool:
    sets = gpus_by_role(problem, plan)
    return synchronous(problem) and len({s for group in sets.values() for s in group}) == 1


def rlhfuse(problem: Problem, plan: Plan) -> bool:
    return synchronous(problem) and fixed_microbatches(problem, plan)


def real(problem: Problem, plan: Plan) -> bool:
    plain = problem.options.split == "never" and problem.options.fuse is None
    return rlhfuse(problem, plan) and plain


def areal(problem: Problem, plan: Plan) -> bool:
    return problem.graph.staleness["actor"] >= 1 and generation_apart(problem, plan)


def rlinf(problem: Problem, plan: Plan) -> bool:
    group = one_group_each(problem, plan)
    return (
        group is not None
        and problem.options.fuse is None
        and all(a == b or not a & b for a, b in itertools.combinations(group.values(), 2))
        # Of models this small every layout fits, and the smallest one is data parallelism alone.
        and all((p.tensor_parallel, p.pipeline_parallel) == (1, 1) for p in plan.values())
    )


def split(problem: Problem, plan: Plan) -> bool:
    return staleness(problem) <= {0, 1} and generation_apart(problem, plan)


RULES: dict[str, Rule] = {
    "colocated": colocated,
    "real": real,
    "rlhfuse": rlhfuse,
    "areal": areal,
    "asyncflow": areal,
    "rlinf": rlinf,
    "split": split,
    "rpeg": lambda problem, plan: True,
}


def chosen(problem: Problem, found: Entry) -> Problem:
    """The problem with the structural choices of `found` made."""
    return next(made for structure, made in structures(problem) if structure.describe() == found.structure)


def test_every_system_is_restated_here() -> None:
    assert RULES.keys() == {*PEERS, "rpeg"}


@pytest.fixture(scope="module")
def ppo() -> Problem:
    search = SearchSpace(staleness={"actor": (0, 2)}, fuse=(None, ("actor_train", "critic_train")))
    return problem_of(PPO, 2, search)


@pytest.fixture(scope="module")
def found(ppo: Problem) -> Comparison:
    return compared(ppo, budget=40)


@pytest.mark.parametrize("name", RULES)
def test_plans_obey_the_restriction(ppo: Problem, found: Comparison, name: str) -> None:
    one = entry(found, name)
    assert one.outcome == "ok"
    assert one.plan is not None
    assert one.figures is not None
    assert one.figures.fits
    made = chosen(ppo, one)
    assert RULES[name](made, one.plan)
    # The figures are those of the plan in the compiler itself.
    again = Evaluator(made).evaluate(one.plan)
    assert again.makespan_ns == pytest.approx(one.figures.step_time_s * 1e9 * made.options.steps)
    assert again.peak_bytes == one.figures.peak_memory_bytes


def test_rpeg_is_never_worse_and_its_gain_is_told(found: Comparison) -> None:
    assert found.rpeg.name == "rpeg"
    assert found.rpeg.figures is not None
    assert found.rpeg.rpeg_gain is None
    for one in found.entries[:-1]:
        assert one.figures is not None
        assert found.rpeg.figures.tokens_per_second >= one.figures.tokens_per_second
        ratio = found.rpeg.figures.tokens_per_second / one.figures.tokens_per_second
        assert one.rpeg_gain == pytest.approx(ratio - 1)


def test_rpeg_starts_from_the_plans_of_the_others(found: Comparison, ppo: Problem) -> None:
    """With next to no budget of its own it has the best of theirs."""
    with_others = compare(ppo, systems(["real"]), Settings(budget=1, threads=1), jobs=1)
    best = max(e.figures.tokens_per_second for e in with_others.entries[:-1] if e.figures is not None)
    assert with_others.rpeg.figures is not None
    assert with_others.rpeg.figures.tokens_per_second >= best
    took = {e.name: e.evaluations or 0 for e in found.entries[:-1]}
    del took["asyncflow"]  # which decides what areal decides: one search is for both
    assert found.start_evaluations == sum(took.values())
    assert f"took {found.start_evaluations} evaluations" in as_text(found)


def test_equal_spaces_have_equal_plans(found: Comparison) -> None:
    one, other = entry(found, "areal"), entry(found, "asyncflow")
    assert msgspec.structs.replace(one, name=other.name, summary=other.summary) == other


# Brute force


def every_plan(problem: Problem, name: str) -> Iterator[Plan]:
    """All plans of candidates of `problem` that obey the restriction of system `name`."""
    evaluator = Evaluator(problem)
    options = []
    for v in problem.graph.vertices:
        if v.name in evaluator.placed:
            enumeration = Enumeration(
                evaluator,
                Rules(problem, v),
                PartialPlacement(),
                fixed_microbatches=name in ("real", "rlhfuse"),
            )
            options.append([(v.name, p) for p in enumeration.candidates()])
    for pairs in itertools.product(*options):
        plan = dict(pairs)
        if RULES[name](problem, plan):
            yield plan


@pytest.mark.parametrize("name", RULES)
def test_the_plan_is_the_best_of_the_space(name: str) -> None:
    problem = problem_of(GRPO, 2)
    least = []
    for _, made in structures(problem):
        evaluator = Evaluator(made)
        rows = [evaluator.row(plan) for plan in every_plan(made, name)]
        if rows:
            batch = evaluator.evaluate_rows(np.array(rows))
            least.append(int(batch.makespan_ns[batch.peak_bytes <= evaluator.limit_bytes].min()))
    found = compared(problem, *(() if name == "rpeg" else (name,)))
    figures = entry(found, name).figures
    assert figures is not None
    assert figures.step_time_s * 1e9 * problem.options.steps == pytest.approx(min(least), abs=1)


# Spaces without a plan


def test_what_the_file_does_not_list_is_not_allowed() -> None:
    stale = problem_of(GRPO, 2, SearchSpace(staleness={"actor": (1, 2)}))
    found = compared(stale)
    outcomes = {e.name: e.outcome for e in found.entries}
    assert {n for n, outcome in outcomes.items() if outcome == "not allowed"} == {
        "colocated",
        "real",
        "rlhfuse",
    }
    assert entry(found, "colocated").reason == "it needs staleness 0 of `actor`"
    fresh = compared(problem_of(GRPO, 2, SearchSpace()), "areal", "split")
    assert entry(fresh, "areal").reason == "it needs staleness 1 or more of `actor`"
    assert entry(fresh, "split").outcome == "ok"
    assert "not allowed by this file: it needs staleness 1 or more of `actor`" in as_text(fresh)


def test_gpus_that_cannot_be_divided_are_told() -> None:
    found = compared(problem_of(GRPO, 1), "areal", "rlinf")
    assert entry(found, "areal").outcome == "not allowed"
    assert "groups of GPUs" in (entry(found, "areal").reason or "")
    assert entry(found, "rlinf").outcome == "ok"


def test_what_the_file_fixes_holds_for_all() -> None:
    problem = problem_of(GRPO, 4)
    fixed = PartialPlacement(origin=(0, 0, 2), extent=(1, 1, 2), tensor_parallel=2)
    found = compared(msgspec.structs.replace(problem, plan={"actor_train": fixed}))
    for one in found.entries:
        assert one.plan is not None
        p = one.plan["actor_train"]
        assert (p.origin, p.extent, p.tensor_parallel) == ((0, 0, 2), (1, 1, 2), 2)
    everywhere = PartialPlacement(extent=(1, 1, 4))
    found = compared(msgspec.structs.replace(problem, plan={"actor_train": everywhere}), "split")
    assert entry(found, "split").outcome == "not allowed"


def test_memory_that_is_too_small_for_one_system_is_told() -> None:
    """Weights and optimizer fit on four GPUs, not on the two that are left beside a generation."""
    found = compared(with_memory(problem_of(GRPO, 4), 6e6), "colocated", "split")
    assert entry(found, "colocated").outcome == "ok"
    assert entry(found, "split").outcome == "infeasible"
    assert entry(found, "split").reason == (
        "no plan fits in memory: there is no room for `actor_gen` (on 2 GPUs or more) and "
        "`ref_inf`, `actor_train` (on 4 GPUs or more) on 4 GPUs"
    )
    assert "not allowed" not in as_text(found)


def test_the_tightest_gpu_is_told_where_plans_do_not_fit() -> None:
    found = compared(with_memory(problem_of(GRPO, 4), 5e6), "colocated")
    assert [e.outcome for e in found.entries] == ["infeasible", "infeasible"]
    for one in found.entries:
        assert re.search(r"GPU 0\.0\.\d needs \d\.\d+ MiB but has 4\.29 MiB", one.reason or "")
    assert found.diagnostics[0].code == "E420"


def test_a_start_in_the_file_is_for_rpeg_alone() -> None:
    problem = problem_of(GRPO, 4)
    start = dict(compared(problem).rpeg.plan or {})
    given = msgspec.structs.replace(problem, search=msgspec.structs.replace(ASYNCHRONOUS, warm_start=start))
    found = compared(given)
    for one in found.entries:
        assert one.plan is not None
        assert RULES[one.name](chosen(problem, one), one.plan)


def test_what_is_wrong_with_the_file_is_no_matter_of_a_system() -> None:
    wrong = SearchSpace(staleness={"reference": (0, 1)})
    with pytest.raises(DiagnosticError, match="E432"):
        compared(problem_of(GRPO, 2, wrong), "split")


# The command


def test_processes_change_no_result() -> None:
    problem = problem_of(GRPO, 2)
    names = ("colocated", "areal")
    assert compared(problem, *names, jobs=2) == compared(problem, *names, jobs=1)


@pytest.mark.parametrize(("spread", "tied"), [(0.5, True), (1e-9, False)])
def test_a_gain_within_the_uncertainty_is_marked(spread: float, tied: bool) -> None:
    problem = measured(problem_of(PPO, 2, SearchSpace(split=("never",))), spread)
    found = compared(problem, "colocated")
    peer = entry(found, "colocated")
    assert peer.rpeg_gain is not None
    assert peer.rpeg_gain > 0
    assert peer.indistinguishable is tied
    assert found.rpeg.indistinguishable is None
    assert ("~ indistinguishable: the 90 % interval" in as_text(found)) is tied


Rpegc = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rpegc(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rpegc:
    """Runs `rpegc compare small.rpeg --only colocated --only areal --budget 20 --jobs 1 …`."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    Path("small.rpeg").write_text(HEAD.replace("GPUS", "2") + GRPO)

    def call(*arguments: str, file: str = "small.rpeg") -> tuple[int, str, str]:
        only = ("--only", "colocated", "--only", "areal", "--budget", "20", "--jobs", "1")
        return (run(["compare", file, *only, *arguments]), *capfd.readouterr())

    return call


def test_the_table_tells_plans_and_reasons(rpegc: Rpegc) -> None:
    code, out, err = rpegc("--seed", "3")
    assert (code, err) == (0, "")
    assert "at most 20 evaluations, seed 3" in out
    assert "not measurements" in out
    told = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert told == 2 * ["system", "colocated", "areal", "rpeg"]
    assert "not allowed by this file: it needs staleness 1 or more of `actor`" in out


def test_json_csv_and_plot_tell_the_same(rpegc: Rpegc) -> None:
    pytest.importorskip("matplotlib")
    code, out, _ = rpegc("--json", "--csv", "out.csv", "--plot", "out.png")
    assert code == 0
    told = json.loads(out)
    assert told["budget"] == 20
    lines = list(csv.DictReader(io.StringIO(Path("out.csv").read_text())))
    assert (
        [line["name"] for line in lines]
        == [e["name"] for e in told["entries"]]
        == ["colocated", "areal", "rpeg"]
    )
    assert lines[0]["step_time_s"] == str(told["entries"][0]["figures"]["step_time_s"])
    assert (lines[1]["outcome"], lines[1]["step_time_s"]) == ("not allowed", "")
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")


def test_the_plot_has_a_place_for_spaces_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars of plans, and where there is none what is said instead, inside the axes."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    monkeypatch.setattr(plot_module, "write_plot", lambda name, draw, inches: draw(figure))
    found = compared(problem_of(GRPO, 2, SearchSpace()), "areal", "split")
    plot_module.plot(found, "compare.png")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["areal", "split", "rpeg"]
    assert len(axes.patches) == 2
    texts = {text.get_text(): text.xy[1] for text in axes.texts}
    assert texts["not allowed by this file"] == 0
    assert axes.get_ylim() == (2.5, -0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "arael"], "did you mean `areal`?"),
        (["--json", "--csv", "-"], "both need stdout"),
        (["--plot", "out.gif"], "`out.gif` names no format of a plot"),
        (["--budget", "0"], "neither a number of evaluations"),
    ],
)
def test_faulty_command_lines(rpegc: Rpegc, arguments: list[str], message: str) -> None:
    code, out, err = rpegc(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_faulty_file_is_told_once(rpegc: Rpegc) -> None:
    Path("wrong.rpeg").write_text(HEAD.replace("GPUS", "2") + GRPO.replace("reference = reference, ", ""))
    code, out, err = rpegc(file="wrong.rpeg")
    assert (code, out) == (1, "")
    assert err.count("error[") == 1


def test_where_nothing_fits_the_exit_code_is_that_of_a_compilation(rpegc: Rpegc) -> None:
    large = HEAD.replace("GPUS", "1").replace('"tiny-small"', '"llama-3.1-70b"') + GRPO
    Path("large.rpeg").write_text(large)
    code, out, err = rpegc(file="large.rpeg")
    assert code == 1
    assert "it alone needs" in out
    assert "error[E421]" in err
