"""The dispatcher against a naive simulation that holds the whole run in memory."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_schema.stages import TemplateEdge, TemplateNode
from rpeg_rt.dispatch import Dispatcher, Instance, Stuck, topological_order
from tests.rpeg_rt.plans import colocated, executable, place, problem

DEVICES = ("a", "b", "c", "d")


def node(i: int, kind: str = "Op", vertex: str | None = None, **fields) -> TemplateNode:
    return TemplateNode(id=i, kind=kind, vertex=vertex or f"v{i}", vertex_index=i, step=0, **fields)


@st.composite
def templates(draw):
    """Random nodes, edges inside a step from lower to higher ids, edges over steps in any direction."""
    count = draw(st.integers(2, 9))
    nodes, reservations = [], {}
    for i in range(count):
        kind = draw(st.sampled_from(["Op", "Op", "Comm", "Reshard"]))
        edges = []
        for source in range(count):
            for distance in draw(st.sets(st.integers(0, 3), max_size=2)):
                if distance or source < i:
                    edges.append(
                        TemplateEdge(source=source, distance=distance, first_step=draw(st.integers(0, 4)))
                    )
        first, lookahead = draw(st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 0), (0, 1), (1, 2)]))
        nodes.append(node(i, kind, first_step=first, lookahead=lookahead, edges=tuple(edges)))
        reservations[i] = frozenset(draw(st.sets(st.sampled_from(DEVICES), max_size=3)))
    return nodes, reservations


@st.composite
def chained_templates(draw):
    """A random template with a split generation of two or three phases among its nodes."""
    nodes, reservations = draw(templates())
    phases = draw(st.integers(2, 3))
    base, devices = len(nodes), frozenset(draw(st.sets(st.sampled_from(DEVICES), min_size=1, max_size=3)))
    for q in range(phases):
        before = [TemplateEdge(source=base + q - 1)] if q else []
        if q == 0 and draw(st.booleans()):
            before.append(
                TemplateEdge(source=draw(st.integers(0, base - 1)), distance=draw(st.integers(1, 2)))
            )
        nodes.append(node(base + q, vertex="generation", phase=q + 1, phases=phases, edges=tuple(before)))
        reservations[base + q] = devices
    return nodes, reservations


class Naive:
    """Every instance of the run at once, and the rules of dispatch written out one by one."""

    def __init__(self, nodes, reservations, steps, first, continues):
        self.nodes = {n.id: n for n in nodes}
        self.reservations = reservations
        self.all = {
            (n.id, k)
            for n in nodes
            for k in range(max(first, n.first_step), steps)
            if continues or k + n.lookahead < steps
        }
        self.done, self.running = set(), set()
        order = topological_order(nodes)
        self.rank = {i: order.index(i) for i in self.nodes}

    def predecessors(self, i, k):
        edges = [e for e in self.nodes[i].edges if k >= e.first_step]
        return {(e.source, k - e.distance) for e in edges} & self.all

    def chain_active(self, step):
        phases = [n for n in self.nodes.values() if n.vertex == "generation"]
        started = any((n.id, step) in self.done | self.running for n in phases)
        return started and any((n.id, step) not in self.done for n in phases)

    def may_start(self, x):
        n = self.nodes[x[0]]
        mine = self.reservations[n.id]
        if x in self.done | self.running or not self.predecessors(*x) <= self.done:
            return False
        if any(mine & self.reservations[r[0]] for r in self.running):
            return False
        for step in {k for _, k in self.all}:
            held = next(
                (self.reservations[i] for i in self.nodes if self.nodes[i].vertex == "generation"), set()
            )
            same = n.vertex == "generation" and x[1] == step
            if n.kind == "Op" and not same and mine & held and self.chain_active(step):
                return False
        return True

    def next(self):
        able = [x for x in self.all if self.may_start(x)]
        if not able:
            return None
        best = min(able, key=lambda x: (x[1], self.nodes[x[0]].kind == "Op", self.rank[x[0]]))
        self.running.add(best)
        return best

    def complete(self, x):
        self.running.remove(x)
        self.done.add(x)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(templates(), chained_templates()),
    st.integers(1, 7),
    st.integers(0, 2**32),
    st.integers(0, 4),
    st.booleans(),
)
def test_it_starts_what_the_naive_simulation_starts(template, steps, seed, first, continues):
    nodes, reservations = template
    dice = random.Random(seed)
    fast = Dispatcher(nodes, steps, reservations, frozenset({"generation"}), first=first, continues=continues)
    slow = Naive(nodes, reservations, steps, first, continues)
    running = []
    while True:
        while (x := slow.next()) is not None:
            assert fast.startable() == x
            assert fast.next() == x
            running.append(x)
        assert fast.next() is None
        if not running:
            break
        x = running.pop(dice.randrange(len(running)))
        slow.complete(x)
        fast.complete(Instance(*x))
    assert fast.completed == len(slow.done)
    assert fast.total == len(slow.all)
    assert fast.finished == (slow.done == slow.all)


@settings(max_examples=60, deadline=None)
@given(st.one_of(templates(), chained_templates()), st.integers(1, 6), st.integers(0, 2**32))
def test_before_a_boundary_everything_can_be_completed_and_nothing_after_it_begins(template, boundary, seed):
    nodes, reservations = template
    dice = random.Random(seed)
    dispatcher = Dispatcher(nodes, boundary + 2, reservations, frozenset({"generation"}))
    dispatcher.boundary = boundary
    running, done = [], set()
    while not dispatcher.drained:
        while (x := dispatcher.next()) is not None:
            running.append(x)
        done.add(x := running.pop(dice.randrange(len(running))))
        dispatcher.complete(x)
    wanted = {(n.id, k) for n in nodes for k in range(boundary) if dispatcher.exists(n.id, k)}
    assert done == wanted
    assert dispatcher.next() is None
    assert dispatcher.begun <= boundary
    dispatcher.boundary = boundary + 2
    assert dispatcher.finished or dispatcher.startable() is not None


PLANS = {
    "colocated": ({}, colocated(dp=4)),
    "split": (
        {"quantiles": ((0.5, 4), (1.0, 8))},
        colocated(dp=2)
        | {"ref_inf": place("2"), "critic_inf": place("3"), "actor_train": place("0-3", dp=4)},
    ),
    "stale": (
        {"staleness": 2},
        colocated(dp=2) | {"actor_train": place("2-3", tp=2), "critic_train": place("3")},
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_memory_does_not_grow_with_steps(name):
    options, plan = PLANS[name]
    template = executable(problem(**options), plan).template
    reservations = {
        n.id: frozenset(d for a in (n.allocation, n.source_allocation) if a for d in a.device_names())
        for n in template
    }
    most = {}
    for steps in (10, 400):
        dispatcher = Dispatcher(template, steps, reservations, frozenset({"actor_gen"}))
        running, most[steps] = [], 0
        dice = random.Random(1)
        while not dispatcher.finished:
            while (x := dispatcher.next()) is not None:
                running.append(x)
            most[steps] = max(most[steps], dispatcher.live)
            dispatcher.complete(running.pop(dice.randrange(len(running))))
    assert most[400] <= most[10] + len(template)


def test_no_more_steps_in_flight_than_the_bound():
    template = executable(problem(), colocated(dp=2)).template
    dispatcher = Dispatcher(template, 50, {n.id: frozenset() for n in template}, frozenset({"actor_gen"}))
    running, dice = [], random.Random(2)
    while not dispatcher.finished:
        while (x := dispatcher.next()) is not None:
            running.append(x)
        steps = {x.step for x in running}
        assert max(steps) - min(steps) <= 1
        dispatcher.complete(running.pop(dice.randrange(len(running))))


def test_a_cycle_inside_a_step_is_found():
    nodes = [node(0, edges=(TemplateEdge(source=1),)), node(1, edges=(TemplateEdge(source=0),))]
    with pytest.raises(Stuck, match=r"\[0, 1\]"):
        Dispatcher(nodes, 1, {0: frozenset(), 1: frozenset()}, frozenset())


def test_transfers_start_before_operators_of_their_step_and_earlier_steps_before_later_ones():
    nodes = [node(0), node(1, "Comm"), node(2)]
    dispatcher = Dispatcher(nodes, 2, dict.fromkeys(range(3), frozenset("a")), frozenset())
    order = []
    while not dispatcher.finished:
        x = dispatcher.next()
        order.append(x)
        dispatcher.complete(x)
    assert order == [Instance(i, k) for k in range(2) for i in (1, 0, 2)]
