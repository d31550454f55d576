"""The search pass: baselines, annealing, polish, repeatability, and what it says when nothing fits."""

import itertools
import re

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ir_schema.diagnostics import DiagnosticError
from ir_schema.envelope import canonical
from ir_schema.problem import PartialPlacement, SearchSpace, Verifier
from passes.evaluate import evaluate
from passes.schedule import raw_score
from passes.search import WATCH, Search, Watch
from passes.search.concurrent import concurrent, levels
from passes.search.greedy import greedy
from passes.search.infeasible import _fits, with_memory, with_responses
from passes.search.ledger import CHUNK
from passes.search.legality import legal
from passes.search.space import build
from passes.search.structures import structures
from passes.verify import verify
from tests.passes.search.worked import CASES, case, ppo, read_case


def spaces(problem):
    found = []
    for i, (structure, chosen) in enumerate(structures(problem)):
        space, empty = build(i, structure, chosen)
        assert empty == []
        found.append(space)
    return found


def time_ns(space, vertex, placement):
    number = space.vertices.index(vertex)
    return space.evaluator.operator_ns(number, space.evaluator.shape(number, placement))


def peak_of(space, row):
    return int(space.evaluator.evaluate_rows(row[None]).peak_bytes[0])


def all_rows(space):
    """Every plan made of candidates."""
    options = []
    for candidates in space.options:
        placed = zip(candidates.numbers.tolist(), candidates.shapes, strict=True)
        options.append(
            [(number, first) for number, s in placed for first in candidates.starts[s.gpus].tolist()]
        )
    return np.array(list(itertools.product(*options)))


def tiny():
    """DPO (three vertices) on two GPUs."""
    problem = case("09").problem
    return with_memory(msgspec.structs.replace(problem, device_space=(1, 1, 2)), 4e11)


# The plan in the file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}/{p.stem[:2]}")
def test_none_takes_the_plan_of_the_file(path):
    configuration = read_case(path)
    plan = {v: PartialPlacement(**msgspec.structs.asdict(p)) for v, p in configuration.plan.items()}
    problem = msgspec.structs.replace(configuration.problem, plan=plan)
    found = Search(method="none").run(problem)
    assert (found.problem, found.plan) == (configuration.problem, configuration.plan)


def test_none_reports_every_violation():
    plan = {
        "actor_gen": PartialPlacement(
            origin=(0, 0, 0),
            extent=(1, 1, 4),
            data_parallel=4,
            pipeline_parallel=1,
            tensor_parallel=1,
            microbatches=2,
        ),
        "ref_inf": PartialPlacement(tensor_parallel=1),
    }
    with pytest.raises(DiagnosticError) as caught:
        Search(method="none").run(msgspec.structs.replace(ppo(), plan=plan))
    codes = [d.code for d in caught.value.diagnostics]
    assert codes == ["E414", *["E403"] * 5]


def test_none_does_not_ask_about_memory():
    configuration = case("01")
    plan = {v: PartialPlacement(**msgspec.structs.asdict(p)) for v, p in configuration.plan.items()}
    small = with_memory(msgspec.structs.replace(configuration.problem, plan=plan), 1e9)
    found = Search(method="none").run(small)
    assert not evaluate(found).memory_feasible


@pytest.mark.parametrize("method", ["none", "greedy", "sa"])
def test_a_verifier_has_no_plan(method):
    problem = ppo()
    vertices = tuple(
        msgspec.structs.replace(v, model=None, reads=("Y",)) if v.name == "reward_inf" else v
        for v in problem.graph.vertices
    )
    problem = msgspec.structs.replace(
        problem,
        graph=msgspec.structs.replace(problem.graph, vertices=vertices),
        host={"reward_inf": Verifier(seconds_per_response=0.01)},
    )
    assert "reward_inf" not in Search(method="greedy").run(problem).plan
    placed = msgspec.structs.replace(problem, plan={"reward_inf": PartialPlacement(tensor_parallel=1)})
    with pytest.raises(DiagnosticError, match="E402"):
        Search(method=method).run(placed)


# Heuristics --------------------------------------------------------------------------------------------


def test_greedy_uses_every_gpu_and_the_fastest_layout():
    (space, *_) = spaces(ppo())
    for v, p in space.evaluator.plan(greedy(space)).items():
        assert p.extent == (1, 2, 4)
        times = {s.placement: s.time_ns for s in space.candidates[v].shapes if s.gpus == 8}
        assert times[p] == min(times.values())


def test_levels_are_longest_paths():
    assert levels(ppo()) == [
        ["actor_gen"],
        ["ref_inf", "reward_inf", "critic_inf"],
        ["actor_train", "critic_train"],
    ]


def test_concurrent_is_the_best_of_all_disjoint_choices():
    """On few GPUs, every combination of a level is looked at; the machine is large enough for any plan."""
    problem = with_memory(ppo((1, 1, 4), prompts=8), 1e13)
    (space, *_) = spaces(problem)
    row, fits = concurrent(space)
    plan = space.evaluator.plan(row)
    assert fits
    for level in levels(problem):
        names = [v for v in level if v in plan]
        options = [list(space.candidates[v]) for v in names]

        def slowest(choice, names=names):
            return max(time_ns(space, v, p) for v, p in zip(names, choice, strict=True))

        def disjoint(choice):
            pairs = itertools.combinations(choice, 2)
            return not any(a.allocation.overlap(b.allocation) for a, b in pairs)

        best = min((c for c in itertools.product(*options) if disjoint(c)), key=slowest)
        assert tuple(plan[v] for v in names) == best


def test_a_level_without_room_runs_one_after_another():
    problem = with_memory(ppo((1, 1, 2)), 1e13)
    (space, *_) = spaces(problem)
    plan = space.evaluator.plan(concurrent(space)[0])
    assert {plan[v].extent for v in ("ref_inf", "reward_inf", "critic_inf")} == {(1, 1, 2)}


def test_concurrent_looks_for_a_plan_that_fits():
    """With the memory that its second choice needs, the first is passed over."""
    problem = ppo((1, 2, 4))
    (space, *_) = spaces(with_memory(problem, 1e13))
    peak = peak_of(space, concurrent(space)[0])
    limited = with_memory(problem, (peak - 1) / (1 - problem.hardware.runtime_reserve))
    (space, *_) = spaces(limited)
    row, fits = concurrent(space)
    assert fits
    assert peak_of(space, row) < peak


# Annealing ---------------------------------------------------------------------------------------------


def test_a_seed_repeats_and_results_are_feasible_and_legal():
    problem = ppo((1, 4, 4), search=SearchSpace(staleness={"actor": (0, 1), "critic": (0, 1)}))
    search = Search(budget=400, seed=3, no_polish=True)
    first, second = search.run(problem), search.run(problem)
    assert canonical(first) == canonical(second)
    assert first.search.evaluations <= 400
    assert evaluate(first).memory_feasible
    for v in problem.graph.vertices:
        assert legal(problem, v, first.plan[v.name]) == []
    assert first.problem.search is None
    assert first.problem.plan == {}


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([(1, 1, 4), (1, 2, 4), (2, 2, 2)]),
    st.sampled_from(["paper", "megatron"]),
    st.sampled_from([32, 64]),
    st.sampled_from(["throughput", "efficiency"]),
    st.integers(0, 99),
)
def test_never_worse_than_the_baselines(space, cost_model, prompts, objective, seed):
    choices = SearchSpace(staleness={"actor": (0, 1)}, objective=objective, split=("auto",))
    problem = with_memory(ppo(space, cost_model=cost_model, prompts=prompts, search=choices), 2e11)
    found = Search(budget=60, seed=seed).run(problem)
    scheduled = evaluate(found)
    assert scheduled.memory_feasible
    if objective == "throughput":
        assert all(scheduled.score_tokens_per_s >= x for x in found.search.baselines.values())
    for method in ("greedy", "concurrent"):
        baseline = Search(method=method).run(problem)
        if objective == "throughput":
            assert scheduled.score_tokens_per_s >= evaluate(baseline).score_tokens_per_s


@pytest.mark.parametrize("method", ["sa", "auto"])
def test_finds_the_best_of_all_plans_on_a_tiny_machine(method):
    problem = tiny()
    best = 0.0
    for space in spaces(problem):
        figures = space.evaluator.evaluate_rows(all_rows(space))
        fits = figures.peak_bytes <= space.evaluator.limit_bytes
        best = max(best, raw_score(space.problem, int(figures.makespan_ns[fits].min())))
    found = Search(method=method, budget=2000).run(problem)
    assert evaluate(found).score_tokens_per_s == best
    assert found.search.termination == "exhausted"


def test_fixed_fields_and_excluded_gpus_are_kept():
    problem = ppo(search=SearchSpace(exclude=("0.0.0",)))
    plan = {"actor_gen": PartialPlacement(tensor_parallel=4), "ref_inf": PartialPlacement(origin=(0, 1, 0))}
    found = Search(budget=100).run(msgspec.structs.replace(problem, plan=plan))
    assert found.plan["actor_gen"].tensor_parallel == 4
    assert found.plan["ref_inf"].origin == (0, 1, 0)
    assert not any("0.0.0" in p.allocation.device_names() for p in found.plan.values())


def test_an_impossible_field_is_named():
    problem = msgspec.structs.replace(ppo(), plan={"actor_gen": PartialPlacement(tensor_parallel=3)})
    with pytest.raises(DiagnosticError) as caught:
        Search(method="greedy").run(problem)
    assert caught.value.diagnostics[0].code == "E411"


@pytest.mark.parametrize(
    "ablation",
    [
        "no_splitting",
        "no_asynchrony",
        "fixed_microbatches",
        "no_pair_moves",
        "no_warm_restarts",
        "uniform_choice",
        "no_polish",
        "hard_memory",
        "geometric_cooling",
    ],
)
def test_every_ablation_runs(ablation):
    problem = ppo((1, 2, 4), search=SearchSpace(staleness={"actor": (0, 1)}, split=("auto",)))
    found = Search(method="sa", budget=80, **{ablation: True}).run(problem)
    assert evaluate(found).memory_feasible
    if ablation == "no_splitting":
        assert found.problem.options.split == "never"
    if ablation == "no_asynchrony":
        assert found.problem.graph.staleness["actor"] == 0
    if ablation == "fixed_microbatches":
        roles = {v.name: v.role for v in problem.graph.vertices}
        for v, p in found.plan.items():
            stages = p.pipeline_parallel * (2 if roles[v] == "training" else 1)
            assert p.microbatches == (1 if p.pipeline_parallel == 1 else stages)


def test_efficiency_trades_little_throughput_for_utilisation():
    plain = ppo((1, 4, 4), search=SearchSpace(staleness={"actor": (1,), "critic": (1,)}, split=("never",)))
    efficient = msgspec.structs.replace(
        plain, search=msgspec.structs.replace(plain.search, objective="efficiency")
    )
    fast, lean = (Search(budget=1500).run(p) for p in (plain, efficient))
    scores = evaluate(fast), evaluate(lean)
    assert scores[1].utilisation > scores[0].utilisation
    assert scores[1].score_tokens_per_s >= 0.9 * max(lean.search.baselines.values())


# Ending ------------------------------------------------------------------------------------------------


def test_nothing_fits():
    problem = with_memory(ppo((1, 1, 4)), 5.0e10)
    with pytest.raises(DiagnosticError) as caught:
        Search(budget=50).run(problem)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E420"
    for what in ("actor: ", "critic: ", "while it runs"):
        assert any(what in note and "GiB" in note for note in diagnostic.notes), diagnostic.notes
    enough = int(re.search(r"(\d+) GPUs", diagnostic.help)[1])
    assert evaluate(Search(budget=400).run(with_nodes(problem, enough // 4))).memory_feasible


def test_an_operator_that_does_not_fit_alone():
    problem = with_memory(ppo((1, 1, 4)), 2.0e10)
    with pytest.raises(DiagnosticError) as caught:
        Search(budget=50).run(problem)
    diagnostics = caught.value.diagnostics
    assert {d.code for d in diagnostics} == {"E421"}
    assert any("actor: " in note for note in diagnostics[0].notes), diagnostics[0].notes
    enough = int(re.search(r"(\d+) GPUs \((\d+) nodes of 4\) were found", diagnostics[0].help)[1])
    for nodes in range(1, enough // 4):
        assert not _fits(with_nodes(problem, nodes))
    assert evaluate(Search(budget=400).run(with_nodes(problem, enough // 4))).memory_feasible


REMEDY = re.compile(
    r"(?P<auto>with method `auto` \(-O2\), )?("
    r"\d+ GPUs \((?P<nodes>\d+) nodes of 4\) were found to be enough"
    r"|responses of (?P<tokens>\d+) tokens( \(with `length_quantiles` that end there\))? were found to fit"
    r"|GPUs with (?P<memory>\d+)\.00 (?P<unit>[GM]iB) were found to be enough"
    r"|a plan is found that fits)"
)


def remedied(problem, remedy):
    """The problem changed as a remedy says."""
    if remedy["nodes"]:
        return with_nodes(problem, int(remedy["nodes"]))
    if remedy["tokens"]:
        return with_responses(problem, int(remedy["tokens"]))
    if remedy["memory"]:
        return with_memory(problem, int(remedy["memory"]) * 2 ** {"G": 30, "M": 20}[remedy["unit"][0]])
    return problem


@pytest.mark.parametrize(
    ("method", "cost_model"),
    [
        ("greedy", "paper"),
        ("auto", "megatron"),
        *(
            pytest.param(method, cost_model, marks=pytest.mark.slow)
            for method, cost_model in [
                ("greedy", "megatron"), ("concurrent", "paper"), ("concurrent", "megatron"),
                ("sa", "paper"), ("sa", "megatron"), ("auto", "paper"),
            ]
        ),
    ],
)  # fmt: skip
def test_every_remedy_is_one(method, cost_model):
    """The changed problem, compiled by the same method or by the one that is named, has a plan that fits."""
    remedies = 0
    for gib in (10, 20, 50, 100):
        problem = with_memory(ppo((1, 1, 4), cost_model=cost_model), gib * 2**30)
        try:
            Search(method=method, budget=30).run(problem)
            continue
        except DiagnosticError as exc:
            diagnostics = exc.diagnostics
        for remedy in REMEDY.finditer("; ".join(d.help for d in diagnostics)):
            assert bool(remedy["auto"]) == (method in ("greedy", "concurrent"))
            found = Search(budget=30).run(remedied(problem, remedy))
            assert evaluate(found).memory_feasible, remedy[0]
            remedies += 1
    assert remedies >= 3


def test_a_plan_that_a_search_finds_is_the_only_remedy():
    problem = next(
        problem
        for gib in range(20, 200)
        for problem in [with_memory(ppo((1, 1, 4), cost_model="megatron"), gib * 2**30)]
        if _fits(problem)
    )
    with pytest.raises(DiagnosticError) as caught:
        Search(method="greedy").run(problem)
    help = "; ".join(d.help for d in caught.value.diagnostics)
    assert [r[0] for r in REMEDY.finditer(help)] == ["with method `auto` (-O2), a plan is found that fits"]
    assert evaluate(Search(budget=30).run(problem)).memory_feasible


def test_shorter_responses_keep_their_distribution():
    problem = ppo((1, 1, 4), response_length=384, length_quantiles=((0.5, 96), (0.9, 192), (1.0, 384)))
    assert with_responses(problem, 200).workload.length_quantiles == ((0.5, 96), (0.9, 192), (1.0, 200))
    assert with_responses(problem, 192).workload.length_quantiles == ((0.5, 96), (1.0, 192))
    assert with_responses(problem, 50).workload.length_quantiles == ((1.0, 50),)
    assert verify(with_responses(problem, 96)) == []


def test_the_longest_response_that_fits():
    problem = ppo((1, 1, 4), cost_model="megatron", response_length=600_000, length_quantiles=())
    with pytest.raises(DiagnosticError) as caught:
        Search(budget=50).run(problem)
    length = int(re.search(r"responses of (\d+) tokens", caught.value.diagnostics[0].help)[1])
    assert 100 < length < 600_000
    shorter = ppo((1, 1, 4), cost_model="megatron", response_length=length, length_quantiles=())
    assert evaluate(Search(budget=200).run(shorter)).memory_feasible


def with_nodes(problem, nodes):
    return msgspec.structs.replace(problem, device_space=(1, nodes, 4))


@pytest.mark.parametrize("budget", [1, 7, 60, 500])
def test_a_budget_is_all_that_is_evaluated(budget):
    """Beside the two heuristics of each structure, which are scored in any case."""
    found = Search(budget=budget).run(ppo((1, 4, 4), cost_model="megatron"))
    heuristics = 2 * len(structures(ppo((1, 4, 4))))
    assert found.search.evaluations <= max(budget, heuristics)


@pytest.mark.parametrize("method", ["sa", "auto"])
def test_a_polished_plan_is_not_improved_by_any_single_change(method):
    found = Search(method=method, budget=6000).run(ppo((1, 1, 4)))
    assert found.search.evaluations < 6000
    own = SearchSpace(split=(found.problem.options.split,))
    (space,) = spaces(msgspec.structs.replace(found.problem, search=own))
    row, best = space.evaluator.row(found.plan), evaluate(found).makespan_ns
    for v, candidates in enumerate(space.options):
        for number, shape in zip(candidates.numbers.tolist(), candidates.shapes, strict=True):
            for first in candidates.starts[shape.gpus].tolist():
                changed = row.copy()
                changed[v] = number, first
                figures = space.evaluator.evaluate_rows(changed[None])
                fits = figures.peak_bytes[0] <= space.evaluator.limit_bytes
                assert figures.makespan_ns[0] >= best or not fits


def test_the_runner_up_is_of_another_structure():
    choices = SearchSpace(staleness={"actor": (0, 1)}, split=("never",))
    problem = ppo((1, 2, 4), search=choices)
    found = Search(budget=400).run(problem)
    second = found.search.baselines["runner-up"]
    assert second <= evaluate(found).score_tokens_per_s
    tau = found.problem.graph.staleness["actor"]
    assert f"runner-up: staleness actor = {1 - tau}, staleness critic = 0, split never" in found.search.notes
    other = msgspec.structs.replace(choices, staleness={"actor": (1 - tau,)})
    alone = Search(method="greedy").run(msgspec.structs.replace(problem, search=other))
    assert second >= evaluate(alone).score_tokens_per_s


def test_the_runner_up_of_one_structure_is_another_plan():
    problem = msgspec.structs.replace(tiny(), search=SearchSpace(split=("never",)))
    found = Search(budget=2000).run(problem)
    space, _ = build(0, *structures(problem)[0])
    rows = all_rows(space)
    figures = space.evaluator.evaluate_rows(rows)
    fits = figures.peak_bytes <= space.evaluator.limit_bytes
    keys = map(bytes, space.evaluator.keys(rows[fits]))
    scores = {
        key: raw_score(space.problem, makespan)
        for key, makespan in zip(keys, figures.makespan_ns[fits].tolist(), strict=True)
    }
    best, second = sorted(scores.values(), reverse=True)[:2]
    assert evaluate(found).score_tokens_per_s == best
    assert found.search.baselines["runner-up"] <= second
    assert any(n.startswith("runner-up: another plan of") for n in found.search.notes)


def test_the_time_limit_is_a_cap():
    found = Search(budget=10**9, time_limit=0.5).run(ppo((1, 4, 4)))
    assert found.search.termination == "time_limit"
    assert evaluate(found).memory_feasible


def test_a_stopped_search_returns_its_best_plan():
    seen = []
    watch = Watch(interval=0.0)

    def on_progress(progress):
        seen.append(progress)
        watch.stop = progress.evaluations >= 50

    watch.on_progress = on_progress
    token = WATCH.set(watch)
    try:
        found = Search(budget=10**6).run(ppo((1, 4, 4)))
    finally:
        WATCH.reset(token)
    assert found.search.termination == "interrupted"
    assert 50 <= found.search.evaluations < 50 + 2 * CHUNK
    assert evaluate(found).score_tokens_per_s == seen[-1].best
    assert seen[-1].gain(seen[-1].greedy) >= 0
    assert evaluate(found).memory_feasible
