"""The changes that are tried: each is another problem, in which the present plan may or may not be legal.

The problem is one whose structural choices are made, as a compiled plan carries it. What it does not say
any more (GPUs that were excluded, fields that were fixed) does not bind the changes.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ir_schema.device import DeviceSpace
from ir_schema.hardware import AlphaBeta, Tiers
from ir_schema.problem import Container, Problem, Workload
from passes.analysis import Analysis
from passes.search.sharing import refusals, share
from passes.structure import Plan
from passes.verify import verify
from rpegc.table import size
from rpegc.whatif.data import Kind

replace = msgspec.structs.replace


@dataclass(frozen=True)
class Change:
    """One change: `text` says it, `problem` is what it makes of the present one.

    `moved_from` names, for a vertex that is new, the present vertex whose place it takes.
    """

    kind: Kind
    text: str
    problem: Problem
    changes_training: bool = False
    moved_from: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def carry(self, plan: Plan) -> Plan:
        """The present problem's `plan` for the vertices of the changed one."""
        placed = [v.name for v in self.problem.graph.vertices if v.model is not None]
        return {v: plan[self.moved_from.get(v, v)] for v in placed}


def changes(problem: Problem, kinds: Sequence[Kind]) -> tuple[list[Change], list[str]]:
    """The changes of `kinds` that `problem` admits, and in words those that it does not."""
    admitted, left_out = [], []
    for make in (_staleness, _sharing, _fusion, _splitting, _nodes, _network, _memory, _responses):
        for change in make(problem):
            if change.kind not in kinds:
                continue
            wrong = verify(change.problem)
            if wrong:
                left_out.append(f"{change.text}: {wrong[0].message}")
            else:
                admitted.append(change)
    return admitted, left_out


def _staleness(problem: Problem) -> Iterator[Change]:
    """One step more for each trainable model, and for all of them."""
    models = problem.graph.trainable
    tau = {m: problem.graph.staleness.get(m, 0) for m in models}
    for chosen in dict.fromkeys([*((m,) for m in models), models]):
        later = {m: t + (m in chosen) for m, t in tau.items()}
        text = ", ".join(f"staleness of {m} {tau[m]} -> {later[m]}" for m in chosen)
        graph = replace(problem.graph, staleness=later)
        needed = 2 * max(later.values(), default=0) + 2
        short = f"{text}: {problem.options.steps} steps are too few to see the steady state"
        notes = (short,) if problem.options.steps < needed else ()
        yield Change("staleness", text, replace(problem, graph=graph), changes_training=True, notes=notes)


def _sharing(problem: Problem) -> Iterator[Change]:
    """Every two models that can share a backbone, sharing one; the training takes the policy's place."""
    for policy, value in itertools.permutations(problem.graph.trainable, 2):
        if not refusals(problem, policy, value):
            shared = share(problem, policy, value)
            before = {v.name for v in problem.graph.vertices}
            training = Analysis(problem).training[policy].name
            moved = {v.name: training for v in shared.graph.vertices if v.name not in before}
            text = f"{policy} and {value} share a backbone"
            yield Change("sharing", text, shared, changes_training=True, moved_from=moved)


def _fusion(problem: Problem) -> Iterator[Change]:
    """Without the fusion that there is, or else with any that is possible."""
    present, analysis = problem.options.fuse, Analysis(problem)
    pairs: list[tuple[str, str] | None] = [None]
    if present is None:
        trainings = [v.name for v in problem.graph.vertices if v.role == "training"]
        pairs = [p for p in itertools.combinations(trainings, 2) if analysis.is_acyclic(merge=p)]
    for pair in pairs:
        text = f"{' and '.join(pair)} fused" if pair else f"{' and '.join(present or ())} not fused"
        yield Change("fusion", text, replace(problem, options=replace(problem.options, fuse=pair)))


def _splitting(problem: Problem) -> Iterator[Change]:
    """Generation split into phases, if it is not, or the other way round."""
    if len(problem.workload.length_quantiles) < 2:
        return
    if problem.options.split == "never":
        text, options = "generation split into phases", replace(problem.options, split="auto")
    else:
        text, options = "generation not split into phases", replace(problem.options, split="never")
    yield Change("splitting", text, replace(problem, options=options))


def _nodes(problem: Problem) -> Iterator[Change]:
    """Twice and half the nodes: whole racks where there are several, else nodes in the rack."""
    racks, nodes, per_node = problem.device_space
    spaces: list[DeviceSpace] = [(2 * racks, nodes, per_node) if racks > 1 else (1, 2 * nodes, per_node)]
    if racks > 1 and racks % 2 == 0:
        spaces.append((racks // 2, nodes, per_node))
    elif nodes % 2 == 0:
        spaces.append((racks, nodes // 2, per_node))
    for space in spaces:
        text = f"nodes {racks * nodes} -> {space[0] * space[1]}"
        yield Change("nodes", text, replace(problem, device_space=space))


def _network(problem: Problem) -> Iterator[Change]:
    """Half the latency and twice the bandwidth between nodes and between racks."""
    if problem.device_space[0] * problem.device_space[1] == 1:
        return
    names = ("collective", "point_to_point", "all_gather", "reduce_scatter")
    present = {name: getattr(problem.hardware, name) for name in names}
    faster = {name: _faster(tiers) for name, tiers in present.items() if tiers is not None}
    hardware = replace(problem.hardware, **faster)
    yield Change("network", "network between nodes 2x as fast", replace(problem, hardware=hardware))


def _faster(tiers: Tiers) -> Tiers:
    def twice(link: AlphaBeta) -> AlphaBeta:
        return AlphaBeta(alpha=link.alpha / 2, beta=link.beta / 2)

    return replace(tiers, inter=twice(tiers.inter), rack=twice(tiers.rack))


def _memory(problem: Problem) -> Iterator[Change]:
    """1.5 and 2 times the memory of a GPU."""
    for factor in (1.5, 2.0):
        nbytes = factor * problem.hardware.memory_bytes
        hardware = replace(problem.hardware, memory_bytes=nbytes)
        yield Change("memory", f"memory {factor:g}x: {size(nbytes)}", replace(problem, hardware=hardware))


def _responses(problem: Problem) -> Iterator[Change]:
    """Responses half and twice as long, their distribution stretched with them."""
    workload = problem.workload
    for length in (workload.response_length // 2, 2 * workload.response_length):
        if length < 1:
            continue
        factor = length / workload.response_length
        quantiles = tuple((f, max(1, round(t * factor))) for f, t in workload.length_quantiles)
        longer = replace(workload, response_length=length, length_quantiles=quantiles)
        containers = tuple(_resized(c, workload, longer) for c in problem.graph.containers)
        changed = replace(problem, workload=longer, graph=replace(problem.graph, containers=containers))
        text = f"response length {workload.response_length} -> {length}"
        yield Change("responses", text, changed, changes_training=True)


def _resized(container: Container, before: Workload, after: Workload) -> Container:
    """A container that holds one element per token of the responses, or of prompts and responses, follows
    their length; any other keeps its size."""
    if container.weights_of is None:
        if container.elements == before.sequences * before.total_length:
            return replace(container, elements=after.sequences * after.total_length)
        if container.elements == before.sequences * before.response_length:
            return replace(container, elements=after.sequences * after.response_length)
    return container
