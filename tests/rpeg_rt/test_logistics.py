"""Rows reach their readers under any plan: the controller's instructions carried out by pretended workers."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir_schema.problem import Workload
from rpeg_rt.dispatch import Dispatcher
from rpeg_rt.logistics import Logistics
from rpeg_rt.realise import Realisation
from rpeg_rt.rows import (
    Holding,
    Key,
    MissingRowsError,
    block,
    count,
    difference,
    intersection,
    needs_of,
    phase_count,
    replica_ranks,
    route_rows,
    to_indices,
    to_ranges,
    union,
)
from rpeg_rt.semantics import Generate
from tests.rpeg_rt.plans import executable, problem
from tests.rpeg_rt.test_runs import CASES, SPLIT, STALE, random_plan

PLANS = {name: problem(**options) for name, (options, _) in CASES.items()}  # type: ignore[arg-type]
ARRANGEMENTS = (
    [(PLANS[name], plan) for name, (_, plan) in CASES.items()]
    + [(problem(staleness=behind), plan) for behind, plan in STALE.values()]
    + [(problem(quantiles=SPLIT, staleness=seed % 3), random_plan(seed)) for seed in range(100, 125)]
    + [(problem(reward_model=True, quantiles=SPLIT), random_plan(seed)) for seed in range(200, 215)]
)


class Workers:
    """What real workers would hold, with sets of sequence indices in place of tensors."""

    def __init__(self, realisation: Realisation) -> None:
        self.realisation = realisation
        self.stores: list[dict[Key, tuple[set[int], int]]] = [{} for _ in range(realisation.world)]
        self.active: dict[tuple[str, int, int], set[int]] = {}

    def take(self, rank: int, key: Key) -> set[int]:
        if key not in self.stores[rank]:
            return set()
        rows, readers = self.stores[rank].pop(key)
        if readers > 1:
            self.stores[rank][key] = rows, readers - 1
        return rows

    def put(self, rank: int, key: Key, rows: set[int]) -> None:
        readers = self.realisation.worker_readers[key.node, key.container]
        if readers:
            self.stores[rank][key] = rows, readers


@pytest.mark.parametrize("case", range(len(ARRANGEMENTS)))
def test_every_worker_gets_its_rows_and_nothing_is_left_behind(case: int) -> None:
    made, plan = ARRANGEMENTS[case]
    steps, dice = 5, random.Random(case)
    realisation = Realisation(executable(made, plan))
    logistics, workers = Logistics(realisation), Workers(realisation)
    template = realisation.executable.template
    dispatcher = Dispatcher(template, steps, realisation.reservations(), realisation.generation)
    running = []
    while not dispatcher.finished:
        while (x := dispatcher.next()) is not None:
            bound = realisation.bound[x.node]
            got = {}
            if not bound.on_host:
                got = carry_out(workers, x, logistics.moves(x))
            logistics.release(x)
            running.append((x, got))
        x, got = running.pop(dice.randrange(len(running)))
        bound = realisation.bound[x.node]
        left = leave(workers, realisation, x, got, dice)
        if not bound.on_host:
            logistics.record(x, left)
        dispatcher.complete(x)
    assert len(logistics) == 0
    assert all(not store for store in workers.stores)


def carry_out(workers, x, moves):
    """All workers' moves at once; returns what each then holds, by container."""
    wire, got = {}, {rank: {} for rank in moves}
    for rank, mine in moves.items():
        for m in mine:
            held = set().union(*(workers.take(rank, Key(s, x.step, m.container)) for s in m.sources))
            assert set(to_indices(m.local)) <= held
            got[rank][m.container] = set(to_indices(m.local))
            for peer, rows in m.sends:
                assert set(to_indices(rows)) <= held
                wire[rank, peer, m.container] = rows
    for rank, mine in moves.items():
        for m in mine:
            for peer, rows in m.receives:
                assert wire.pop((peer, rank, m.container)) == rows
                assert not got[rank][m.container] & set(to_indices(rows))
                got[rank][m.container] |= set(to_indices(rows))
            assert got[rank][m.container] == set(to_indices(m.need))
    assert not wire
    return got


def leave(workers, realisation, x, got, dice):
    """The rows that each worker of `x` holds afterwards, as it would report them."""
    bound, w = realisation.bound[x.node], realisation.problem.workload
    node = bound.node
    left = {rank: {} for rank in bound.ranks}
    if bound.on_host:
        return left
    if node.kind != "Op":
        for rank in realisation.destination(node) if bound.outputs else ():
            left[rank] = got[rank]
    else:
        task = realisation.semantics.tasks[bound.vertices[0]]
        layout = realisation.plan[bound.vertices[0]].layout
        for d in range(layout.data_parallel):
            ranks, mine = replica_ranks(bound.ranks, layout, d), block(w, layout.data_parallel, d)
            if isinstance(task, Generate):
                rest = workers.active.setdefault((node.vertex, x.step, d), set(to_indices(mine)))
                done = (
                    count(mine)
                    if node.phase == node.phases
                    else phase_count(w, layout.data_parallel, node.phase)
                )
                rows = set(dice.sample(sorted(rest), done - (count(mine) - len(rest))))
                rest -= rows
            else:
                inputs = {frozenset(rows) for rank in ranks for rows in got[rank].values()}
                assert len(inputs) <= 1, "a replica's workers, and all its containers, have the same rows"
                rows = set(next(iter(inputs), set()))
                assert rows <= set(to_indices(mine))
                if node.phases == 1 and bound.inputs and got[ranks[0]]:
                    assert rows == set(to_indices(mine)), "an operator that is not split has its whole block"
            for rank in ranks:
                left[rank] = dict.fromkeys(bound.outputs, rows)
    for rank, held in left.items():
        for container, rows in held.items():
            workers.put(rank, Key(x.node, x.step, container), rows)
    return {rank: {a: to_ranges(sorted(rows)) for a, rows in held.items()} for rank, held in left.items()}


SETS = st.sets(st.integers(0, 30))


@given(SETS, SETS, SETS)
def test_ranges_are_sets(a: set[int], b: set[int], c: set[int]) -> None:
    x, y, z = (to_ranges(sorted(s)) for s in (a, b, c))
    assert list(to_indices(x)) == sorted(a)
    assert intersection(x, y) == to_ranges(sorted(a & b))
    assert union(x, y, z) == to_ranges(sorted(a | b | c))
    assert difference(x, y) == to_ranges(sorted(a - b))
    assert count(x) == len(a)


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), SETS), max_size=4),
    st.dictionaries(st.integers(0, 7), SETS),
)
def test_a_route_brings_each_needed_row_once_from_a_holder(holders, needs) -> None:
    holdings = tuple(Holding(tuple(sorted(ranks)), to_ranges(sorted(rows))) for ranks, rows in holders)
    wanted = tuple((rank, to_ranges(sorted(rows))) for rank, rows in sorted(needs.items()))
    available = set().union(*(rows for _, rows in holders))
    if not set().union(*needs.values()) <= available:
        with pytest.raises(MissingRowsError):
            route_rows(holdings, wanted)
        return
    got = {rank: [] for rank in needs}
    for m in route_rows(holdings, wanted):
        rows = set(to_indices(m.rows))
        assert any(m.source in ranks and rows <= held for ranks, held in holders)
        mine = set().union(*(held for ranks, held in holders if m.destination in ranks))
        assert (m.source == m.destination) == bool(rows & mine), "what is there already does not move"
        got[m.destination] += sorted(rows)
    assert {rank: sorted(rows) for rank, rows in got.items()} == {
        r: sorted(rows) for r, rows in needs.items()
    }


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 5))
def test_replicas_share_out_the_prompts_whole(prompts: int, rollouts: int, replicas: int) -> None:
    w = Workload(prompts=prompts, rollouts=rollouts, prompt_length=1, response_length=1)
    blocks = [block(w, replicas, d) for d in range(replicas)]
    assert union(*blocks) == ((0, w.sequences),)
    assert sum(map(count, blocks)) == w.sequences
    assert all(i % rollouts == 0 for b in blocks for pair in b for i in pair)
    sizes = [count(b) // rollouts for b in blocks]
    assert max(sizes) - min(sizes) <= 1


def test_needs_follow_the_grid() -> None:
    w = Workload(prompts=4, rollouts=1, prompt_length=1, response_length=1)
    layout = executable(problem(), CASES["one allocation, a layout per vertex"][1]).plan["actor_train"].layout
    assert (layout.data_parallel, layout.tensor_parallel) == (2, 2)
    needs = needs_of(((0, 3),), w, (4, 5, 6, 7), layout)
    assert needs == {4: ((0, 2),), 5: ((0, 2),), 6: ((2, 3),), 7: ((2, 3),)}
