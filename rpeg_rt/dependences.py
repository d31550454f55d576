"""Whether the edges of a template order all that must be ordered, found out before anything runs.

Which instances precede which is followed over a few steps of a dry run. Rows must be left before they are
read. Of the weights at one place, every write and every read of one storage must be ordered, and a read must
find its version there. Nothing else counts: that nodes share GPUs orders nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rpeg_rt.dispatch import Dispatcher, Instance, Stuck
from rpeg_rt.realise import Realisation, Weights
from rpeg_rt.semantics import Train
from rpeg_rt.template import describe

_MORE_STEPS = 3
"""Steps beyond the last in which an edge appears first."""


def disordered(realisation: Realisation) -> list[str]:
    """What a fresh run of the plan could do too early, or never: one sentence for each two nodes."""
    template = realisation.executable.template
    reach = max((e.distance + e.first_step for n in template for e in n.edges), default=0)
    try:
        dispatcher = Dispatcher(
            template, reach + _MORE_STEPS, realisation.reservations(), realisation.generation
        )
    except Stuck as exc:
        return [str(exc)]
    done: list[Instance] = []
    while not dispatcher.finished:
        started = list(iter(dispatcher.next, None))
        if not started:
            return ["the template cannot be executed: its nodes wait for each other across steps"]
        for x in started:
            dispatcher.complete(x)
        done += started
    order = _Order(dispatcher, done)
    return list(dict.fromkeys([*_rows(realisation, order), *_weights(realisation, order)]))


class _Order:
    """The instances of a run, each after its predecessors, and which must be complete before which."""

    def __init__(self, dispatcher: Dispatcher, instances: Sequence[Instance]) -> None:
        self.instances = instances
        self._position = {x: i for i, x in enumerate(instances)}
        self._before: list[int] = []  # of each instance, a bit for every other that precedes it
        for x in instances:
            bits = 0
            for p in map(self._position.__getitem__, dispatcher.predecessors(x)):
                bits |= self._before[p] | 1 << p
            self._before.append(bits)

    def precedes(self, x: Instance, y: Instance) -> bool:
        """Whether `y`, which is in the run, cannot start before `x` is complete; not if that is not there."""
        return x in self._position and bool(self._before[self._position[y]] >> self._position[x] & 1)


def _rows(realisation: Realisation, order: _Order) -> Iterator[str]:
    """Rows that are read before they are there, or where they are not."""
    for node, bound in realisation.bound.items():
        steps = [x.step for x in order.instances if x.node == node]
        for read, source in ((r, s) for r in bound.inputs for s in r.sources):
            wanted = f"{_name(realisation, node)} reads `{read.container}` of {_name(realisation, source)}, "
            if not all(order.precedes(Instance(source, k), Instance(node, k)) for k in steps):
                yield wanted + "but does not wait for it"
            left, phase = realisation.bound[source], realisation.nodes[source].src_phase
            if bound.node.kind != "Op":
                continue
            here, there = (realisation.destination(b.node) for b in (bound, left))
            if here and there and here != there:
                yield wanted + "which leaves it on other GPUs"
            if phase is not None and (bound.node.phases == 1 or phase != bound.node.phase):
                yield wanted + f"which is no more than phase {phase}"


@dataclass
class _Storage:
    """What happens to the weights in one storage, in the order of the dry run: which version is there
    at first, and who then writes or reads which."""

    initial: int | None
    writes: list[tuple[Instance, int]] = field(default_factory=list)
    reads: list[tuple[Instance, int]] = field(default_factory=list)


def _weights(realisation: Realisation, order: _Order) -> Iterator[str]:
    """Weights that are read before their version is there, or when it is there no more; one of a kind."""
    for (place, _), storage in _storages(realisation, order).items():
        told: set[int] = set()
        writers = [writer for writer, _ in storage.writes]
        for earlier, later in pairwise(writers):
            if later.node not in told and not order.precedes(earlier, later):
                told.add(later.node)
                yield (
                    f"{_name(realisation, earlier.node)} and {_name(realisation, later.node)} write the "
                    f"weights of `{place.model}` to one place, but the one does not wait for the other"
                )
        for reader, version in storage.reads:
            found = storage.initial
            for writer, written in storage.writes:
                if order.precedes(writer, reader):
                    found = written
                elif writer != reader and not order.precedes(reader, writer):
                    found = None
                    break
            if found != version and reader.node not in told:
                told.add(reader.node)
                yield (
                    f"{_name(realisation, reader.node)} needs version {version} of `{place.model}` at step "
                    f"{reader.step}, but "
                    + ("nothing makes sure that it is there" if found is None else f"finds version {found}")
                )


def _storages(realisation: Realisation, order: _Order) -> dict[tuple[Weights, int], _Storage]:
    """What happens to the weights of trained models, by place and position in its ring."""
    found: dict[tuple[Weights, int], _Storage] = {}
    trainable = realisation.problem.graph.trainable

    def at(place: Weights, version: int) -> _Storage:
        slot = version % place.copies
        if (place, slot) not in found:
            initial = [v for v in realisation.first_versions(place) if v % place.copies == slot]
            found[place, slot] = _Storage(initial[-1] if initial else None)
        return found[place, slot]

    for x in order.instances:
        bound = realisation.bound[x.node]
        if bound.transfer is not None:
            version = realisation.transferred(bound.transfer, x.step)
            at(bound.transfer.source, version).reads.append((x, version))
            at(bound.transfer.target, version).writes.append((x, version))
        elif bound.node.kind == "Op":
            wanted = realisation.version(bound.node, x.step)
            for vertex in bound.vertices:
                place = realisation.serving.get(vertex)
                if place is None or place.model not in trainable:
                    continue
                at(place, wanted[place.model]).reads.append((x, wanted[place.model]))
                if isinstance(realisation.semantics.tasks[vertex], Train):
                    at(place, x.step + 1).writes.append((x, x.step + 1))
    return found


def _name(realisation: Realisation, node: int) -> str:
    return f"{describe(realisation.nodes[node])} (node {node})"
