"""Cost model `paper`: the formulas as printed (multi-head attention, two-projection FFN, vocabulary
replicated over tensor ranks). It exists to be compared with the paper and with other implementations of
it, digit for digit; use `megatron` to decide what fits. Symbols are those of semantics: Cost.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

from ir_schema.device import Allocation, joint_tier
from ir_schema.model import ModelSpec
from ir_schema.problem import Placement, Problem, Vertex
from ir_schema.stages import DeviceMemory, Node
from passes.analysis import Analysis
from passes.cost.base import ClosedForm, CostModel, FusedCost, Parts, ShapeBytes
from passes.cost.collectives import all_gather, all_reduce, point_to_point, reduce_scatter
from passes.cost.memory import device_memory, per_region

PARTS = ("gemm", "bubble", "tp", "pp", "dp", "nongemm", "opt")


def parameter_count(model: ModelSpec) -> int:
    """N_m = L (4 d^2 + 2 d d_ff) + V d + chi_LM V d + chi_scal d."""
    d = model.hidden
    backbone = model.layers * (4 * d * d + 2 * d * model.ffn) + model.vocabulary * d
    return backbone + model.has_lm_head * model.vocabulary * d + model.has_scalar_head * d


class PaperCost(CostModel):
    """See the module."""

    name: ClassVar[str] = "paper"
    supports_accumulation: ClassVar[bool] = False

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.analysis = Analysis(problem)
        self.workload = problem.workload
        self.hardware = problem.hardware
        self.lp, self.lr = self.workload.prompt_length, self.workload.response_length
        self.length = self.workload.total_length
        self.sequences = float(self.workload.sequences)

    def parameters(self, model: str) -> int:
        """N_m."""
        return parameter_count(self.problem.models[model])

    def _model(self, vertex: Vertex) -> ModelSpec:
        assert vertex.model is not None, "a host vertex has no operator cost"
        return self.problem.models[vertex.model]

    # Work and throughput -----------------------------------------------------------------------------

    @staticmethod
    def _head_work(m: ModelSpec) -> int:
        return 2 * m.hidden * m.vocabulary * m.has_lm_head + 2 * m.hidden * m.has_scalar_head

    def _forward_work(self, m: ModelSpec, length: int, heads: int) -> int:
        """FLOPs of one sequence's forward pass over `length` tokens with head work on `heads` of them."""
        d = m.hidden
        layer = length * (8 * d * d + 4 * d * m.ffn) + 4 * length * length * d
        return m.layers * layer + heads * self._head_work(m)

    def _decode_work(self, m: ModelSpec) -> int:
        """FLOPs of all decode steps t = 1 .. L_r - 1 of one sequence."""
        d, steps = m.hidden, self.lr - 1
        context = steps * self.lp + steps * (steps + 1) // 2
        return m.layers * (steps * (8 * d * d + 4 * d * m.ffn) + 4 * context * d) + steps * self._head_work(m)

    def _throughput(
        self, m: ModelSpec, p: Placement, work: float, batch: float, length: int, kv_bytes: float = 0.0
    ) -> float:
        """F_eff = min(F_peak eta, I BW_mem) for `work` FLOPs per device, microbatch and forward."""
        d, layers = m.hidden, m.layers / p.pipeline_parallel
        rows = batch * length
        width = min(d / p.tensor_parallel, m.ffn / p.tensor_parallel)
        eta = rows / (rows + self.hardware.gamma_M) * width / (width + self.hardware.gamma_K)
        weights = layers / p.tensor_parallel * (4 * d * d + 2 * d * m.ffn) * m.bytes_per_parameter
        activations = 2 * batch * length * d * layers * m.bytes_per_parameter
        intensity = work / (weights + activations + kv_bytes)
        return min(self.hardware.peak_flops * eta, intensity * self.hardware.memory_bandwidth)

    # Communication terms -----------------------------------------------------------------------------

    def _tensor_reduce(self, m: ModelSpec, p: Placement, tokens: float) -> float:
        """AllReduce of the activations of `tokens` tokens over the tensor group (always inside a node)."""
        nbytes = tokens * m.hidden * m.bytes_per_parameter
        return all_reduce(self.hardware.collective.intra, nbytes, p.tensor_parallel)

    def _pipeline_step(self, m: ModelSpec, p: Placement, sequences: float, length: int) -> float:
        """c(l): mean time of one stage-to-stage transfer of a microbatch."""
        nbytes = (
            sequences
            * length
            * m.hidden
            * m.bytes_per_parameter
            / (p.data_parallel * p.tensor_parallel * p.microbatches)
        )
        stages, per_node = p.pipeline_parallel, self.problem.device_space[2]
        inter = max(0, -(-stages * p.tensor_parallel // per_node) - 1)
        intra = stages - 1 - inter
        links = self.hardware.point_to_point
        near, far = links.intra, links.at(p.allocation.tier)
        return (intra * point_to_point(near, nbytes) + inter * point_to_point(far, nbytes)) / (stages - 1)

    # Operators ---------------------------------------------------------------------------------------

    def operator(self, vertex: Vertex, placement: Placement) -> Parts:
        """T_op by parts."""
        if vertex.role == "generation":
            return _add(self._prefill(vertex, placement), self._decode(vertex, placement))
        return self._pass(vertex, placement, self.sequences)

    def phase(self, vertex: Vertex, placement: Placement, phase: int) -> Parts:
        """Generation: T_decode (t_q - t_{q-1}) / L_r, plus the prefill in phase 1; inference: T_op of
        B R (f_q - f_{q-1}) sequences."""
        quantiles = ((0.0, 0), *self.workload.length_quantiles)
        (f0, t0), (f1, t1) = quantiles[phase - 1], quantiles[phase]
        if vertex.role != "generation":
            return self._pass(vertex, placement, self.sequences * (f1 - f0))
        decode = self._decode(vertex, placement)
        part = {k: x * (t1 - t0) / self.lr for k, x in decode.items()}
        return _add(self._prefill(vertex, placement), part) if phase == 1 else part

    def _pass(self, vertex: Vertex, p: Placement, sequences: float) -> Parts:
        """A teacher-forced pass: inference, or training (forward, recompute and backward)."""
        m, training = self._model(vertex), vertex.role == "training"
        mb, stages, gpus = p.microbatches, p.pipeline_parallel, p.layout.gpus
        batch = sequences / (p.data_parallel * mb)
        work = (4 if training else 1) * sequences * self._forward_work(m, self.length, self.length)
        per_device = work / ((4 if training else 1) * gpus * mb)
        gemm = work / (gpus * self._throughput(m, p, per_device, batch, self.length))
        layers = m.layers / stages
        reduces = 6 if training else 2
        pp = 0.0
        if stages > 1:
            hops = mb + 2 * stages - 3 if training else mb + stages - 2
            pp = hops * self._pipeline_step(m, p, sequences, self.length)
        tokens = sequences * self.length / p.data_parallel
        reference = self.hardware.nongemm_reference
        nongemm = (
            layers
            * self.hardware.nongemm_seconds
            * (1 - 1 / p.tensor_parallel)
            * tokens
            / (reference.sequences * reference.tokens)
        )
        dp = optimizer = 0.0
        if training:
            count = self.parameters(vertex.model or "")
            link = self.hardware.collective.at(p.allocation.tier)
            nbytes = count * m.bytes_per_parameter / (stages * p.tensor_parallel)
            dp = reduce_scatter(link, nbytes, p.data_parallel) + all_gather(link, nbytes, p.data_parallel)
            optimizer = 18 * count / (gpus * self.hardware.memory_bandwidth)
        return {
            "gemm": gemm,
            "bubble": gemm * (stages - 1) / mb,
            "tp": reduces * layers * mb * self._tensor_reduce(m, p, tokens / mb),
            "pp": pp,
            "dp": dp,
            "nongemm": nongemm * (4 if training else 1),
            "opt": optimizer,
        }

    def _generation(self, p: Placement, gemm: float, tp: float, pp: float) -> Parts:
        bubble = gemm * (p.pipeline_parallel - 1) / p.microbatches
        return dict(zip(PARTS, (gemm, bubble, tp, pp, 0.0, 0.0, 0.0), strict=True))

    def _prefill(self, vertex: Vertex, p: Placement) -> Parts:
        m, mb, stages = self._model(vertex), p.microbatches, p.pipeline_parallel
        gpus = p.layout.gpus
        work = self.sequences * self._forward_work(m, self.lp, 1)
        batch = self.sequences / (p.data_parallel * mb)
        gemm = work / (gpus * self._throughput(m, p, work / (gpus * mb), batch, self.lp))
        reduce = self._tensor_reduce(m, p, self.sequences * self.lp / (p.data_parallel * mb))
        tp = 2 * (m.layers / stages) * mb * reduce
        pp = 0.0
        if stages > 1:
            pp = (mb + stages - 2) * self._pipeline_step(m, p, self.sequences, self.lp)
        return self._generation(p, gemm, tp, pp)

    def _decode(self, vertex: Vertex, p: Placement) -> Parts:
        m, mb, stages = self._model(vertex), p.microbatches, p.pipeline_parallel
        steps, gpus = self.lr - 1, p.layout.gpus
        if steps == 0:
            return self._generation(p, 0.0, 0.0, 0.0)
        layers = m.layers / stages
        work = self.sequences * self._decode_work(m)
        batch = self.sequences / (p.data_parallel * mb)
        kv = (
            2
            * m.bytes_per_parameter
            * batch
            * (self.lp + self.lr / 2)
            * layers
            * m.hidden
            / p.tensor_parallel
        )
        gemm = work / (gpus * self._throughput(m, p, work / (steps * gpus * mb), batch, 1, kv))
        reduce = self._tensor_reduce(m, p, self.sequences / p.data_parallel)
        pp = 0.0
        if stages > 1:
            pp = steps * (mb + stages - 2) * self._pipeline_step(m, p, self.sequences, 1)
        return self._generation(p, gemm, 2 * layers * steps * reduce, pp)

    def fused(self, members: tuple[Vertex, Vertex], placement: Placement, second: Placement) -> FusedCost:
        """Microtasks of T_gemm / mb per stage: a quarter forward, the rest recompute and backward."""
        both = [self.operator(v, p) for v, p in zip(members, (placement, second), strict=True)]
        mbs = (placement.microbatches, second.microbatches)
        tasks = [parts["gemm"] / mb for parts, mb in zip(both, mbs, strict=True)]
        rest = {k: both[0][k] + both[1][k] for k in ("tp", "pp", "dp", "nongemm", "opt")}
        return FusedCost(
            forward_ns=(round(tasks[0] / 4 * 1e9), round(tasks[1] / 4 * 1e9)),
            backward_ns=(round(tasks[0] * 3 / 4 * 1e9), round(tasks[1] * 3 / 4 * 1e9)),
            microbatches=mbs,
            parts=rest,
        )

    def transfer(self, node: Node) -> Parts:
        """T_xfer of a Comm, AlltoAll of a Reshard (nothing when both layouts are equal)."""
        target = node.allocation
        assert target is not None
        if node.kind == "Comm":
            source = node.source_allocation
            assert source is not None
            link = self.hardware.point_to_point.at(joint_tier(source, target))
            share = node.payload_bytes / min(source.gpus, target.gpus)
            return {"latency": link.alpha, "bytes": share * link.beta}
        if node.source_layout == node.layout or target.gpus == 1:
            return {"latency": 0.0, "bytes": 0.0}
        link = self.hardware.collective.at(target.tier)
        return {
            "latency": (target.gpus - 1) * link.alpha,
            "bytes": node.payload_bytes / target.gpus * link.beta,
        }

    def closed_form(self) -> ClosedForm:
        """That of `transfer` and `memory`."""
        tiers = self.hardware.point_to_point, self.hardware.collective
        near, wide = (tuple((link.alpha, link.beta) for link in (t.intra, t.inter, t.rack)) for t in tiers)
        return ClosedForm("paper", near, wide, self.hardware.memory_bandwidth)

    def shape_bytes(self, vertex: Vertex, placement: Placement) -> ShapeBytes:
        """What `memory` is made of, for one vertex and shape."""
        spec, shard = self._model(vertex), self.shard(self._model(vertex), placement)
        return ShapeBytes(
            weights=shard * spec.bytes_per_parameter,
            copies=shard * spec.bytes_per_parameter,
            state=(12 * shard / placement.data_parallel,) if vertex.role == "training" else (),
            transient=tuple(self._transient(vertex, placement, resident=False).values()),
        )

    # Memory ------------------------------------------------------------------------------------------

    def shard(self, model: ModelSpec, p: Placement) -> float:
        """W_shard: parameters of the fullest pipeline stage on one tensor rank."""
        d, stages = model.hidden, p.pipeline_parallel
        layers = model.layers / stages * (4 * d * d + 2 * d * model.ffn) / p.tensor_parallel
        embedding = model.vocabulary * d
        head = model.has_lm_head * model.vocabulary * d + model.has_scalar_head * d
        if stages == 1:
            return layers + embedding + head
        return layers + max(embedding, head)

    def _transient(self, vertex: Vertex, p: Placement, *, resident: bool) -> dict[str, float]:
        """A(v, d) by parts; `resident`: the weights already lie on d as a shadow or frozen copy."""
        m = self._model(vertex)
        s, d, tp, stages = m.bytes_per_parameter, m.hidden, p.tensor_parallel, p.pipeline_parallel
        batch = self.sequences / (p.data_parallel * p.microbatches)
        weights = self.shard(m, p) * s
        layer = max(2 * d + 6 * d / tp, 2 * d + 2 * m.ffn / tp)
        if vertex.role == "training":
            layers = m.layers / stages
            chunks = max(1, math.floor(math.sqrt(layers)))
            saved = math.ceil(layers / chunks) * d + chunks * layer
            act = s * min(p.microbatches, stages) * batch * self.length * saved
            return {"act": act, "kv": 0.0, "weights": weights, "grad": weights / p.data_parallel}
        length = self.lp if vertex.role == "generation" else self.length
        act = s * batch * length * max(layer, d + m.vocabulary)
        kv = 0.0
        if vertex.role == "generation":
            kv = 2 * s * (self.sequences / p.data_parallel) * self.length * (m.layers / stages) * d / tp
        return {"act": act, "kv": kv, "weights": 0.0 if resident else weights, "grad": 0.0}

    def operator_bytes(self, vertex: Vertex, placement: Placement) -> int:
        """Transient bytes plus, for training, the optimizer state."""
        held = 0.0
        if vertex.role == "training":
            held = 12 * self.shard(self._model(vertex), placement) / placement.data_parallel
        return round(held + sum(self._transient(vertex, placement, resident=False).values()))

    def memory(
        self, plan: dict[str, Placement], nodes: Sequence[Node]
    ) -> list[tuple[Allocation, DeviceMemory]]:
        """Peaks by region; Comm and Reshard hold nothing here."""
        fused = next((n.members for n in nodes if n.members), ())
        return per_region(self.problem.device_space, plan, lambda users: self._region(plan, users, fused))

    def _copy_kind(self, vertex: Vertex, plan: dict[str, Placement]) -> str | None:
        """Whether the vertex reads a persistent "frozen" or "shadow" copy of its model."""
        model = vertex.model or ""
        if model not in self.analysis.staleness:
            return "frozen"
        if vertex.role == "training" or self.analysis.staleness[model] == 0:
            return None
        trainer = plan[self.analysis.training[model].name].allocation
        return "shadow" if plan[vertex.name].allocation.overlap(trainer) == 0 else None

    def _region(
        self, plan: dict[str, Placement], users: tuple[str, ...], fused: tuple[str, ...]
    ) -> DeviceMemory:
        persistent: dict[str, dict[str, float]] = {}
        transient: dict[str, dict[str, float]] = {}
        for name in users:
            vertex, p = self.analysis.vertex[name], plan[name]
            spec, kind = self._model(vertex), self._copy_kind(vertex, plan)
            held = persistent.setdefault(vertex.model or "", {})
            if vertex.role == "training":
                held["optimizer"] = 12 * self.shard(spec, p) / p.data_parallel
            elif kind is not None:
                held[kind] = max(held.get(kind, 0.0), self.shard(spec, p) * spec.bytes_per_parameter)
        for name in users:
            vertex, p = self.analysis.vertex[name], plan[name]
            resident = not {"frozen", "shadow"}.isdisjoint(persistent[vertex.model or ""])
            parts = self._transient(vertex, p, resident=resident)
            key = "+".join(fused) if name in fused else name
            transient[key] = _add(transient[key], parts) if key in transient else parts
        return device_memory({m: parts for m, parts in persistent.items() if parts}, transient)


def _add(a: Parts, b: Parts) -> Parts:
    return {k: a[k] + b[k] for k in a}
