"""Cost: a time for every node and a peak for every device, by a named cost model (semantics: Cost)."""

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import ClassVar

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.problem import Problem
from ir_schema.stages import Costed, CostedNode, Lowered, MicrotaskSchedule, Node
from passes.analysis import Analysis
from passes.base import Pass
from passes.cost.base import CostModel, Parts, nanoseconds
from passes.cost.memory import by_device
from passes.cost.processors import processors_ns
from passes.microtasks import schedule_pair
from passes.structure import Plan, phase_fractions

GROUP = "rpegc.cost_models"


@cache
def cost_model(name: str) -> type[CostModel]:
    """The installed cost model called `name`.

    Raises DiagnosticError E301 when there is none and E302 when two distributions provide it.
    """
    points = entry_points(group=GROUP)
    found = [p for p in points if p.name == name]
    if not found:
        names = sorted({p.name for p in points})
        close = get_close_matches(name, names, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known cost models: {', '.join(names)}"
        raise DiagnosticError(
            [error("E301", f"unknown cost model `{name}`", "options.cost_model", help=hint)]
        )
    if len(found) > 1:
        owners = sorted(p.dist.name if p.dist is not None else "?" for p in found)
        raise DiagnosticError(
            [
                error(
                    "E302",
                    f"cost model `{name}` is provided twice, by {' and '.join(owners)}",
                    "options.cost_model",
                    help="uninstall one of the distributions",
                )
            ]
        )
    model: type[CostModel] = found[0].load()
    return model


def model_for(problem: Problem) -> CostModel:
    """The problem's cost model, ready to be asked."""
    return cost_model(problem.options.cost_model)(problem)


class Durations:
    """Times of lowered nodes under one cost model; periodic nodes are computed once."""

    def __init__(self, model: CostModel, analysis: Analysis) -> None:
        self.model = model
        self.analysis = analysis
        self.fractions = phase_fractions(analysis)
        self.microtasks: dict[str, MicrotaskSchedule] = {}
        self._known: dict[object, tuple[int, Parts]] = {}

    def of(self, node: Node, lowered: Lowered) -> tuple[int, Parts]:
        """Whole nanoseconds and parts of `node`."""
        key: object
        if node.kind == "Op":
            key = (node.vertex, node.phase)
        else:
            key = (
                node.kind,
                node.model,
                node.payload_bytes,
                node.source_allocation,
                node.allocation,
                node.source_layout,
                node.layout,
                node.publication,
            )
        known = self._known.get(key)
        if known is None:
            parts = self.parts(node, lowered.configuration.plan)
            known = self._known[key] = (nanoseconds(parts), parts)
        return known

    def parts(self, node: Node, plan: Plan) -> Parts:
        """Parts [s] of `node` under `plan`, computed anew."""
        return self._operator(node, plan) if node.kind == "Op" else self.model.transfer(node)

    def _operator(self, node: Node, plan: Plan) -> Parts:
        vertices = self.analysis.vertex
        if node.members:
            first, second = node.members
            placement = plan[first]
            cost = self.model.fused((vertices[first], vertices[second]), placement, plan[second])
            schedule = schedule_pair(
                placement.pipeline_parallel, cost.microbatches, cost.forward_ns, cost.backward_ns
            )
            self.microtasks[node.vertex] = schedule
            return cost.parts | {"microtasks": schedule.makespan_ns * 1e-9}
        assert node.phase is not None
        vertex = vertices[node.vertex]
        if node.vertex not in plan:
            host = self.analysis.problem.host[node.vertex]
            share = self.fractions[node.phase - 1] if node.phases > 1 else 1.0
            responses = self.analysis.problem.workload.sequences * share
            return {"host": responses * host.seconds_per_response / host.workers}
        if node.phases > 1:
            return self.model.phase(vertex, plan[node.vertex], node.phase)
        return self.model.operator(vertex, plan[node.vertex])


def cost(lowered: Lowered) -> Costed:
    """Times and peaks of `lowered` under its problem's cost model."""
    problem = lowered.configuration.problem
    model, analysis = model_for(problem), Analysis(problem)
    durations = Durations(model, analysis)
    nodes = []
    for node in lowered.nodes:
        time_ns, parts = durations.of(node, lowered)
        fields = {f: getattr(node, f) for f in node.__struct_fields__}
        nodes.append(CostedNode(**fields, time_ns=time_ns, parts_s=parts))
    plan = {v.name: lowered.configuration.plan[v.name] for v in problem.graph.vertices if v.model is not None}
    return Costed(
        configuration=lowered.configuration,
        nodes=tuple(nodes),
        microtasks=durations.microtasks,
        devices=by_device(model.memory(plan, lowered.nodes)),
        processors_ns=processors_ns(model, plan),
    )


@dataclass(frozen=True)
class Cost(Pass[Lowered, Costed]):
    """Lowered graph to costed graph. `model` overrides the problem's cost model."""

    name: ClassVar[str] = "cost"
    summary: ClassVar[str] = "give every node a time and every device a peak"
    source: ClassVar[type[Record]] = Lowered
    target: ClassVar[type[Record]] = Costed

    model: str | None = None

    def run(self, stage: Lowered) -> Costed:
        """See `cost`."""
        if self.model is not None:
            configuration = stage.configuration
            options = msgspec.structs.replace(configuration.problem.options, cost_model=self.model)
            problem = msgspec.structs.replace(configuration.problem, options=options)
            stage = msgspec.structs.replace(
                stage, configuration=msgspec.structs.replace(configuration, problem=problem)
            )
        return cost(stage)
