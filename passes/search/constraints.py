"""Constraints P1 to P8 on one vertex's plan (semantics: Search), each stated once.

The same statements enumerate candidates, check plans written by hand, and explain why nothing is left.
Every method returns None when its constraint holds, and otherwise the reason in words.

Cost models with `supports_accumulation` use P4 and P5 as decided, others as printed. P5's lower bound on
tokens never forbids the smallest number of microbatches that the other constraints allow: without a
pipeline that is the whole local batch, with one it is the smallest divisor that is at least P_p.
"""

from dataclasses import dataclass
from functools import cached_property

from ir_schema.device import Allocation, Coordinate, DeviceSpace, size
from ir_schema.model import ModelSpec
from ir_schema.problem import Problem, Vertex
from passes.cost import cost_model
from passes.search.masks import gpu_mask

MIN_TOKENS = 4096
MIN_SEQUENCES = 8

Extent = tuple[int, int, int]


def divisors(n: int) -> list[int]:
    """All positive divisors of `n`, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def excluded_mask(problem: Problem) -> int:
    """The GPUs that the problem's search may not use, as a bit mask."""
    mask = 0
    for name in () if problem.search is None else problem.search.exclude:
        r, n, g = map(int, name.split("."))
        mask |= gpu_mask(problem.device_space, Allocation(origin=(r, n, g), extent=(1, 1, 1)))
    return mask


def extent_of(space: DeviceSpace, n: int) -> Extent:
    """P7: the extent of an allocation of `n` GPUs."""
    _, nodes, per_node = space
    if n <= per_node:
        return (1, 1, n)
    if n <= nodes * per_node:
        return (1, n // per_node, per_node)
    return (n // (nodes * per_node), nodes, per_node)


@dataclass(frozen=True)
class Rules:
    """The constraints on the plan of `vertex`, which invokes a model, in `problem`.

    `excluded` is a bit mask of GPUs that may not be used.
    """

    problem: Problem
    vertex: Vertex
    excluded: int = 0

    @cached_property
    def model(self) -> ModelSpec:
        """The vertex's model."""
        assert self.vertex.model is not None, "a host vertex has no plan"
        return self.problem.models[self.vertex.model]

    @cached_property
    def accumulation(self) -> bool:
        """Whether P4 and P5 hold as decided rather than as printed."""
        return cost_model(self.problem.options.cost_model).supports_accumulation

    @property
    def path(self) -> str:
        """Where the vertex is declared."""
        return f"graph.vertices[{self.problem.graph.vertices.index(self.vertex)}]"

    @property
    def minibatches(self) -> int:
        """M for training, 1 otherwise."""
        return self.problem.workload.minibatches if self.vertex.role == "training" else 1

    def local_batch(self, data_parallel: int) -> int | None:
        """Sequences that mb divides, B R / (P_d M); None if they are not a whole number."""
        share, rest = divmod(self.problem.workload.sequences, data_parallel * self.minibatches)
        return None if rest else share

    # P1 to P3 ----------------------------------------------------------------------------------------

    def tensor(self, tp: int) -> str | None:
        """P1: P_t divides N_g and n_h; n_kv divides P_t or P_t divides n_kv."""
        per_node, heads, groups = (
            self.problem.device_space[2],
            self.model.attention_heads,
            self.model.query_groups,
        )
        if tp < 1 or per_node % tp:
            return f"it must divide the {per_node} GPUs of a node"
        if heads % tp:
            return f"it must divide the {heads} attention heads of `{self.vertex.model}`"
        if groups % tp and tp % groups:
            return f"it must divide the {groups} key/value heads of `{self.vertex.model}`, or be a multiple"
        return None

    def pipeline(self, pp: int) -> str | None:
        """P2: P_p divides L, and is 1 or even."""
        if pp < 1 or self.model.layers % pp:
            return f"it must divide the {self.model.layers} layers of `{self.vertex.model}`"
        return "it must be 1 or even" if pp > 1 and pp % 2 else None

    def data(self, dp: int) -> str | None:
        """P3: P_d divides B and is at most |D|."""
        if dp < 1 or self.problem.workload.prompts % dp:
            return f"it must divide the {self.problem.workload.prompts} prompts of a step"
        gpus = size(self.problem.device_space)
        return f"it must not exceed the {gpus} GPUs there are" if dp > gpus else None

    # P6 to P8 ----------------------------------------------------------------------------------------

    def packing(self, pp: int, tp: int) -> str | None:
        """P6 and P8 for one replica: it divides a node, or its stages fill whole nodes."""
        per_node = self.problem.device_space[2]
        stages = min(pp, per_node // tp)
        if stages == 0 or (pp * tp <= per_node and per_node % (pp * tp)):
            return f"one replica takes {pp * tp} GPUs, which do not divide the {per_node} of a node"
        if pp % stages:
            return f"{stages} stages fit in a node, which do not divide the {pp} pipeline stages"
        return None

    def gpus(self, n: int) -> str | None:
        """P6 for the whole allocation: it divides a node or fills nodes, inside a rack or by whole racks."""
        racks, nodes, per_node = self.problem.device_space
        if n > racks * nodes * per_node:
            return f"{n} GPUs are more than the {racks * nodes * per_node} there are"
        if per_node % n and n % per_node:
            return f"{n} GPUs neither divide the {per_node} of a node nor fill whole nodes"
        needed = -(-n // per_node)
        if needed > nodes and needed % nodes:
            return f"{needed} nodes neither fit in a rack of {nodes} nor fill whole racks"
        return None

    def extent_of(self, n: int) -> Extent:
        """P7: the extent of an allocation of `n` GPUs."""
        return extent_of(self.problem.device_space, n)

    def extent(self, extent: Extent) -> str | None:
        """P7: the extent follows from its number of GPUs."""
        wanted = self.extent_of(extent[0] * extent[1] * extent[2])
        return None if extent == wanted else f"an allocation of that many GPUs has the extent {list(wanted)}"

    def origin(self, origin: Coordinate, extent: Extent) -> str | None:
        """P7: in each dimension the origin is a multiple of the extent; and it lies in the device space."""
        if not Allocation(origin=origin, extent=extent).fits(self.problem.device_space):
            return f"the allocation leaves the device space {list(self.problem.device_space)}"
        if any(o % e for o, e in zip(origin, extent, strict=True)):
            return f"it must be a multiple of the extent {list(extent)} in each dimension"
        return None

    def usable(self, allocation: Allocation) -> str | None:
        """No excluded GPU is used."""
        if gpu_mask(self.problem.device_space, allocation) & self.excluded:
            return "it contains excluded GPUs"
        return None

    def origins(self, extent: Extent) -> list[Coordinate]:
        """All legal origins of an allocation, in flattened order."""
        steps = [range(0, s - e + 1, e) for s, e in zip(self.problem.device_space, extent, strict=True)]
        return [
            (r, n, g)
            for r in steps[0]
            for n in steps[1]
            for g in steps[2]
            if self.usable(Allocation(origin=(r, n, g), extent=extent)) is None
        ]

    # P4, P5 and waves --------------------------------------------------------------------------------

    def microbatches(self, dp: int, pp: int, mb: int) -> str | None:
        """P4 and P5."""
        local = self.local_batch(dp)
        if local is None:
            return f"{self.minibatches} minibatches do not divide the sequences of {dp} replicas evenly"
        if pp == 1 and (not self.accumulation or self.vertex.role == "generation"):
            return None if mb == 1 else "without a pipeline it must be 1"
        if mb < 1 or local % mb:
            return f"it must divide the local batch of {local} sequences"
        if mb < pp:
            return f"it must be at least the {pp} pipeline stages"
        if not self.accumulation:
            enough = local // mb >= MIN_SEQUENCES
            return (
                None if enough else f"a microbatch of {local // mb} sequences has fewer than {MIN_SEQUENCES}"
            )
        length = self.problem.workload.total_length
        largest = next(local // d for d in divisors(local) if d >= pp)
        if local // mb * length < min(MIN_TOKENS, largest * length):
            return f"a microbatch of {local // mb * length} tokens has fewer than {MIN_TOKENS}"
        return None

    def microbatch_options(self, dp: int, pp: int) -> list[int]:
        """All numbers of microbatches that P4 and P5 allow."""
        local = self.local_batch(dp)
        return [] if local is None else [m for m in divisors(local) if self.microbatches(dp, pp, m) is None]

    def waves(self, dp: int, waves: int) -> str | None:
        """Waves are a generation's, and no more than its local sequences."""
        if waves == 1:
            return None
        if self.vertex.role != "generation":
            return "only a generation runs in waves"
        if not self.accumulation:
            return f"cost model `{self.problem.options.cost_model}` knows no waves"
        most = self.problem.workload.sequences // dp
        return None if 1 <= waves <= most else f"a replica has only {most} sequences"

    # Degrees beyond three ----------------------------------------------------------------------------

    def context_options(self) -> list[int]:
        """The P_c worth trying: powers of two that leave every rank `MIN_TOKENS` of the longest sequence."""
        most = max(1, self.problem.workload.total_length // MIN_TOKENS)
        options = [1 << i for i in range(most.bit_length())]
        return [cp for cp in options if self.context(cp) is None]

    def expert_options(self, ranks: int) -> list[int]:
        """All legal P_e over `ranks` ranks."""
        experts = self.model.experts
        options = [1] if experts is None else divisors(experts.routed)
        return [ep for ep in options if self.experts(ep, ranks) is None]

    def context(self, cp: int) -> str | None:
        """P_c splits sequences of training and teacher-forced inference."""
        if cp == 1:
            return None
        if not self.accumulation:
            return f"cost model `{self.problem.options.cost_model}` has three dimensions"
        if self.vertex.role == "generation":
            return "a generation is not split along its sequences"
        return None if cp >= 1 else "it must be at least 1"

    def experts(self, ep: int, ranks: int) -> str | None:
        """P_e divides the experts and the `ranks` P_t P_c P_d over which they may be spread."""
        if ep == 1:
            return None
        if not self.accumulation:
            return f"cost model `{self.problem.options.cost_model}` has three dimensions"
        if self.model.experts is None:
            return f"`{self.vertex.model}` has no experts"
        if ep < 1 or self.model.experts.routed % ep:
            return f"it must divide the {self.model.experts.routed} experts of `{self.vertex.model}`"
        return f"it must divide the {ranks} ranks of a pipeline stage" if ranks % ep else None
