"""Shared actor-critic: one trainable model with a policy and a value head in place of two.

The rewrite is about graphs, not about presets: any two trainable models of equal backbone can share it.
Their training vertices become one, at the policy's index, which reads what either read.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.model import ModelSpec
from ir_schema.problem import Container, Edge, Graph, Options, PartialPlacement, Problem, RunConfig, Vertex
from passes.analysis import Analysis
from passes.cost import model_for


@dataclass(frozen=True)
class _Names:
    """Old names and what they become."""

    models: dict[str, str]
    vertices: dict[str, str]
    containers: dict[str, str]

    def model(self, name: str | None) -> str | None:
        return name if name is None else self.models.get(name, name)

    def vertex(self, name: str) -> str:
        return self.vertices.get(name, name)

    def container(self, name: str) -> str:
        return self.containers.get(name, name)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def refusals(problem: Problem, policy: str, value: str) -> list[str]:
    """Why the two models cannot share a backbone; empty if they can."""
    a, b = problem.models.get(policy), problem.models.get(value)
    if a is None or b is None:
        return [f"there is no model `{policy if a is None else value}`"]
    found = []
    if policy == value:
        found.append("they are the same model")
    found += [f"`{m}` is not trained" for m in (policy, value) if m not in problem.graph.trainable]
    if not (a.has_lm_head and b.has_scalar_head):
        found.append(f"`{policy}` needs a policy head and `{value}` a value head")
    if b.checkpoint not in (None, a.checkpoint):
        found.append(f"`{value}` starts from a checkpoint of its own, which one backbone cannot")
    if _backbone(a) != _backbone(b):
        fields = [f for f in a.__struct_fields__ if getattr(_backbone(a), f) != getattr(_backbone(b), f)]
        found.append(f"their backbones differ in {', '.join(fields)}")
    staleness = problem.graph.staleness
    if staleness.get(policy, 0) != staleness.get(value, 0):
        found.append("they have different staleness")
    merged = f"{policy}_{value}"
    taken = {merged} & set(problem.models) | {f"{merged}_train"} & {v.name for v in problem.graph.vertices}
    found += [f"the name `{name}` is taken" for name in sorted(taken)]
    return found


def _backbone(spec: ModelSpec) -> ModelSpec:
    return msgspec.structs.replace(spec, head="both", parameters=None, checkpoint=None)


def share(problem: Problem, policy: str, value: str) -> Problem:
    """`problem` with `policy` and `value` merged into the model `<policy>_<value>`.

    Raises DiagnosticError E430 when they cannot be merged, and E431 when the plan in the file fixes
    different things for the two training vertices.
    """
    reasons = refusals(problem, policy, value)
    if reasons:
        raise DiagnosticError(
            [
                error(
                    "E430",
                    f"`{policy}` and `{value}` cannot share a backbone: {reasons[0]}",
                    "search.share",
                    notes=reasons[1:],
                    help="share a trained policy and a trained value model of one architecture",
                )
            ]
        )
    merged = f"{policy}_{value}"
    training = Analysis(problem).training
    weights = {c.name: f"W_{merged}" for c in problem.graph.containers if c.weights_of in (policy, value)}
    names = _Names(
        models={policy: merged, value: merged},
        vertices={training[m].name: f"{merged}_train" for m in (policy, value)},
        containers=weights,
    )
    models = _models(problem, policy, value, merged)
    plan = _plan(problem, training[policy].name, training[value].name, names)
    shared = msgspec.structs.replace(
        problem,
        models=models,
        graph=_graph(problem.graph, names, training[policy], training[value], merged),
        options=_options(problem.options, names),
        plan=plan,
        search=None,
        run=_run(problem.run, policy, value, merged),
    )
    return _count_parameters(shared, merged, declared=problem.models[policy].parameters is not None)


def _models(problem: Problem, policy: str, value: str, merged: str) -> dict[str, ModelSpec]:
    spec = msgspec.structs.replace(problem.models[policy], head="both", parameters=None)
    return {
        (merged if m == policy else m): (spec if m == policy else s)
        for m, s in problem.models.items()
        if m != value
    }


def _graph(graph: Graph, names: _Names, policy: Vertex, value: Vertex, merged: str) -> Graph:
    vertices = []
    for v in graph.vertices:
        if v.name == value.name:
            continue
        reads, writes = v.reads, v.writes
        if v.name == policy.name:
            reads, writes = (*v.reads, *value.reads), (*v.writes, *value.writes)
        vertices.append(
            msgspec.structs.replace(
                v,
                name=names.vertex(v.name),
                model=names.model(v.model),
                reads=_unique(map(names.container, reads)),
                writes=_unique(map(names.container, writes)),
            )
        )
    containers: dict[str, Container] = {}
    for c in graph.containers:
        name = names.container(c.name)
        new = msgspec.structs.replace(c, name=name, weights_of=names.model(c.weights_of))
        containers.setdefault(name, new)
    return Graph(
        vertices=tuple(vertices),
        data_edges=_edges(graph.data_edges, names),
        publication_edges=_edges(graph.publication_edges, names),
        containers=tuple(containers.values()),
        trainable=_unique(names.models.get(m, m) for m in graph.trainable),
        staleness={names.models.get(m, m): tau for m, tau in graph.staleness.items()},
        inputs=_unique(map(names.container, graph.inputs)),
        outputs=_unique(map(names.container, graph.outputs)),
    )


def _edges(edges: Iterable[Edge], names: _Names) -> tuple[Edge, ...]:
    mapped = [
        Edge(names.vertex(e.source), names.vertex(e.target), names.container(e.container)) for e in edges
    ]
    return tuple(dict.fromkeys(e for e in mapped if e.source != e.target))


def _options(options: Options, names: _Names) -> Options:
    if options.fuse is None:
        return options
    first, second = map(names.vertex, options.fuse)
    return msgspec.structs.replace(options, fuse=None if first == second else (first, second))


def _plan(problem: Problem, policy: str, value: str, names: _Names) -> dict[str, PartialPlacement]:
    plan = {names.vertex(v): p for v, p in problem.plan.items() if v not in (policy, value)}
    given = [problem.plan[v] for v in (policy, value) if v in problem.plan]
    if len(given) == 2 and given[0] != given[1]:
        raise DiagnosticError(
            [
                error(
                    "E431",
                    f"`{policy}` and `{value}` become one vertex, but different plans are fixed for them",
                    f"plan.{policy}",
                    f"plan.{value}",
                    help="fix the same fields for both, or remove the pair from `share`",
                )
            ]
        )
    if given:
        plan[names.vertex(policy)] = given[0]
    return plan


def _run(run: RunConfig | None, policy: str, value: str, merged: str) -> RunConfig | None:
    """The merged model takes the policy's optimizer, or the value model's if only that has its own."""
    if run is None:
        return None
    optimizers = {m: o for m, o in run.optimizers.items() if m not in (policy, value)}
    for m in (value, policy):
        if m in run.optimizers:
            optimizers[merged] = run.optimizers[m]
    return msgspec.structs.replace(run, optimizers=optimizers)


def _count_parameters(problem: Problem, merged: str, *, declared: bool) -> Problem:
    """The merged weights' size: the backbone once and both heads, by the problem's cost model."""
    count = model_for(problem).parameters(merged)
    containers = tuple(
        msgspec.structs.replace(c, elements=count) if c.weights_of == merged else c
        for c in problem.graph.containers
    )
    models = problem.models
    if declared:
        models = models | {merged: msgspec.structs.replace(models[merged], parameters=count)}
    return msgspec.structs.replace(
        problem, models=models, graph=msgspec.structs.replace(problem.graph, containers=containers)
    )
