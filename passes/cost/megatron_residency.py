"""Who holds what on which GPU, and when: device peaks under cost model `megatron` (`docs/cost-megatron.md`).

Persistent on a GPU, once per distinct (allocation, layout) of a model: the training state; one copy of a
frozen model's weights; tau copies of what a trainable model with tau > 0 is served from. With tau = 0, a
serving layout that is not the training layout holds its weights from their installation, after one step's
training, to its last reader in the next step: they are part of the transient of every operator that may
run meanwhile, a generation that keeps its cache as well as its readers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ir_schema.device import Allocation
from ir_schema.model import ModelSpec
from ir_schema.problem import Layout, Placement, Vertex
from ir_schema.stages import DeviceMemory, Node
from passes.analysis import Analysis
from passes.cost import megatron_live, megatron_memory
from passes.cost.base import ShapeBytes
from passes.cost.megatron_memory import Bytes, added, training_state, weight_bytes
from passes.cost.memory import device_memory, per_region

Place = tuple[Allocation, Layout]


@dataclass(frozen=True)
class Visitor:
    """Weights that come and go: a tau = 0 model's copy in a serving layout of its own, and its readers."""

    model: str
    place: Place
    readers: tuple[str, ...]
    nbytes: float


class Residency:
    """Device memory of the plans of one problem."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.models = analysis.problem.models
        self.workload = analysis.problem.workload
        eager = analysis.problem.hardware.dispatch is not None
        source = megatron_live if eager else megatron_memory
        self._compute = {
            "training": source.training_transient,
            "inference": source.inference_transient,
            "generation": source.generation_transient,
        }
        self._after = analysis.reachable
        self._transients: dict[tuple[object, ...], Bytes] = {}

    def transient(self, vertex: Vertex, p: Placement) -> Bytes:
        """What the operator itself needs beside weights, by parts."""
        key = (vertex.name, p.data_parallel, p.pipeline_parallel, p.tensor_parallel, p.microbatches,
               p.context_parallel, p.expert_parallel, p.waves)  # fmt: skip
        known = self._transients.get(key)
        if known is None:
            compute = self._compute[vertex.role]
            known = self._transients[key] = compute(self._spec(vertex), p, self.workload)
        return known

    def operator_bytes(self, vertex: Vertex, p: Placement) -> int:
        """Bytes of `vertex` alone on its fullest GPU."""
        spec, model = self._spec(vertex), vertex.model or ""
        if vertex.role == "training":
            held = sum(training_state(spec, p.layout).values())
        else:
            held = weight_bytes(spec, p.layout) * max(1, self.analysis.staleness.get(model, 0))
        return round(held + sum(self.transient(vertex, p).values()))

    def shape_bytes(self, vertex: Vertex, p: Placement) -> ShapeBytes:
        """What `memory` is made of, for one vertex and shape."""
        spec, model = self._spec(vertex), vertex.model or ""
        weights = weight_bytes(spec, p.layout)
        copies = self.analysis.staleness.get(model, 1)
        state = tuple(training_state(spec, p.layout).values()) if vertex.role == "training" else ()
        return ShapeBytes(
            weights=weights,
            copies=copies * weights if copies else 0.0,
            state=state,
            transient=tuple(self.transient(vertex, p).values()),
        )

    def memory(
        self, plan: dict[str, Placement], nodes: Sequence[Node]
    ) -> list[tuple[Allocation, DeviceMemory]]:
        """Peaks by region."""
        fused = next((n.members for n in nodes if n.members), ())
        visitors = self._visitors(plan)
        handovers = _handovers(nodes)
        return per_region(
            self.analysis.problem.device_space,
            plan,
            lambda users: self._region(users, plan, fused, visitors, handovers),
        )

    def _region(
        self,
        users: tuple[str, ...],
        plan: dict[str, Placement],
        fused: tuple[str, ...],
        visitors: list[Visitor],
        handovers: list[Node],
    ) -> DeviceMemory:
        here = [v for v in visitors if any(r in users for r in v.readers)]
        transient: dict[str, Bytes] = {}
        members: dict[str, tuple[str, ...]] = {}
        for name in users:
            key = "+".join(fused) if name in fused else name
            members[key] = (*members.get(key, ()), name)
        for key, names in members.items():
            parts = added(*(self.transient(self.analysis.vertex[n], plan[n]) for n in names))
            own = sum(v.nbytes for v in here if any(n in v.readers for n in names))
            others = sum(
                v.nbytes
                for v in here
                if not any(n in v.readers for n in names) and not all(self._absent(v, n) for n in names)
            )
            transient[key] = parts | {"weights": own, "other_weights": others}
        for node in handovers:
            if node.vertex in users:
                ends = {"source": node.source, "weights": node.vertex}
                held = {k: sum(v.nbytes for v in here if name in v.readers) for k, name in ends.items()}
                transient[f"reshard {node.source} to {node.vertex}"] = held
        return device_memory(self._persistent(users, plan), transient)

    def _persistent(self, users: tuple[str, ...], plan: dict[str, Placement]) -> dict[str, Bytes]:
        held: dict[str, Bytes] = {}
        served: set[tuple[str, Place]] = set()
        for name in users:
            vertex, p = self.analysis.vertex[name], plan[name]
            model, spec = vertex.model or "", self._spec(vertex)
            place = (model, (p.allocation, p.layout))
            parts: Bytes = {}
            if vertex.role == "training":
                parts = training_state(spec, p.layout)
            elif place not in served:
                served.add(place)
                trainable = model in self.analysis.staleness
                copies = self.analysis.staleness[model] if trainable else 1
                if copies:
                    parts = {"serving" if trainable else "weights": copies * weight_bytes(spec, p.layout)}
            if parts:
                held[model] = added(held.get(model, {}), parts)
        return held

    def _visitors(self, plan: dict[str, Placement]) -> list[Visitor]:
        """tau = 0 serving copies whose layout is not that of training."""
        found = []
        for model, tau in self.analysis.staleness.items():
            if tau > 0:
                continue
            trainer = plan[self.analysis.training[model].name]
            readers: dict[Place, list[str]] = {}
            for v in self.analysis.serving(model):
                p = plan[v.name]
                readers.setdefault((p.allocation, p.layout), []).append(v.name)
            readers.pop((trainer.allocation, trainer.layout), None)
            for place, names in readers.items():
                found.append(Visitor(model, place, tuple(names), weight_bytes(self.models[model], place[1])))
        return found

    def _absent(self, visitor: Visitor, operator: str) -> bool:
        """Whether the visiting weights are never there while `operator` runs: it follows all their readers in
        the step, and it is or precedes the training that makes the next ones."""
        trainer = self.analysis.training[visitor.model].name
        before = operator == trainer or trainer in self._after[operator]
        return before and all(operator in self._after[r] for r in visitor.readers)

    def _spec(self, vertex: Vertex) -> ModelSpec:
        assert vertex.model is not None, "a host vertex holds nothing on a device"
        return self.models[vertex.model]


def _handovers(nodes: Sequence[Node]) -> list[Node]:
    """One Reshard of each pair of serving vertices that hand weights from one to the other."""
    found = {(n.source, n.vertex): n for n in nodes if n.kind == "Reshard" and not n.publication}
    return list(found.values())
