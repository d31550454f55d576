"""What changes would buy: every figure against the same change made by hand."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ir_schema.device import Allocation
from ir_schema.envelope import decode_stage, encode_stage
from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration, Executable
from passes.assemble import Assemble
from passes.evaluate import evaluate
from passes.search import Search, legal
from passes.structure import Plan
from passes.uncertainty import difference
from rpegc.cli.group import run
from rpegc.inputs import parse_problem
from rpegc.whatif.changes import Change, changes
from rpegc.whatif.data import KINDS, Effect, Kind, WhatIf
from rpegc.whatif.run import whatif
from rpegc.whatif.show import render

TEXT = """rpeg 1
graph small {
  options { steps = 6, cost_model = "paper" }
  cluster { hardware = "h100", racks = 1, nodes = NODES, gpus = 2 }
  workload {
    prompts = 8, rollouts = 4, prompt_length = 96, response_length = LENGTH
    length_quantiles = [[0.5, HALF], [1.0, LENGTH]]
  }
  model actor : lm { arch = "tiny-small", trainable = true, staleness = TAU }
  model critic : scalar { arch = "tiny-small", trainable = true, staleness = 1 }
  model reference : lm { arch = "tiny-small" }
  model reward : scalar { arch = "tiny-small" }
  use ppo { actor = actor, critic = critic, reference = reference, reward = reward }
}
"""


def problem_of(*, nodes: int = 2, length: int = 256, tau: int = 0) -> Problem:
    text = TEXT.replace("NODES", str(nodes)).replace("LENGTH", str(length)).replace("HALF", str(length // 2))
    stage = parse_problem(text.replace("TAU", str(tau)).encode(), "small.rpeg").run.stage
    assert isinstance(stage, Problem)
    return stage


@pytest.fixture(scope="module")
def given() -> Configuration:
    return Search(method="greedy").run(problem_of())


def effects(given: Configuration, *kinds: Kind, budget: int = 0, jobs: int = 1) -> list[Effect]:
    return list(whatif(given, kinds, budget=budget, jobs=jobs).effects)


def only(given: Configuration, kind: Kind, **changed: object) -> Change:
    found, _ = changes(msgspec.structs.replace(given.problem, **changed), [kind])
    assert len(found) == 1
    return found[0]


def step_time(problem: Problem, plan: Plan) -> float:
    return evaluate(Configuration(problem=problem, plan=plan)).step_time_s


def test_the_base_is_what_the_file_predicts(given: Configuration) -> None:
    scheduled = evaluate(given)
    executable = Assemble().run(scheduled)
    score = executable.prediction.score
    for stage in (given, scheduled, executable):
        found = whatif(stage, ["memory"], budget=0, jobs=1)
        assert found.notices == ()
        assert found.base.step_time_s == score.step_time_s
        assert found.base.tokens_per_second == score.tokens_per_s
        assert found.base.peak_memory_bytes == score.max_peak_bytes
        tokens = 8 * 4 * (96 + 256)
        hours = 4 * score.step_time_s / 3600
        assert found.base.gpu_hours_per_million_tokens == pytest.approx(hours / (tokens / 1e6))


def test_another_releases_figures_are_told(given: Configuration) -> None:
    executable = Assemble().run(evaluate(given))
    score = msgspec.structs.replace(executable.prediction.score, step_time_s=1.0)
    prediction = msgspec.structs.replace(executable.prediction, score=score)
    found = whatif(msgspec.structs.replace(executable, prediction=prediction), [], budget=0, jobs=1)
    assert "compile the problem again" in found.notices[0]


def test_staleness_is_that_of_the_same_file_with_another_number(given: Configuration) -> None:
    first, second, both = changes(given.problem, ["staleness"])[0]
    assert first.text == "staleness of actor 0 -> 1"
    assert second.text == "staleness of critic 1 -> 2"
    assert both.problem.graph.staleness == {"actor": 1, "critic": 2}
    assert first.problem.graph == problem_of(tau=1).graph
    assert first.notes == ()
    assert second.notes == both.notes == ()
    few = msgspec.structs.replace(
        given.problem, options=msgspec.structs.replace(given.problem.options, steps=5)
    )
    assert "too few" in changes(few, ["staleness"])[0][1].notes[0]


@pytest.mark.parametrize(("length", "index"), [(128, 0), (512, 1)])
def test_response_length_is_that_of_the_same_file_with_another_number(
    given: Configuration, length: int, index: int
) -> None:
    change = changes(given.problem, ["responses"])[0][index]
    written = problem_of(length=length)
    assert change.problem.workload == written.workload
    assert change.problem.graph == written.graph


def test_nodes_are_doubled_and_halved(given: Configuration) -> None:
    twice, half = changes(given.problem, ["nodes"])[0]
    assert twice.problem == msgspec.structs.replace(given.problem, device_space=(1, 4, 2))
    assert half.problem.device_space == (1, 1, 2)
    racks = msgspec.structs.replace(given.problem, device_space=(4, 3, 2))
    assert [c.problem.device_space for c in changes(racks, ["nodes"])[0]] == [(8, 3, 2), (2, 3, 2)]
    alone = only(given, "nodes", device_space=(1, 1, 2))
    assert alone.problem.device_space == (1, 2, 2)


def test_a_network_twice_as_fast_halves_what_crosses_nodes(given: Configuration) -> None:
    before, after = given.problem.hardware, only(given, "network").problem.hardware
    for primitive in ("collective", "point_to_point"):
        old, new = getattr(before, primitive), getattr(after, primitive)
        assert new.intra == old.intra
        for tier in ("inter", "rack"):
            assert new.at(tier).alpha == old.at(tier).alpha / 2
            assert new.at(tier).beta == old.at(tier).beta / 2
    assert changes(msgspec.structs.replace(given.problem, device_space=(1, 1, 4)), ["network"])[0] == []


def test_what_a_problem_does_not_admit_is_left_out(given: Configuration) -> None:
    hardware = msgspec.structs.replace(given.problem.hardware, memory_bytes=2.0**60)
    found, left_out = changes(msgspec.structs.replace(given.problem, hardware=hardware), ["memory"])
    assert found == []
    assert len(left_out) == 2
    assert left_out[0].startswith("memory 1.5x")


def test_fusing_and_splitting_are_switched(given: Configuration) -> None:
    fused = only(given, "fusion").problem
    assert fused.options.fuse == ("actor_train", "critic_train")
    assert only(given, "fusion", options=fused.options).problem.options.fuse is None
    whole = only(given, "splitting").problem
    assert whole.options.split == "never"
    assert only(given, "splitting", options=whole.options).problem.options.split == "auto"


def test_the_shared_model_is_trained_where_the_policy_was(given: Configuration) -> None:
    graph = msgspec.structs.replace(given.problem.graph, staleness={"actor": 1, "critic": 1})
    change = only(given, "sharing", graph=graph)
    plan = change.carry(given.plan)
    assert plan["actor_critic_train"] == given.plan["actor_train"]
    assert "critic_train" not in plan
    assert changes(given.problem, ["sharing"]) == ([], [])  # their staleness differs


def test_a_plan_that_is_kept_has_the_figures_of_its_own_evaluation(given: Configuration) -> None:
    kinds: list[Kind] = ["staleness", "fusion", "splitting", "network", "memory", "responses", "nodes"]
    found = {e.change: e for e in effects(given, *kinds)}
    tried = {c.text: c for c in changes(given.problem, kinds)[0]}
    assert found.keys() == tried.keys()
    kept, base_rate = 0, 32 * (96 + 256) / step_time(given.problem, given.plan)
    for text, effect in found.items():
        problem = tried[text].problem
        broken = [d for v in problem.graph.vertices for d in legal(problem, v, given.plan[v.name])]
        assert (effect.same_plan is None) == bool(broken)
        if effect.same_plan is not None:
            kept += 1
            assert effect.same_plan.step_time_s == step_time(problem, given.plan)
            assert (effect.best, effect.how) == (effect.same_plan, "same plan")
            tokens = 32 * (96 + problem.workload.response_length)
            gain = tokens / effect.same_plan.step_time_s / base_rate - 1
            assert effect.gain_percent == effect.same_plan_gain_percent == pytest.approx(100 * gain)
        else:
            assert (effect.best, effect.gain_percent, effect.how, effect.plan) == (None, None, None, {})
    assert kept >= 8


def test_gains_that_errors_may_make_up_are_marked(given: Configuration) -> None:
    kinds: list[Kind] = ["memory", "nodes", "operator", "responses", "staleness"]
    assert {e.indistinguishable for e in effects(given, *kinds)} == {None}  # `paper` knows no errors
    options = msgspec.structs.replace(given.problem.options, cost_model="megatron")
    problem = msgspec.structs.replace(given.problem, options=options)
    found = whatif(Configuration(problem=problem, plan=given.plan), kinds, budget=0, jobs=1)
    problems = {c.text: c.problem for c in changes(problem, kinds)[0]}
    base = evaluate(Configuration(problem=problem, plan=given.plan))
    seen = set()
    for e in found.effects:
        changed = problems.get(e.change, problem)
        if e.best is None or changed.workload != problem.workload:
            assert e.indistinguishable is None
            continue
        low, high = difference(base, evaluate(Configuration(problem=changed, plan=e.plan))) or (1.0, 1.0)
        assert e.indistinguishable == (low <= 0 <= high), e.change
        seen.add(e.indistinguishable)
        if e.kind == "memory":
            assert e.indistinguishable
    assert seen == {True, False}
    text = render(found)
    assert "\n~ indistinguishable: " in text
    assert len(re.findall(r" ~ [+-]", text)) == sum(e.indistinguishable is True for e in found.effects)


def every_placement(problem: Problem, vertex: str) -> list[Placement]:
    """All legal placements of a tiny problem, found by trying every combination of numbers."""
    v = next(v for v in problem.graph.vertices if v.name == vertex)
    racks, nodes, per_node = problem.device_space
    assert racks == 1
    extents = [(1, n, g) for n in range(1, nodes + 1) for g in range(1, per_node + 1)]
    found = []
    for extent in extents:
        for origin in Allocation(origin=(0, 0, 0), extent=problem.device_space).coordinates():
            if not Allocation(origin=origin, extent=extent).fits(problem.device_space):
                continue
            n = extent[1] * extent[2]
            for dp, pp, tp in [(d, p, t) for d in (1, 2, 4) for p in (1, 2, 4) for t in (1, 2, 4)]:
                for mb in (1, 2, 4, 8, 16, 32) if dp * pp * tp == n else ():
                    p = Placement(
                        origin=origin,
                        extent=extent,
                        data_parallel=dp,
                        pipeline_parallel=pp,
                        tensor_parallel=tp,
                        microbatches=mb,
                    )
                    if not legal(problem, v, p):
                        found.append(p)
    return found


@pytest.mark.parametrize("vertex", ["actor_gen", "critic_inf", "actor_train"])
def test_the_best_move_of_an_operator_is_the_best_of_all_of_them(given: Configuration, vertex: str) -> None:
    base = given.plan[vertex]
    others = [p for p in every_placement(given.problem, vertex) if p != base]
    times = {p: step_time(given.problem, given.plan | {vertex: p}) for p in others}
    moved, anew = (
        min((t for p, t in times.items() if (p.allocation == base.allocation) == stays), default=None)
        for stays in (False, True)
    )
    found = {e.change.split(":")[0]: e for e in effects(given, "operator")}
    for what, best in ((f"{vertex} moved", moved), (f"{vertex} laid out anew", anew)):
        assert (best is None) == (what not in found)
        if best is not None:
            effect = found[what]
            assert effect.best is not None
            assert effect.best.step_time_s == best
            assert effect.how == "one move"
            assert {v for v in given.plan if effect.plan[v] != given.plan[v]} == {vertex}


def test_a_search_finds_at_least_what_keeping_finds_and_takes_no_credit_for_itself(
    given: Configuration,
) -> None:
    kinds: list[Kind] = ["staleness", "network", "memory", "nodes"]
    found = {e.kind: e for e in effects(given, *kinds, budget=60) if e.best and e.best.fits}
    again = found["search"].best
    assert again is not None
    assert found["search"].gain_percent is not None
    assert found["search"].gain_percent >= 0
    for effect in found.values():
        assert effect.best is not None
        if effect.same_plan is not None:
            assert effect.best.tokens_per_second >= effect.same_plan.tokens_per_second
            assert (effect.how == "same plan") == (effect.plan == given.plan)
    for kind in ("network", "memory"):  # whatever was possible before still is, and no slower
        effect = found[kind]
        assert effect.best is not None
        assert effect.best.tokens_per_second >= again.tokens_per_second


def test_effects_stand_in_order_and_do_not_depend_on_the_number_of_processes(given: Configuration) -> None:
    kinds: list[Kind] = ["operator", "memory", "nodes"]
    alone = whatif(given, kinds, budget=20, jobs=1)
    assert whatif(given, kinds, budget=20, jobs=2) == alone
    ranks = [
        (e.best is None, e.best is not None and not e.best.fits, -(e.gain_percent or 0))
        for e in alone.effects
    ]
    assert ranks == sorted(ranks)


def test_what_does_not_fit_is_said_and_stands_last(given: Configuration) -> None:
    tight = msgspec.structs.replace(given.problem.hardware, memory_bytes=1e6)
    config = msgspec.structs.replace(given, problem=msgspec.structs.replace(given.problem, hardware=tight))
    found = whatif(config, ["memory", "operator"], budget=10, jobs=1)
    assert not found.base.fits
    assert all(e.best is not None and not e.best.fits for e in found.effects)
    assert any("no plan is left" in note for e in found.effects for note in e.notes)
    assert "does not fit" in render(found)


# The command ------------------------------------------------------------------------------------------

Rpegc = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rpegc(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    given: Configuration,
) -> Rpegc:
    """`rpegc whatif …` in a directory with plan.exe.json and problem.json."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    Path("plan.exe.json").write_bytes(encode_stage(Assemble().run(evaluate(given))))
    Path("problem.json").write_bytes(encode_stage(problem_of()))

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["whatif", *arguments])
        return (code, *capfd.readouterr())

    return call


def test_table(rpegc: Rpegc) -> None:
    code, out, err = rpegc("plan.exe.json", "--budget", "0", "--jobs", "1")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("small: executable ")
    assert "GPU-hours per million tokens" in lines[1]
    marked = {line.split(" *")[0] for line in lines if " * " in line}
    assert marked >= {"staleness of actor 0 -> 1", "response length 256 -> 512"}
    assert not any(line.startswith(("nodes", "memory", "network")) for line in marked)
    assert out.endswith("* changes what is learned or from what, not only how fast\n")


def test_json_holds_plans_that_compile(rpegc: Rpegc) -> None:
    code, out, _ = rpegc("plan.exe.json", "--only", "operator", "--jobs", "1", "--json")
    assert code == 0
    found = msgspec.json.decode(out, type=WhatIf)
    stage = decode_stage(Path("plan.exe.json").read_bytes())[1]
    assert isinstance(stage, Executable)
    assert found.base.step_time_s == stage.prediction.score.step_time_s
    assert {e.kind for e in found.effects} == {"operator"}
    for effect in found.effects:
        assert effect.best is not None
        assert step_time(stage.problem, effect.plan) == effect.best.step_time_s


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_plot(rpegc: Rpegc, kind: str) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("plan.exe.json", "--only", "memory", "--budget", "0", "--jobs", "1", "--plot", f"a.{kind}")
    assert rpegc(*arguments)[0] == 0
    first = Path(f"a.{kind}").read_bytes()
    assert first.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind])
    assert rpegc(*arguments)[0] == 0
    assert Path(f"a.{kind}").read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["problem.json"], "error[E935]: a `problem` has no plan to change"),
        (["none.json"], "error[E911]: cannot read `none.json`"),
        (["plan.exe.json", "--plot", "a.jpg"], "error[E936]: `a.jpg` names no format of a plot"),
        (["plan.exe.json", "--plot", "none/a.png"], "there is no directory `none`"),
        (["plan.exe.json", "--only", "luck"], "'luck' is not one of"),
        (["plan.exe.json", "--jobs", "0"], "Invalid value for '--jobs'"),
    ],
)
def test_faulty_command_lines_exit_2(rpegc: Rpegc, arguments: list[str], message: str) -> None:
    code, out, err = rpegc(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_changed_file_exits_1(rpegc: Rpegc) -> None:
    text = Path("plan.exe.json").read_text().replace('"steps": 6', '"steps": 7', 1)
    Path("plan.exe.json").write_text(text)
    code, out, err = rpegc("plan.exe.json")
    assert (code, out) == (1, "")
    assert "error[E904]" in err


def test_without_matplotlib_nothing_is_computed(rpegc: Rpegc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = rpegc("plan.exe.json", "--plot", "a.png", "--message-format", "json")
    assert (code, out) == (2, "")
    assert json.loads(err)["code"] == "E936"
    assert "rpeg[plots]" in json.loads(err)["help"]


def test_every_kind_is_described(rpegc: Rpegc) -> None:
    _, out, _ = rpegc("--help")
    assert all(kind in out for kind in KINDS)
