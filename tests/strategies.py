"""Random well-formed problems and plans for property tests.

Graphs are not shaped like the presets: several models may be generated from, trained vertices may feed
later ones, reads may be implied, verifiers may stand anywhere an inference vertex may.
"""

import itertools

from hypothesis import strategies as st

from ir_schema.hardware import AlphaBeta, Hardware, NonGemmReference, Tiers
from ir_schema.model import ModelSpec
from ir_schema.problem import (
    Container,
    Edge,
    Graph,
    Options,
    Placement,
    Problem,
    Verifier,
    Vertex,
    Workload,
)
from ir_schema.stages import Configuration

SPACES = [(1, 1, 4), (1, 2, 4), (2, 2, 2)]

HARDWARE = Hardware(
    peak_flops=6e14,
    memory_bandwidth=3.35e12,
    memory_bytes=1.02e11,
    gamma_M=384.0,
    gamma_K=192.0,
    nongemm_seconds=1.1e-4,
    nongemm_reference=NonGemmReference(sequences=8.0, tokens=640.0),
    collective=Tiers(
        intra=AlphaBeta(alpha=9e-6, beta=7.1e-12),
        inter=AlphaBeta(alpha=2.2e-5, beta=4.8e-11),
        rack=AlphaBeta(alpha=3.6e-5, beta=8.3e-11),
    ),
    point_to_point=Tiers(
        intra=AlphaBeta(alpha=7e-6, beta=8e-12),
        inter=AlphaBeta(alpha=1.4e-5, beta=4.5e-11),
        rack=AlphaBeta(alpha=2.5e-5, beta=7.1e-11),
    ),
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """B in 16..64, R in 1..4; no, three or four breakpoints."""
    longest = draw(st.sampled_from([8, 128, 384]))
    quantiles = draw(
        st.sampled_from(
            [
                (),
                ((0.5, longest // 4), (0.85, longest // 2), (1.0, longest)),
                ((0.25, longest // 8), (0.5, longest // 4), (0.75, longest // 2), (1.0, longest)),
            ]
        )
    )
    return Workload(
        prompts=draw(st.sampled_from([16, 32, 64])),
        rollouts=draw(st.integers(1, 4)),
        prompt_length=draw(st.sampled_from([16, 128])),
        response_length=longest,
        length_quantiles=quantiles,
    )


@st.composite
def problems(draw: st.DrawFn, *, as_printed: bool = False) -> Problem:
    """A well-formed problem on a small machine under cost model `paper`."""
    workload = draw(workloads())
    count = draw(st.integers(1, 3))
    models, trainable = {}, []
    for i in range(count):
        head = draw(st.sampled_from(["lm", "scalar", "both"]))
        layers, hidden = draw(st.sampled_from([(4, 256), (8, 1024), (32, 4096)]))
        models[f"m{i}"] = ModelSpec(
            layers=layers, hidden=hidden, ffn=4 * hidden, vocabulary=32000, head=head, attention_heads=8
        )
        if draw(st.booleans()):
            trainable.append(f"m{i}")

    vertices: list[Vertex] = []
    edges: list[Edge] = []
    containers: list[Container] = [
        Container(
            name=f"W_{m}",
            elements=spec.layers * (4 * spec.hidden**2 + 2 * spec.hidden * spec.ffn),
            bytes_each=2,
            weights_of=m,
        )
        for m, spec in models.items()
    ]
    host: dict[str, Verifier] = {}
    ancestors: dict[str, set[str]] = {}
    untrained = list(trainable)

    def add(name: str, role: str, model: str | None) -> None:
        reads, below = [], set()
        for u in draw(st.lists(st.sampled_from(vertices), unique=True, max_size=3)) if vertices else []:
            data = [c for c in u.writes if not c.startswith("W_")]
            if not data or u.name == name:
                continue
            if u.name not in below or draw(st.booleans()):
                edges.append(Edge(u.name, name, data[0]))
                below |= {u.name} | ancestors[u.name]
            reads.append(data[0])
        for c in [c for u in vertices if u.name in below for c in u.writes if not c.startswith("W_")]:
            if c not in reads and draw(st.booleans()):
                reads.append(c)
        ancestors[name] = below
        out = f"c_{name}"
        containers.append(
            Container(name=out, elements=workload.sequences * draw(st.sampled_from([1, 200])), bytes_each=4)
        )
        weights = [] if model is None else [f"W_{model}"]
        writes = [out, *weights] if role == "training" else [out]
        vertices.append(
            Vertex(name=name, role=role, model=model, reads=(*weights, *reads), writes=tuple(writes))
        )

    names = (f"v{i}" for i in itertools.count())
    for _ in range(draw(st.integers(2, 6))):
        kind = draw(st.sampled_from(["generation", "inference", "inference", "host", "training"]))
        if kind == "training":
            if untrained:
                add(next(names), kind, untrained.pop(0))
            continue
        if kind == "host":
            name = next(names)
            add(name, "inference", None)
            host[name] = Verifier(seconds_per_response=draw(st.sampled_from([0.0, 0.01])), workers=4)
            continue
        # A trained vertex may not come before a serving vertex of its model in the same step.
        open_models = [m for m in models if m not in trainable or m in untrained]
        if open_models:
            add(next(names), kind, draw(st.sampled_from(open_models)))
    for m in untrained:
        add(next(names), "training", m)
    if not vertices:
        add(next(names), "generation", "m0")

    trainer = {v.model: v.name for v in vertices if v.role == "training"}
    read = {c for v in vertices for c in v.reads}
    written = {c for v in vertices for c in v.writes}
    graph = Graph(
        vertices=tuple(vertices),
        data_edges=tuple(edges),
        publication_edges=tuple(
            Edge(trainer[v.model], v.name, f"W_{v.model}")
            for v in vertices
            if v.role != "training" and v.model in trainer
        ),
        containers=tuple(c for c in containers if c.name in read | written),
        trainable=tuple(trainable),
        staleness={m: draw(st.integers(0, 3)) for m in trainable},
        inputs=tuple(sorted(read - written)),
        outputs=tuple(sorted(written - read)),
    )
    pairs = [(a, b) for a, b in itertools.combinations(trainer.values(), 2)]
    return Problem(
        options=Options(
            steps=draw(st.integers(1, 6)),
            split=draw(st.sampled_from(["auto", "never"])),
            fuse=draw(st.sampled_from([None, *pairs])),
            as_printed=as_printed,
            cost_model="paper",
        ),
        workload=workload,
        models=models,
        hardware=HARDWARE,
        device_space=draw(st.sampled_from(SPACES)),
        graph=graph,
        host=host,
    )


@st.composite
def placements(draw: st.DrawFn, space: tuple[int, int, int]) -> Placement:
    """Any aligned box with any layout of its size (the candidates' other constraints are not asked)."""
    extent = tuple(draw(st.sampled_from([d for d in (1, 2, 4) if n % d == 0])) for n in space)
    origin = tuple(draw(st.integers(0, n // e - 1)) * e for n, e in zip(space, extent, strict=True))
    gpus = extent[0] * extent[1] * extent[2]
    layouts = [(d, p, gpus // (d * p)) for d in (1, 2, 4, 8) for p in (1, 2, 4) if gpus % (d * p) == 0]
    dp, pp, tp = draw(st.sampled_from(layouts))
    return Placement(
        origin=origin,
        extent=extent,
        data_parallel=dp,
        pipeline_parallel=pp,
        tensor_parallel=tp,
        microbatches=1 if pp == 1 else draw(st.sampled_from([pp, 2 * pp])),
    )


@st.composite
def configurations(draw: st.DrawFn, *, as_printed: bool = False) -> Configuration:
    """A problem with a complete plan; vertices often share placements, as real plans do."""
    problem = draw(problems(as_printed=as_printed))
    pool = [draw(placements(problem.device_space)) for _ in range(3)]
    plan = {v.name: draw(st.sampled_from(pool)) for v in problem.graph.vertices if v.model is not None}
    return Configuration(problem=problem, plan=plan)
