"""Invariants of unroll, lower, cost, schedule and template on random graphs and plans."""

import itertools

import msgspec
from hypothesis import HealthCheck, given, settings

from ir_schema.envelope import decode_stage, encode_stage
from ir_schema.stages import Configuration
from passes.analysis import Analysis
from passes.cost import cost
from passes.lower import lower
from passes.schedule import (
    both_reserved_makespan,
    is_generation_phase,
    schedule,
    successors_of,
    topological,
)
from passes.template import fold, horizon
from passes.unroll import unroll
from passes.verify import verify
from tests.strategies import configurations, problems

relaxed = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@relaxed
@given(problems())
def test_generated_problems_are_well_formed(problem):
    assert verify(problem) == []


@relaxed
@given(configurations())
def test_unrolled_versions(configuration):
    unrolled = unroll(configuration)
    analysis = Analysis(configuration.problem)
    vertices = unrolled.vertices
    assert [v.id for v in vertices] == list(range(len(vertices)))
    for v in vertices:
        for model, version in v.writes.items():
            assert version == v.step + 1
            assert v.reads[model] == v.step
        for model, version in v.reads.items():
            tau = analysis.staleness.get(model)
            assert version == 0 if tau is None else max(0, v.step - tau) <= version <= v.step
    for e in unrolled.edges:
        u, v = vertices[e.source], vertices[e.target]
        if e.kind == "publication":
            assert list(u.writes.values()) == [v.reads[u_model] for u_model in u.writes]
        elif e.kind in ("data", "overwrite"):
            assert u.step == v.step
        else:
            assert u.step < v.step


@relaxed
@given(configurations())
def test_lowered_graph_is_a_dag_with_the_right_volume(configuration):
    lowered = lower(unroll(configuration))
    nodes = lowered.nodes
    topological(nodes, successors_of(nodes))
    analysis = Analysis(configuration.problem)
    assert [n.id for n in nodes] == list(range(len(nodes)))
    for n in nodes:
        if n.kind == "Op":
            assert n.payload_bytes == 0
            assert n.phase is not None
        else:
            assert n.allocation is not None
    # The phases of one container to one destination add up to the whole container.
    phased: dict[tuple, float] = {}
    for n in nodes:
        if n.src_phase is not None:
            key = (n.container, n.step, n.allocation)
            phased[key] = phased.get(key, 0.0) + n.payload_bytes
    for (container, _, _), total in phased.items():
        assert abs(total - analysis.payload[container]) <= 1e-9 * total


@relaxed
@given(configurations())
def test_every_version_is_installed_before_it_is_read(configuration):
    """Along the lowered graph a serving Op is preceded by the training Op that wrote what it reads."""
    nodes = lower(unroll(configuration)).nodes
    before: list[set[int]] = []
    writer = {(m, v): n.id for n in nodes for m, v in n.writes.items()}
    for x in topological(nodes, successors_of(nodes)):
        while len(before) <= max(x, len(nodes) - 1):
            before.append(set())
        for p in nodes[x].predecessors:
            before[x] |= before[p] | {p}
    readers: dict[tuple[str, int], list[int]] = {}
    for n in nodes:
        for m, v in n.reads.items():
            readers.setdefault((m, v), []).append(n.id)
            if v > 0:
                assert writer[m, v] in before[n.id]
    # Nothing still reads version v in the training copy when training overwrites it.
    tau0 = {m for m, t in Analysis(configuration.problem).staleness.items() if t == 0}
    for (m, v), w in writer.items():
        if m in tau0:
            for reader in readers.get((m, v - 1), []):
                assert reader == w or reader in before[w]


@relaxed
@given(configurations())
def test_schedule_respects_edges_exclusivity_and_holds(configuration):
    scheduled = schedule(cost(lower(unroll(configuration))))
    nodes = scheduled.nodes
    analysis = Analysis(configuration.problem)
    for n in nodes:
        assert n.finish_ns == n.start_ns + n.time_ns
        for p in n.predecessors:
            assert nodes[p].finish_ns <= n.start_ns
    for a, b in itertools.combinations(nodes, 2):
        if a.time_ns and b.time_ns and set(a.reserved) & set(b.reserved):
            assert a.finish_ns <= b.start_ns or b.finish_ns <= a.start_ns
    chains: dict[tuple, list] = {}
    for n in nodes:
        if is_generation_phase(n, analysis):
            chains.setdefault((n.vertex, n.step), []).append(n)
    place = {x: i for i, x in enumerate(scheduled.placement_order)}
    for chain in chains.values():
        first, last = (min(place[n.id] for n in chain), max(place[n.id] for n in chain))
        for x in scheduled.placement_order[first:last]:
            n = nodes[x]
            if n.kind == "Op" and n not in chain:
                assert not set(n.reserved) & set(chain[0].reserved)
    assert scheduled.makespan_ns == max(n.finish_ns for n in nodes)
    assert scheduled.makespan_both_reserved_ns == both_reserved_makespan(nodes, scheduled.placement_order)
    assert scheduled.makespan_both_reserved_ns >= critical_path_length(nodes)
    path = [nodes[x] for x in scheduled.critical_path]
    assert path[0].finish_ns == scheduled.makespan_ns
    for later, earlier in itertools.pairwise(path):
        assert earlier.finish_ns == later.start_ns


def critical_path_length(nodes) -> int:
    finish = [0] * len(nodes)
    for x in topological(nodes, successors_of(nodes)):
        finish[x] = nodes[x].time_ns + max((finish[p] for p in nodes[x].predecessors), default=0)
    return max(finish)


def instantiate(template, steps):
    """Predecessors, as (template id, step), of every node that exists in a run of `steps` steps."""
    exists = {(t.id, k) for t in template for k in range(t.first_step, steps) if k + t.lookahead < steps}
    return {
        (i, k): {
            (e.source, k - e.distance)
            for e in template[i].edges
            if k >= e.first_step and (e.source, k - e.distance) in exists
        }
        for i, k in exists
    }


@relaxed
@given(configurations())
def test_the_template_says_what_lowering_says(configuration):
    steps = horizon(configuration.problem)
    template = fold(cost(lower(unroll(configuration, steps))).nodes, steps)
    for count in (1, 2, 3, 5, steps + 3):
        nodes = lower(unroll(configuration, count)).nodes
        graph = instantiate(template, count)
        names = {t.id: (t.kind, t.vertex, t.phase, t.container, t.model, t.source, t.src_phase, t.allocation,
                        t.layout) for t in template}  # fmt: skip

        def label(n):
            return (n.kind, n.vertex, n.phase, n.container, n.model, n.source, n.src_phase, n.allocation,
                    n.layout, n.step)  # fmt: skip

        expected = {(label(n), frozenset(label(nodes[p]) for p in n.predecessors)) for n in nodes}
        actual = {
            ((*names[i], k), frozenset((*names[j], before_k) for j, before_k in before))
            for (i, k), before in graph.items()
        }
        assert len(nodes) == len(graph)
        assert actual == expected
        versions = {(t.id, k): (t, k) for t in template for k in range(count) if (t.id, k) in graph}
        by_label = {label(n): n for n in nodes}
        for t, k in versions.values():
            n = by_label[(*names[t.id], k)]
            assert n.reads == {m: max(0, k + t.reads[m]) if m in t.reads else 0 for m in n.reads}
            assert n.writes == {m: k + o for m, o in t.writes.items()}


@relaxed
@given(configurations())
def test_stages_survive_encoding(configuration):
    stage = schedule(cost(lower(unroll(configuration))))
    data = encode_stage(stage)
    envelope, body = decode_stage(data)
    assert body == stage
    assert encode_stage(body) == data
    assert len(envelope.id) == 64


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(configurations())
def test_results_repeat(configuration: Configuration):
    again = msgspec.json.decode(msgspec.json.encode(configuration), type=Configuration)
    assert encode_stage(schedule(cost(lower(unroll(configuration))))) == encode_stage(
        schedule(cost(lower(unroll(again))))
    )
