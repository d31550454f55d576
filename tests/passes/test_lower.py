"""Lowering of edges between split operators (semantics: Lower 1 and 2)."""

import msgspec

from ir_schema.problem import Container, Edge, Vertex
from ir_schema.stages import Configuration, Node
from passes.lower import lower
from passes.unroll import unroll
from passes.verify import verify
from tests.passes.test_cases import CASES, load

replace = msgspec.structs.replace
PPO = load(CASES / "decided" / "03-ppo-async-disjoint-split.json")[0]


def with_rewriter() -> Configuration:
    """PPO whose reference model rewrites each answer, on the GPUs of reference scoring; the reward model
    scores the rewrite too, so that both generations are split."""
    graph = PPO.problem.graph
    vertices = (
        Vertex(name="rewrite", role="generation", model="ref", reads=("W_ref", "Y"), writes=("Z",)),
        Vertex(name="judge", role="inference", model="reward", reads=("W_reward", "Z"), writes=("s",)),
    )
    graph = replace(
        graph,
        vertices=graph.vertices + vertices,
        data_edges=(*graph.data_edges, Edge("actor_gen", "rewrite", "Y"), Edge("rewrite", "judge", "Z")),
        containers=(
            *graph.containers,
            Container(name="Z", elements=65536, bytes_each=4),
            Container(name="s", elements=128, bytes_each=4),
        ),
        outputs=(*graph.outputs, "s"),
    )
    problem = replace(PPO.problem, graph=graph)
    assert verify(problem) == []
    plan = {**PPO.plan, "rewrite": PPO.plan["ref_inf"], "judge": PPO.plan["actor_gen"]}
    return Configuration(problem=problem, plan=plan)


def test_a_generation_feeds_another_generation_whole():
    """Only inference starts on part of the responses: the second generation prefills all of them first."""
    nodes = lower(unroll(with_rewriter())).nodes

    def phases(vertex: str) -> list[Node]:
        return [n for n in nodes if n.kind == "Op" and n.vertex == vertex and n.step == 0]

    first, second = phases("actor_gen"), phases("rewrite")
    assert len(first) == len(second) == len(phases("judge")) == 3
    [comm] = [n for n in nodes if n.vertex == "rewrite" and n.container == "Y" and n.step == 0]
    assert comm.src_phase is None
    assert comm.payload_bytes == 65536 * 4
    assert comm.predecessors == (first[-1].id,)
    assert comm.id in second[0].predecessors
    parts = [n.src_phase for n in nodes if n.vertex == "judge" and n.kind == "Comm" and n.step == 0]
    assert parts == [1, 2, 3]
