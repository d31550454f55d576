"""No plan is faster than the bound, and the bound is close to the best of them."""

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import scenarios
from ir_schema.problem import Problem
from passes.evaluate import evaluate
from passes.search import Search
from passes.search.bound import lower_bound
from passes.search.bound_blocks import EMPTY, Blocks
from passes.search.legality import legal
from passes.search.space import Space, build
from passes.search.structures import structures
from tests.passes.search.worked import ppo
from tests.strategies import problems

relaxed = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
MACHINES = [(1, 1, 2), (1, 1, 4), (1, 2, 4), (2, 2, 2), (1, 3, 2), (1, 3, 4), (2, 3, 1)]


def spaces(problem: Problem) -> list[Space]:
    """The spaces in which every vertex has a candidate."""
    built = [build(i, s, chosen) for i, (s, chosen) in enumerate(structures(problem))]
    return [space for space, reasons in built if not reasons]


def options(space: Space) -> list[np.ndarray]:
    """(shape number, first GPU) of every candidate, by vertex."""
    return [
        np.array(
            [
                (number, start)
                for s, number in zip(c.shapes, c.numbers.tolist(), strict=True)
                for start in c.starts[s.gpus].tolist()
            ]
        )
        for c in space.candidates.values()
    ]


def all_rows(space: Space) -> np.ndarray:
    tables = options(space)
    counts = [len(t) for t in tables]
    index = np.unravel_index(np.arange(np.prod(counts)), counts)
    return np.stack([t[i] for t, i in zip(tables, index, strict=True)], axis=1)


def some_rows(space: Space, seed: int, count: int = 150) -> np.ndarray:
    """Random plans; in many of them vertices stand on the same GPUs, in the same layout where they can."""
    rng = np.random.default_rng(seed)
    placements = [list(c) for c in space.candidates.values()]
    by_layout = [{(p.origin, p.layout): p for p in each} for each in placements]
    rows = []
    for _ in range(count):
        plan = {v: p[rng.integers(len(p))] for v, p in zip(space.vertices, placements, strict=True)}
        if rng.random() < 0.6:
            model = plan[space.vertices[rng.integers(len(plan))]]
            for v, known in zip(space.vertices, by_layout, strict=True):
                same = known.get((model.origin, model.layout))
                if same is not None and rng.random() < 0.8:
                    plan[v] = same
        rows.append(space.evaluator.row(plan))
    return np.stack(rows)


def fastest(space: Space, rows: np.ndarray) -> int | None:
    """The smallest makespan of `rows` that fit; None if none does."""
    batch = space.evaluator.evaluate_rows(rows)
    fits = batch.peak_bytes <= space.evaluator.limit_bytes
    return int(batch.makespan_ns[fits].min()) if fits.any() else None


def with_options(problem: Problem, **changed: object) -> Problem:
    return msgspec.structs.replace(problem, options=msgspec.structs.replace(problem.options, **changed))


def with_memory(problem: Problem, nbytes: float) -> Problem:
    hardware = msgspec.structs.replace(problem.hardware, memory_bytes=nbytes)
    return msgspec.structs.replace(problem, hardware=hardware)


@relaxed
@given(
    problems(),
    st.sampled_from(["paper", "megatron"]),
    st.sampled_from(MACHINES),
    st.sampled_from([1e11, 3e10, 1e10, 4e9]),
    st.integers(0, 1 << 30),
    st.sampled_from([1, 30, 1000]),
)
def test_no_plan_is_faster(problem, cost_model, machine, memory, seed, effort):
    """Random graphs, machines, memories and plans, under both models; small effort has to be right too."""
    problem = with_options(problem, cost_model=cost_model)
    problem = with_memory(msgspec.structs.replace(problem, device_space=machine), memory)
    for space in spaces(problem):
        if not space.candidates:
            continue
        best = fastest(space, some_rows(space, seed))
        bound = lower_bound(space, partial_plans=effort)
        assert best is None or (bound is not None and bound.makespan_ns <= best)


def small(machine, steps=4, models=("actor", "reward"), **staleness) -> Problem:
    """GRPO-like: a policy is generated from, judged and trained; few enough plans to look at each."""
    problem = ppo(machine, prompts=16)
    kept = tuple(v for v in problem.graph.vertices if v.model in models)
    names = {v.name for v in kept}
    read = {c for v in kept for c in v.reads}
    written = {c for v in kept for c in v.writes}
    graph = msgspec.structs.replace(
        problem.graph,
        vertices=kept,
        data_edges=tuple(e for e in problem.graph.data_edges if {e.source, e.target} <= names),
        publication_edges=tuple(e for e in problem.graph.publication_edges if {e.source, e.target} <= names),
        containers=tuple(c for c in problem.graph.containers if c.name in read | written),
        trainable=("actor",),
        staleness=staleness,
        inputs=tuple(sorted(read - written)),
        outputs=tuple(sorted(written - read)),
    )
    models_ = {m: s for m, s in problem.models.items() if m in models}
    return with_options(msgspec.structs.replace(problem, graph=graph, models=models_), steps=steps)


@pytest.mark.parametrize("options", [{}, {"cost_model": "megatron"}, {"as_printed": True}])
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("memory", [102e9, 60e9])
def test_close_to_the_optimum_of_all_plans(options, staleness, memory):
    problem = with_memory(with_options(small((1, 1, 4), actor=staleness), **options), memory)
    for space in spaces(problem):
        optimum, bound = fastest(space, all_rows(space)), lower_bound(space)
        assert optimum is not None
        assert bound is not None
        assert 0.9 * optimum <= bound.makespan_ns <= optimum


def test_effort_only_improves_and_repeats():
    space = spaces(scenarios.ablation("MEM-TIGHT"))[0]
    found = [lower_bound(space, partial_plans=n) for n in (1, 200, 20_000)]
    values = [b.makespan_ns for b in found if b is not None]
    assert len(values) == 3
    assert values == sorted(values)
    assert values[0] < values[2]
    assert found[1] == lower_bound(space, partial_plans=200)
    assert found[1].argument.startswith("none of")
    assert found[2].argument.startswith("each of")


@pytest.mark.parametrize(
    ("cost_model", "memory", "more"), [("paper", 1e11, 1.1e11), ("megatron", 1.4e11, 2e11)]
)
def test_that_nothing_fits_is_proven(cost_model, memory, more):
    """On the one GPU each operator fits alone, together they do not; with more memory they do."""
    problem = with_options(small((1, 1, 1)), cost_model=cost_model)
    for space in spaces(with_memory(problem, memory)):
        assert fastest(space, all_rows(space)) is None
        assert lower_bound(space) is None
    for space in spaces(with_memory(problem, more)):
        assert lower_bound(space) is not None


def test_waves_between_those_enumerated_are_covered():
    """Three waves are not enumerated, but leave memory for training on the same GPUs where two do not."""
    problem = with_options(small((1, 1, 2), steps=2), cost_model="megatron")
    workload = msgspec.structs.replace(problem.workload, prompts=512)
    problem = with_memory(msgspec.structs.replace(problem, workload=workload), 1.05e11)
    space = spaces(problem)[0]
    rows = all_rows(space)
    two = [plan for row in rows if (plan := space.evaluator.plan(row))["actor_gen"].waves == 2]
    three = [p | {"actor_gen": msgspec.structs.replace(p["actor_gen"], waves=3)} for p in two]
    best = fastest(space, np.stack([space.evaluator.row(plan) for plan in three]))
    listed, bound = fastest(space, rows), lower_bound(space)
    assert best is not None
    assert listed is not None
    assert bound is not None
    assert bound.makespan_ns <= best < listed


def test_a_start_from_outside_is_covered():
    """With the slowest candidate of training alone, the bound lies above a plan that trains faster, unless
    told of it."""
    space = spaces(small((1, 1, 4)))[0]
    rows = all_rows(space)
    batch = space.evaluator.evaluate_rows(rows)
    makespan = np.where(
        batch.peak_bytes <= space.evaluator.limit_bytes, batch.makespan_ns, np.iinfo(np.int64).max
    )
    plan = space.evaluator.plan(rows[makespan.argmin()])
    training = space.candidates["actor_train"]
    slowest = dataclasses.replace(training, shapes=training.shapes[-1:], numbers=training.numbers[-1:])
    narrowed = dataclasses.replace(space, candidates=dict(space.candidates) | {"actor_train": slowest})
    without, covering = lower_bound(narrowed), lower_bound(narrowed, [plan])
    assert without is not None
    assert covering is not None
    assert covering.makespan_ns <= makespan.min() < without.makespan_ns


def test_blocks_are_nested_and_counted():
    blocks = Blocks(32, [1, 2, 4, 8, 12, 16, 24, 32])
    assert blocks.sizes == (1, 2, 4, 8, 16, 32)
    assert Blocks(24, [4, 8, 24]).sizes == (1, 4, 8, 24)
    (half,) = blocks.placed(EMPTY, 0, (4,))
    quarters = [sorted(blocks.kinds(tree).items()) for tree in blocks.placed(half, 1, (3,))]
    assert sorted(quarters) == [[(0, 8), (1, 16), (2, 8)], [(0, 16), (1, 8), (3, 8)]]
    (both,) = blocks.placed(half, 1, (4, 4))
    assert blocks.kinds(both) == {3: 16, 2: 16}
    assert blocks.first(half)[0][1] == 16


@given(st.sampled_from([12, 20, 24, 48]), st.integers(1, 48), st.lists(st.integers(0, 48), min_size=1))
def test_footprints_lie_in_every_allocation(gpus, n, starts):
    """As many blocks of each size, counted with the parts of larger ones, as every allocation contains."""
    starts = np.array([s for s in starts if s + n <= gpus])
    if len(starts):
        blocks = Blocks(gpus, range(1, gpus + 1))
        footprint = blocks.footprint(n, starts)
        assert blocks.covered(footprint) <= n
        for level, size in enumerate(blocks.sizes):
            larger = sum(blocks.sizes[x] // size for x in footprint if x >= level)
            for start in starts.tolist():
                assert larger <= sum(start <= b <= start + n - size for b in range(0, gpus, size))


@pytest.mark.parametrize("name", ["MEM-TIGHT", "HETERO"])
def test_searched_plans_of_scenarios_are_close(name):
    """No plan that a short search finds is below the bound, nor far above it."""
    problem = scenarios.ablation(name)
    makespan = evaluate(Search(method="sa", budget=300, threads=1).run(problem)).makespan_ns
    bound = min(b.makespan_ns for s in spaces(problem) if (b := lower_bound(s)) is not None)
    assert 0.7 * makespan <= bound <= makespan


def test_offered_plans_are_legal_and_evaluated_no_faster():
    space = spaces(scenarios.ablation("HETERO"))[0]
    bound = lower_bound(space, partial_plans=300)
    assert bound is not None
    assert bound.plans
    for plan in bound.plans:
        assert not [e for v in space.problem.graph.vertices for e in legal(space.problem, v, plan[v.name])]
        assert space.evaluator.evaluate(plan).makespan_ns >= bound.makespan_ns
