"""Well-formedness of the compact graph, one function per rule, each with its own code (semantics: Graph).

Rules read only names that exist: `passes.verify` runs the name rules first and stops there if they fail.
Every violation is reported, not only the first.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import networkx as nx

from ir_schema.diagnostics import Diagnostic, Label, error
from ir_schema.problem import Edge, Problem, Vertex
from passes.analysis import Analysis

Rule = Callable[[Analysis], Iterator[Diagnostic]]

EDGE_LISTS = ("data_edges", "publication_edges")


def _vertex(a: Analysis, name: str) -> str:
    return f"graph.vertices[{a.index[name]}]"


def _edges(a: Analysis) -> Iterator[tuple[str, str, Edge]]:
    """(list name, path, edge) of all declared edges."""
    for kind in EDGE_LISTS:
        edges: tuple[Edge, ...] = getattr(a.graph, kind)
        for i, e in enumerate(edges):
            yield kind, f"graph.{kind}[{i}]", e


def _weights(a: Analysis, model: str) -> str | None:
    return next((c for c, m in a.weights_of.items() if m == model), None)


def interfaces(a: Analysis) -> Iterator[Diagnostic]:
    """E201: for each edge (u -> v, a): a in O(u) and a in I(v)."""
    for _, path, e in _edges(a):
        if e.container not in a.vertex[e.source].writes:
            yield error(
                "E201",
                f"`{e.source}` does not write `{e.container}`",
                path,
                _vertex(a, e.source) + ".writes",
                help=f"add `{e.container}` to the writes of `{e.source}`, or name one it writes: "
                f"{', '.join(a.vertex[e.source].writes) or 'none'}",
            )
        if e.container not in a.vertex[e.target].reads:
            yield error(
                "E201",
                f"`{e.target}` does not read `{e.container}`",
                path,
                _vertex(a, e.target) + ".reads",
                help=f"add `{e.container}` to the reads of `{e.target}`",
            )


def publications(a: Analysis) -> Iterator[Diagnostic]:
    """E202 source and container of a publication edge; E216 its consumer."""
    for i, e in enumerate(a.graph.publication_edges):
        path, u, v = f"graph.publication_edges[{i}]", a.vertex[e.source], a.vertex[e.target]
        if u.role != "training":
            yield error(
                "E202",
                f"`{u.name}` publishes weights but is a vertex of role {u.role}",
                path,
                _vertex(a, u.name),
                help="only a training vertex publishes; use a data edge inside a step",
            )
        elif u.model is None:
            continue  # which `host` reports
        elif a.weights_of.get(e.container) != u.model:
            yield error(
                "E202",
                f"`{e.container}` is not the weights of `{u.model}`, the model that `{u.name}` trains",
                path,
                help=f"publish `{_weights(a, u.model) or f'W_{u.model}'}`",
            )
        elif v.model != u.model or v.role == "training":
            yield error(
                "E216",
                f"weights of `{u.model}` are published to `{v.name}`, which does not serve that model",
                path,
                _vertex(a, v.name),
                help=f"publish to a generation or inference vertex of `{u.model}`",
            )


def duplicate_edges(a: Analysis) -> Iterator[Diagnostic]:
    """E209: one edge given twice, or both as data and as publication."""
    first: dict[Edge, tuple[str, str]] = {}
    for kind, path, e in _edges(a):
        if e in first:
            other, earlier = first[e]
            both = " both as data and as publication" if other != kind else " twice"
            yield error(
                "E209",
                f"edge `{e.source} -> {e.target} : {e.container}` is declared{both}",
                path,
                earlier,
                help="remove one of the two declarations",
            )
        else:
            first[e] = (kind, path)


def boundary(a: Analysis) -> Iterator[Diagnostic]:
    """E205-E208: boundary containers are declared, and declared ones are boundary containers."""
    readers: dict[str, list[str]] = defaultdict(list)
    for v in a.graph.vertices:
        for c in v.reads:
            readers[c].append(v.name)
    for c in (c.name for c in a.graph.containers):
        if readers[c] and c not in a.producer and c not in a.graph.inputs:
            yield error(
                "E205",
                f"`{c}` is read by `{readers[c][0]}` but nothing produces it",
                _vertex(a, readers[c][0]),
                help=f"declare it as a graph input (`input {c}`), or let a vertex write it",
            )
        if c in a.producer and not readers[c] and c not in a.graph.outputs:
            yield error(
                "E206",
                f"`{c}` is written by `{a.producer[c]}` but nobody reads it",
                _vertex(a, a.producer[c]),
                help=f"declare it as a graph output (`output {c}`), or remove it from the writes",
            )
    for i, c in enumerate(a.graph.inputs):
        if c in a.producer:
            yield error(
                "E207",
                f"declared input `{c}` is produced by `{a.producer[c]}`",
                f"graph.inputs[{i}]",
                _vertex(a, a.producer[c]),
                help=f"remove `{c}` from the inputs"
                + ("; version 0 of trained weights needs no declaration" if c in a.weights_of else ""),
            )
        elif not readers[c]:
            yield error(
                "E207",
                f"declared input `{c}` is read by nobody",
                f"graph.inputs[{i}]",
                help=f"remove `{c}` from the inputs, or let a vertex read it",
            )
    for i, c in enumerate(a.graph.outputs):
        if c not in a.producer:
            yield error(
                "E208",
                f"declared output `{c}` is written by nobody",
                f"graph.outputs[{i}]",
                help=f"remove `{c}` from the outputs, or let a vertex write it",
            )
        elif readers[c]:
            yield error(
                "E208",
                f"declared output `{c}` is read by `{readers[c][0]}`",
                f"graph.outputs[{i}]",
                _vertex(a, readers[c][0]),
                help=f"remove `{c}` from the outputs: it stays inside the graph",
            )


def producers(a: Analysis) -> Iterator[Diagnostic]:
    """E210: a container has at most one producer in a step."""
    writer: dict[str, str] = {}
    for v in a.graph.vertices:
        for c in v.writes:
            if writer.setdefault(c, v.name) != v.name:
                yield error(
                    "E210",
                    f"`{c}` is written by both `{writer[c]}` and `{v.name}`",
                    _vertex(a, v.name),
                    _vertex(a, writer[c]),
                    help="give each producer a container of its own",
                )


def training(a: Analysis) -> Iterator[Diagnostic]:
    """E211 one training vertex per trainable model; E212 none for frozen ones; E213 it reads and writes W."""
    trainers: dict[str, list[Vertex]] = defaultdict(list)
    for v in a.graph.vertices:
        if v.role == "training" and v.model is not None:
            trainers[v.model].append(v)
    for i, m in enumerate(a.graph.trainable):
        if not trainers[m]:
            yield error(
                "E211",
                f"trainable model `{m}` has no training vertex",
                f"graph.trainable[{i}]",
                help=f"add a training vertex for `{m}`, or make the model frozen",
            )
        elif len(trainers[m]) > 1:
            names = " and ".join(f"`{v.name}`" for v in trainers[m])
            yield error(
                "E211",
                f"model `{m}` is trained by {names} in one step",
                *(_vertex(a, v.name) for v in trainers[m]),
                help="merge them into one training vertex (epochs and minibatches repeat its updates)",
            )
    for m, vertices in trainers.items():
        for v in vertices:
            weights = _weights(a, m)
            if m not in a.graph.trainable:
                yield error(
                    "E212",
                    f"`{v.name}` trains `{m}`, which is frozen",
                    _vertex(a, v.name),
                    help=f"declare `{m}` trainable, or remove `{v.name}`",
                )
            elif weights is None or weights not in v.reads or weights not in v.writes:
                yield error(
                    "E213",
                    f"training vertex `{v.name}` does not read and write the weights of `{m}`",
                    _vertex(a, v.name),
                    help=f"add `{weights or f'W_{m}'}` to its reads and its writes",
                )


def serving(a: Analysis) -> Iterator[Diagnostic]:
    """E214 a serving vertex reads its model's weights; E215 a trained model is published to it."""
    published = {(e.target, e.container) for e in a.graph.publication_edges}
    for v in a.graph.vertices:
        if v.model is None or v.role == "training":
            continue
        weights = _weights(a, v.model)
        if weights is None or weights not in v.reads:
            yield error(
                "E214",
                f"`{v.name}` does not read the weights of `{v.model}`, the model it runs",
                _vertex(a, v.name),
                help=f"add `{weights or f'W_{v.model}'}` to its reads",
            )
        elif v.model in a.graph.trainable and (v.name, weights) not in published:
            trainer = a.training.get(v.model)
            source = trainer.name if trainer is not None else f"{v.model}_train"
            yield error(
                "E215",
                f"`{v.name}` serves the trainable model `{v.model}` but never receives its new weights",
                _vertex(a, v.name),
                help=f"add `publish {source} -> {v.name} : {weights}`",
            )


def staleness(a: Analysis) -> Iterator[Diagnostic]:
    """E218 tau on a frozen model; E219 negative tau."""
    for m, tau in a.graph.staleness.items():
        path = f"graph.staleness.{m}"
        if m not in a.graph.trainable:
            yield error(
                "E218", f"staleness on frozen model `{m}`", path, help="remove it: its weights never change"
            )
        if tau < 0:
            yield error(
                "E219", f"staleness of `{m}` is {tau}", path, help="staleness counts steps: 0 or more"
            )


def cycles(a: Analysis) -> Iterator[Diagnostic]:
    """E203: the data edges are acyclic; E204: so is E* (not asked as printed)."""
    graph = nx.DiGraph()
    for i, e in enumerate(a.graph.data_edges):
        graph.add_edge(e.source, e.target, path=f"graph.data_edges[{i}]", container=e.container)
    component_of = {v: i for i, c in enumerate(nx.strongly_connected_components(graph)) for v in c}
    inside: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for u, v in graph.edges:
        if component_of[u] == component_of[v]:
            inside[component_of[u]].append((u, v))
    for edges in inside.values():
        loop = nx.find_cycle(nx.DiGraph(edges))
        source, target = max(loop, key=lambda e: int(graph.edges[e]["path"].split("[")[1][:-1]))
        edge = graph.edges[source, target]
        chain = " -> ".join([*(u for u, _ in loop), loop[0][0]])
        hint = "let a value cross to the next step through trained weights, or remove one edge"
        if edge["container"] in a.weights_of:
            hint = (
                "weights cross the step boundary on a publication edge: "
                f"`publish {source} -> {target} : {edge['container']}`"
            )
        others = [graph.edges[e]["path"] for e in loop if e != (source, target)]
        yield error(
            "E203", f"data edges form a cycle within one step: {chain}", edge["path"], *others, help=hint
        )
    if inside or a.problem.options.as_printed:
        return
    for u, v in a.overwrite_edges:
        if v in graph and u in graph and nx.has_path(graph, v, u):
            yield error(
                "E204",
                f"`{u}` serves the weights that `{v}` overwrites, but runs after it in the same step",
                _vertex(a, u),
                _vertex(a, v),
                help=f"remove a data edge on the path {' -> '.join(nx.shortest_path(graph, v, u))}",
            )
            return
        graph.add_edge(u, v)


def ancestors(a: Analysis) -> Iterator[Diagnostic]:
    """E217: what is read without an edge comes from an ancestor by data edges."""
    graph = nx.DiGraph([(e.source, e.target) for e in a.graph.data_edges])
    for e in a.implied_reads:
        if e.source in graph and e.target in graph and nx.has_path(graph, e.source, e.target):
            continue
        yield error(
            "E217",
            f"`{e.target}` reads `{e.container}` without an edge, and its producer `{e.source}` need not run "
            "before it",
            _vertex(a, e.target),
            _vertex(a, e.source),
            help=f"add `data {e.source} -> {e.target} : {e.container}`",
        )


def host(a: Analysis) -> Iterator[Diagnostic]:
    """E220: a vertex without a model is a host vertex with a declared time, and the other way round."""
    for v in a.graph.vertices:
        if v.model is None and v.name not in a.problem.host:
            yield error(
                "E220",
                f"`{v.name}` invokes no model, and no verifier is declared for it",
                _vertex(a, v.name),
                help="give it a model, or a host entry with `seconds_per_response`",
            )
        if v.model is not None and v.name in a.problem.host:
            yield error(
                "E220",
                f"`{v.name}` invokes model `{v.model}` and is a host vertex too",
                _vertex(a, v.name),
                f"host.{v.name}",
                help="a host vertex runs a verifier instead of a model: remove one of the two",
            )
        if v.name in a.problem.host and v.role != "inference":
            yield error(
                "E220",
                f"host vertex `{v.name}` has role {v.role}",
                _vertex(a, v.name),
                help="a verifier is an inference vertex",
            )


def weight_containers(a: Analysis) -> Iterator[Diagnostic]:
    """E221: every model that is used has exactly one weight container."""
    count = Counter(a.weights_of.values())
    for m, n in count.items():
        if n > 1:
            paths = [f"graph.containers[{i}]" for i, c in enumerate(a.graph.containers) if c.weights_of == m]
            yield error("E221", f"model `{m}` has {n} weight containers", *paths, help="keep one of them")


def weight_writers(a: Analysis) -> Iterator[Diagnostic]:
    """E222: weights are written by a training vertex of their model alone; all other reads rely on it."""
    for v in a.graph.vertices:
        for c in v.writes:
            m = a.weights_of.get(c)
            if m is None or (v.role == "training" and v.model == m):
                continue
            yield error(
                "E222",
                f"`{v.name}` writes `{c}`, the weights of `{m}`, but does not train that model",
                _vertex(a, v.name) + ".writes",
                help=f"remove `{c}` from its writes: only training changes weights",
            )


def vocabularies(a: Analysis) -> Iterator[Diagnostic]:
    """W302: a language model that scores generated tokens has another vocabulary than they are of.

    A warning, since nothing that is planned depends on it; the runtime refuses such tokens.
    """
    writers = {c: v for v in a.graph.vertices if v.role == "generation" for c in v.writes}
    for v in a.graph.vertices:
        if v.role != "inference" or v.model is None or not a.problem.models[v.model].has_lm_head:
            continue
        for generation in dict.fromkeys(writers[c].name for c in v.reads if c in writers):
            model = a.vertex[generation].model
            if model is None:
                continue
            own, other = (a.problem.models[m].vocabulary for m in (v.model, model))
            if own != other:
                yield Diagnostic(
                    code="W302",
                    severity="warning",
                    message=f"`{v.name}` scores tokens of `{model}`, which has {other}, with `{v.model}`, "
                    f"which has {own}",
                    labels=(Label(path=f"models.{v.model}.vocabulary"), Label(path=_vertex(a, v.name))),
                    help="use models of one vocabulary: probabilities of tokens cannot be compared otherwise",
                )


RULES: tuple[Rule, ...] = (
    interfaces,
    publications,
    duplicate_edges,
    producers,
    boundary,
    weight_containers,
    weight_writers,
    host,
    training,
    serving,
    staleness,
    cycles,
    ancestors,
)


def check(problem: Problem) -> list[Diagnostic]:
    """All violations of the graph rules, in rule order."""
    analysis = Analysis(problem)
    return [d for rule in RULES for d in rule(analysis)]
