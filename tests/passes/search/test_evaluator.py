"""Compiled evaluation and the readable passes agree to the nanosecond and to the byte."""

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import passes.cost
from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration
from passes.cost.paper import PaperCost
from passes.evaluate import evaluate
from passes.search.constraints import divisors, extent_of
from passes.search.evaluator import Evaluator
from passes.search.space import Space, build
from passes.search.structures import structures
from tests.passes.search.worked import CASES, mixture, ppo, read_case
from tests.strategies import problems

relaxed = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
MACHINES = [(1, 1, 4), (1, 2, 4), (2, 2, 2), (3, 2, 2), (1, 3, 4), (2, 4, 1)]


def assert_same(evaluator: Evaluator, plan: dict[str, Placement]) -> None:
    try:
        slow = evaluate(Configuration(problem=evaluator.problem, plan=plan))
    except ValueError as cycle:  # as printed, an accepted graph may have one
        with pytest.raises(ValueError, match=str(cycle)):
            evaluator.evaluate(plan)
        return
    fast = evaluator.evaluate(plan)
    assert fast.makespan_ns == slow.makespan_ns
    assert fast.peak_bytes == slow.max_peak_bytes
    assert fast.score == slow.score_tokens_per_s
    assert fast.score * fast.penalty == slow.score_pen
    assert fast.utilisation == slow.utilisation
    assert fast.feasible == slow.memory_feasible
    row = evaluator.row(plan)
    trace = evaluator.engine.trace(row)
    assert trace.order.tolist() == list(slow.placement_order)
    assert trace.path.tolist() == list(slow.critical_path)
    assert trace.start.tolist() == [n.start_ns for n in slow.nodes]
    assert trace.duration.tolist() == [n.time_ns for n in slow.nodes]
    shares = dict.fromkeys(evaluator.placed, 0)
    for node in (slow.nodes[x] for x in slow.critical_path):
        for name in {*node.members} or {node.vertex}:
            if name in shares:
                shares[name] += node.time_ns
    assert evaluator.critical_time(row).tolist() == list(shares.values())


@st.composite
def intervals(draw: st.DrawFn, space: tuple[int, int, int]) -> Placement:
    """Any placement whose allocation keeps P6 and P7, in any layout of its size."""
    racks, nodes, per_node = space
    sizes = divisors(per_node) + [k * per_node for k in range(2, nodes + 1)]
    sizes += [k * nodes * per_node for k in range(2, racks + 1)]
    gpus = draw(st.sampled_from(sizes))
    extent = extent_of(space, gpus)
    origin = tuple(draw(st.integers(0, n // e - 1)) * e for n, e in zip(space, extent, strict=True))
    tp = draw(st.sampled_from(divisors(gpus)))
    pp = draw(st.sampled_from([d for d in divisors(gpus // tp) if d in (1, 2, 4)]))
    return Placement(
        origin=origin,
        extent=extent,
        data_parallel=gpus // (tp * pp),
        pipeline_parallel=pp,
        tensor_parallel=tp,
        microbatches=draw(st.sampled_from([pp, 2 * pp])) if pp > 1 else 1,
    )


@st.composite
def cases(draw: st.DrawFn, *, as_printed: bool = False) -> tuple[Problem, list[dict[str, Placement]]]:
    """A problem under either cost model and some plans; vertices often share placements, as in real plans,
    and the workers of a node sometimes processors."""
    problem = draw(problems(as_printed=as_printed))
    megatron = draw(st.booleans())
    options = msgspec.structs.replace(problem.options, cost_model="megatron" if megatron else "paper")
    problem = msgspec.structs.replace(problem, options=options, device_space=draw(st.sampled_from(MACHINES)))
    if draw(st.booleans()):
        sharing = {
            "node_processors": draw(st.sampled_from([1.0, 2.0, 3.5])),
            "contention": 0.3,
            "message_work": 0.5,
        }
        problem = msgspec.structs.replace(
            problem, hardware=msgspec.structs.replace(problem.hardware, **sharing)
        )
    pool = [draw(intervals(problem.device_space)) for _ in range(draw(st.integers(1, 4)))]
    plans = []
    for _ in range(3):
        plan = {}
        for v in problem.graph.vertices:
            if v.model is not None:
                plan[v.name] = p = draw(st.sampled_from(pool))
                if v.role == "generation" and draw(st.booleans()):
                    plan[v.name] = msgspec.structs.replace(p, waves=2)
                elif v.role == "training" and p.pipeline_parallel > 1 and draw(st.booleans()):
                    plan[v.name] = msgspec.structs.replace(p, microbatches=4 * p.pipeline_parallel)
        plans.append(plan)
    return problem, plans


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}/{p.stem[:2]}")
def test_worked_cases(path):
    configuration = read_case(path)
    assert_same(Evaluator(configuration.problem), configuration.plan)


@relaxed
@given(st.booleans().flatmap(lambda printed: cases(as_printed=printed)))
def test_random_plans(case):
    """Several plans of one problem, so that what is kept from one plan is right for the next."""
    problem, plans = case
    evaluator = Evaluator(problem)
    for plan in plans:
        assert_same(evaluator, plan)
        assert evaluator.plan(evaluator.row(plan)) == plan


def drawn(space: Space, count: int, seed: int) -> np.ndarray:
    """Rows drawn uniformly from all candidates."""
    rng = np.random.default_rng(seed)
    rows = np.empty((count, len(space.vertices), 2), dtype=np.int64)
    for i, v in enumerate(space.vertices):
        candidates = space.candidates[v]
        sizes = space.evaluator.sizes(i)
        every = [(n, first) for n in candidates.numbers for first in candidates.starts[int(sizes[n])]]
        rows[:, i] = rng.choice(every, size=count)
    return rows


@pytest.mark.parametrize("cost_model", ["paper", "megatron"])
@pytest.mark.parametrize("machine", [(1, 2, 4), (2, 4, 4)])
def test_candidates(cost_model, machine):
    for index, (structure, problem) in enumerate(structures(ppo(machine, cost_model=cost_model))):
        space, _ = build(index, structure, problem)
        for row in drawn(space, 15, seed=index):
            assert_same(space.evaluator, space.evaluator.plan(row))


def test_layouts_of_five_degrees():
    ((structure, problem),) = structures(mixture(16384))
    space, _ = build(0, structure, problem)
    degrees = set()
    for row in drawn(space, 12, seed=7):
        plan = space.evaluator.plan(row)
        degrees |= {(p.context_parallel > 1, p.expert_parallel > 1) for p in plan.values()}
        assert_same(space.evaluator, plan)
    assert len(degrees) == 4


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads):
    (structure, problem), *_ = structures(ppo())
    space, _ = build(0, structure, problem)
    rows = drawn(space, 200, seed=3)
    one = space.evaluator.evaluate_rows(rows)
    parallel = Evaluator(problem, threads)
    several = parallel.evaluate_rows(np.array([parallel.row(space.evaluator.plan(r)) for r in rows]))
    assert (one.makespan_ns == several.makespan_ns).all()
    assert (one.busy == several.busy).all()
    assert (one.peak_bytes == several.peak_bytes).all()


class Doubled(PaperCost):
    """A cost model of somebody else's, derived from one with a closed form."""

    def operator(self, vertex, placement):
        return {name: 2 * seconds for name, seconds in super().operator(vertex, placement).items()}

    def transfer(self, node):
        return {name: 2 * seconds for name, seconds in super().transfer(node).items()}


def test_a_model_without_a_closed_form(monkeypatch):
    (structure, problem), *_ = structures(ppo())
    space, _ = build(0, structure, problem)
    rows = drawn(space, 4, seed=1)
    shipped = space.evaluator.evaluate_rows(rows)
    monkeypatch.setattr(passes.cost, "cost_model", lambda name: Doubled)
    other = Evaluator(problem)
    for row, before in zip(rows, shipped.makespan_ns, strict=True):
        plan = space.evaluator.plan(row)
        slow, fast = evaluate(Configuration(problem=problem, plan=plan)), other.evaluate(plan)
        assert (fast.makespan_ns, fast.utilisation) == (slow.makespan_ns, slow.utilisation)
        assert fast.peak_bytes == slow.max_peak_bytes
        assert fast.makespan_ns > before
        nodes = [slow.nodes[x] for x in slow.critical_path]
        assert other.critical_time(other.row(plan)).sum() == sum(n.time_ns for n in nodes)


@relaxed
@given(cases(), st.data())
def test_plans_with_equal_keys_are_worth_the_same(case, data):
    """Mirror a plan along some axes: the key says that nothing has changed."""
    problem, plans = case
    evaluator = Evaluator(problem)
    flips = [data.draw(st.booleans()) for _ in range(3)]

    def moved(p: Placement) -> Placement:
        origin = tuple(
            s - e - o if flip else o
            for flip, o, e, s in zip(flips, p.origin, p.extent, problem.device_space, strict=True)
        )
        return msgspec.structs.replace(p, origin=origin)

    by_key: dict[bytes, set] = {}
    for plan in plans:
        rows = np.array([evaluator.row(plan), evaluator.row({v: moved(p) for v, p in plan.items()})])
        key, mirrored = evaluator.keys(rows)
        assert (key == mirrored).all()
        figures = evaluator.evaluate_rows(rows)
        for values in zip(figures.makespan_ns, figures.busy, figures.peak_bytes, strict=True):
            by_key.setdefault(key.tobytes(), set()).add(values)
    assert all(len(found) == 1 for found in by_key.values())


def test_keys_tell_plans_apart():
    """As many keys as there are combinations of shapes, shared GPUs and tiers, on a small machine."""
    (structure, problem), *_ = structures(ppo((2, 2, 2)))
    space, _ = build(0, structure, problem)
    rows = drawn(space, 2000, seed=5)
    alike: dict[object, set[bytes]] = {}
    keys = space.evaluator.keys(rows)
    for row, key in zip(rows, keys, strict=True):
        spans = [(first, first + space.evaluator.sizes(i)[s]) for i, (s, first) in enumerate(row)]
        users = [tuple(i for i, (a, b) in enumerate(spans) if a <= gpu < b) for gpu in range(8)]
        tiers = []
        for i, (a, b) in enumerate(spans):
            for c, d in spans[:i]:
                low, high = min(a, c), max(b, d) - 1
                tiers.append(next(t for t, n in enumerate((2, 4, 8)) if low // n == high // n))
        what = tuple(row[:, 0]), tuple(sorted(users)), tuple(tiers)
        alike.setdefault(what, set()).add(key.tobytes())
    assert all(len(found) == 1 for found in alike.values())
    assert len({k for found in alike.values() for k in found}) == len(alike)


def test_rows_are_of_legal_allocations():
    problem = ppo((1, 2, 4))
    evaluator = Evaluator(problem)
    box = Placement(
        origin=(0, 0, 0), extent=(1, 2, 1), data_parallel=2, pipeline_parallel=1, tensor_parallel=1,
        microbatches=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="P7"):
        evaluator.row(dict.fromkeys(evaluator.placed, box))
    outside = msgspec.structs.replace(box, origin=(0, 2, 0), extent=(1, 1, 2))
    with pytest.raises(ValueError, match="P7"):
        evaluator.row(dict.fromkeys(evaluator.placed, outside))
