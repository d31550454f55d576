"""Method `auto`: the optimum where plans are few, repeatability, warm starts, and decision spaces."""

import itertools
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ir_schema.envelope import canonical
from ir_schema.problem import PartialPlacement, SearchSpace
from passes.evaluate import evaluate
from passes.search import Search, explore
from passes.search.exact import MOST_PLANS, enumerable, with_waves
from passes.search.infeasible import with_memory
from passes.search.neighbours import Neighbours
from passes.search.placing import place
from passes.search.restriction import EVERYTHING, PEERS, NotAllowed
from passes.search.settings import Settings
from passes.search.sketch import Sketch
from passes.search.space import build
from passes.search.structures import structures
from rpegc.frontend import load
from tests.passes.search.worked import case, ppo

ASYNCHRONOUS = SearchSpace(staleness={"actor": (0, 1), "critic": (0, 1)}, split=("auto", "never"))


def spaces(problem, within=EVERYTHING):
    found = []
    for i, (structure, chosen) in enumerate(structures(problem)):
        space, empty = build(i, structure, chosen, within=within)
        assert empty == []
        found.append(space)
    return found


def tiny(objective="throughput", cost_model="paper"):
    """DPO (three vertices) on two GPUs."""
    problem = case("09").problem
    return msgspec.structs.replace(
        with_memory(problem, 4e11),
        device_space=(1, 1, 2),
        options=msgspec.structs.replace(problem.options, cost_model=cost_model),
        search=SearchSpace(objective=objective),
    )


def figures_of_all(space):
    """Makespan and reserved GPU-time of every plan made of candidates that fits."""
    options = []
    for c in space.options:
        shapes = zip(c.numbers.tolist(), c.shapes, strict=True)
        options.append([(number, first) for number, s in shapes for first in c.starts[s.gpus].tolist()])
    rows = np.array(list(itertools.product(*options)))
    batch = space.evaluator.evaluate_rows(rows)
    fits = batch.peak_bytes <= space.evaluator.limit_bytes
    return batch.makespan_ns[fits], batch.busy[fits]


@pytest.mark.parametrize("objective", ["throughput", "efficiency"])
@pytest.mark.parametrize("cost_model", ["paper", "megatron"])
def test_the_optimum_of_few_plans(objective, cost_model):
    problem = tiny(objective, cost_model)
    makespans, busy = map(np.concatenate, zip(*map(figures_of_all, spaces(problem)), strict=True))
    scores = 1 / makespans
    values = scores * busy / makespans if objective == "efficiency" else scores
    best = int(np.where(scores >= 0.9 * scores.max(), values, 0).argmax())
    found = Search(budget=1).run(problem)
    scheduled = evaluate(found)
    assert scheduled.makespan_ns == makespans[best]
    assert found.search.optimality_gap == 0
    assert found.search.termination == "exhausted"
    assert found.search.lower_bound_s * problem.options.steps == pytest.approx(makespans.min() * 1e-9)


TIGHT = b"""rpeg 1
graph tight {
  options { cost_model = "megatron", steps = 4 }
  cluster { hardware = "gh200", racks = 1, nodes = 1, gpus = 1 }
  workload { prompts = 32, rollouts = 2, prompt_length = 32, response_length = 1024 }
  model actor : lm {
    layers = 8, hidden = 1024, ffn = 4096, vocabulary = 4096, attention_heads = 8, trainable = true
  }
  model reference : lm { layers = 8, hidden = 1024, ffn = 4096, vocabulary = 4096, attention_heads = 8 }
  verifier check { seconds_per_response = 1e-4, workers = 4 }
  use grpo { actor = actor, reference = reference, reward = check }
}"""


def test_every_number_of_waves_is_looked_at_where_plans_are_few():
    (space,) = spaces(load(TIGHT, "tight.rpeg", Path()).problem)
    after = with_waves([space])[0].candidates["actor_gen"]
    assert {s.placement.waves for s in after.shapes} == set(range(1, 65))
    assert [s.key for s in after.shapes] == sorted(s.key for s in after.shapes)


def test_more_waves_than_fit_alone_where_other_state_fills_the_memory():
    """A generation beside training on one GPU, whose cache leaves room in many waves only."""
    problem = with_memory(load(TIGHT, "tight.rpeg", Path()).problem, 3.6e9)
    found = Search(budget=10).run(problem)
    waves = found.plan["actor_gen"].waves
    (space,) = spaces(problem)
    assert waves > 4 * min(s.placement.waves for s in space.candidates["actor_gen"].shapes)
    fewer = msgspec.structs.replace(found.plan["actor_gen"], waves=waves - 1)
    tighter = msgspec.structs.replace(found, plan=found.plan | {"actor_gen": fewer})
    assert evaluate(found).memory_feasible
    assert not evaluate(tighter).memory_feasible
    assert found.search.optimality_gap == 0


def test_many_plans_are_not_enumerated():
    assert not enumerable(spaces(ppo((1, 4, 4))))
    assert sum(space.size for space in spaces(ppo((1, 4, 4)))) > MOST_PLANS


@pytest.mark.parametrize("objective", ["throughput", "efficiency"])
def test_seed_and_budget_decide_whatever_the_threads(objective):
    search = msgspec.structs.replace(ASYNCHRONOUS, objective=objective)
    problem = ppo((1, 2, 4), prompts=64, search=search)
    found = [Search(budget=600, seed=5, threads=n).run(problem) for n in (1, 1, 3)]
    assert len({canonical(f) for f in found}) == 1
    assert found[0].search.evaluations <= 600


def test_never_beyond_its_bound_and_seldom_far_from_it():
    found = Search(budget=1000).run(ppo((1, 2, 4), search=ASYNCHRONOUS))
    step_s = evaluate(found).step_time_s
    assert found.search.lower_bound_s <= step_s
    assert found.search.optimality_gap == pytest.approx(1 - found.search.lower_bound_s / step_s)
    assert found.search.optimality_gap < 0.3


@pytest.mark.parametrize("method", ["sa", "auto"])
def test_never_worse_than_a_warm_start(method):
    problem = ppo((1, 4, 4))
    good = Search(method="auto", budget=1000).run(problem)
    warm = SearchSpace(warm_start=good.plan, split=(good.problem.options.split,))
    found = Search(method=method, budget=50).run(msgspec.structs.replace(problem, search=warm))
    assert evaluate(found).makespan_ns <= evaluate(good).makespan_ns


def test_a_file_that_fixes_everything():
    problem = ppo((1, 2, 4), cost_model="megatron", prompts=64)
    plan = Search(budget=300).run(problem).plan
    fixed = {v: PartialPlacement(**msgspec.structs.asdict(p)) for v, p in plan.items()}
    found = Search(budget=100).run(msgspec.structs.replace(problem, plan=fixed))
    assert found.plan == plan
    assert found.search.optimality_gap == 0


@pytest.mark.parametrize("name", PEERS)
def test_results_lie_in_their_decision_space(name):
    within = PEERS[name]
    problem = ppo((1, 4, 4), prompts=128, search=ASYNCHRONOUS)
    found = explore(problem, Settings(budget=500), within=within)
    role = {v.name: v.role for v in problem.graph.vertices}
    for u, v in itertools.combinations(found.plan, 2):
        a, b = found.plan[u].allocation, found.plan[v].allocation
        same, disjoint = a == b, a.overlap(b) == 0
        lies = {"any": True, "same": same, "disjoint": disjoint, "same_or_disjoint": same or disjoint}
        assert lies[within.relation(role[u], role[v])], (u, v)
    (space, *_) = spaces(msgspec.structs.replace(problem, search=None))
    (structure,) = (s for s, p in structures(problem) if msgspec.structs.replace(p, plan={}) == found.problem)
    assert within.allows(problem, structure)
    if within.fixed_microbatches:
        for v, p in found.plan.items():
            wanted = p.pipeline_parallel * (2 if role[v] == "training" else 1)
            assert p.microbatches == (1 if p.pipeline_parallel == 1 else wanted)
    if within.smallest_layout:
        for v, p in found.plan.items():
            alike = [s.placement for s in space.candidates[v].shapes if s.gpus == p.layout.gpus]
            assert p.tensor_parallel == min(s.tensor_parallel for s in alike)


def test_the_free_space_is_no_worse_than_a_start_from_a_peer():
    problem = ppo((1, 2, 4), prompts=64, search=ASYNCHRONOUS)
    peer = explore(problem, Settings(budget=800), within=PEERS["split"])
    found = explore(problem, Settings(budget=20), starts=[peer])
    assert evaluate(found).makespan_ns <= evaluate(peer).makespan_ns


def test_a_decision_space_without_structure():
    with pytest.raises(NotAllowed, match="staleness 1"):
        explore(ppo((1, 2, 4)), Settings(budget=10), within=PEERS["areal"])


@pytest.mark.parametrize("cost_model", ["paper", "megatron"])
def test_guesses_bound_and_order_makespans(cost_model):
    for space in spaces(ppo((1, 4, 4), cost_model=cost_model, search=ASYNCHRONOUS)):
        start = np.array([(c.numbers[0], c.starts[c.shapes[0].gpus][0]) for c in space.options])
        rows = Neighbours(space).kicks(start, random.Random(0), 200)
        bound, guess = space.guess.judge(rows)
        batch = space.evaluator.evaluate_rows(rows)
        assert (bound <= batch.makespan_ns).all()
        fits = batch.peak_bytes <= space.evaluator.limit_bytes
        better = guess[fits] <= np.median(guess[fits])
        assert batch.makespan_ns[fits][better].mean() < batch.makespan_ns[fits][~better].mean()


@pytest.mark.parametrize("within", [PEERS["rlinf"], PEERS["split"], EVERYTHING], ids=lambda w: w.name)
def test_sketches_lie_in_the_decision_space(within):
    problem = ppo((1, 4, 4), prompts=128, search=SearchSpace(split=("never",)))
    (space,) = spaces(problem, within)
    start = place(space)
    rows = Sketch(space, 2).rows(start, random.Random(1), 3, 64)
    assert len(rows)
    assert space.allows(rows).all()
    assert space.guess.judge(rows)[1].min() <= space.guess.judge(start[None])[1][0]
