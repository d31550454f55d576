"""A template that does not order what it must is refused by name, and every plan that is compiled passes."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ir_schema.stages import Executable, TemplateEdge, TemplateNode
from rpeg_rt.cli import main
from rpeg_rt.dependences import disordered
from rpeg_rt.dispatch import Dispatcher, Instance
from rpeg_rt.failure import PreflightError
from rpeg_rt.preflight import Machine, check
from rpeg_rt.realise import Realisation, Weights
from rpeg_rt.semantics import Train
from rpeg_rt.template import UnrealisableError
from tests.rpeg_rt.plans import executable, problem, write_plan
from tests.rpeg_rt.random_plans import random_plan, random_problem
from tests.rpeg_rt.test_algorithms import PRESETS
from tests.rpeg_rt.test_realise import plans
from tests.rpeg_rt.test_runs import DISJOINT, SPLIT

replace = msgspec.structs.replace
MACHINE = Machine(slots=4, memory_bytes=None)
STALE = executable(problem(quantiles=SPLIT, staleness=1), DISJOINT)
Change = Callable[[TemplateNode], TemplateNode]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 60), marks=pytest.mark.slow)])
def test_what_is_compiled_passes(preset: str, seeds: range) -> None:
    for seed in seeds:
        dice = random.Random(f"{preset} {seed}")
        made = random_problem(dice, dice.choice([2, 3, 4, 6, 8]), preset)
        assert disordered(Realisation(executable(made, random_plan(dice, made)))) == []


def node(kind: str, vertex: str, container: str | None = None, phase: int | None = None) -> int:
    """The id of the template node of STALE that this describes."""
    (found,) = (
        n.id
        for n in STALE.template
        if (n.kind, n.vertex, n.container) == (kind, vertex, container) and phase in (n.phase, n.src_phase)
    )
    return found


GEN, TRAIN, LAST = (
    node("Op", "actor_gen", phase=1),
    node("Op", "actor_train", phase=1),
    node("Op", "actor_gen", phase=3),
)
ROWS, WEIGHTS = node("Comm", "actor_train", "Y"), node("Comm", "actor_gen", "W_actor")
SECOND = node("Comm", "ref_inf", "Y", phase=2)


def changed(at: int, change: Change) -> Executable:
    return replace(STALE, template=tuple(change(n) if n.id == at else n for n in STALE.template))


def without(source: int) -> Change:
    """No edge from node `source`."""
    return lambda n: replace(n, edges=tuple(e for e in n.edges if e.source != source))


def also(source: int, distance: int = 0) -> Change:
    """An edge more."""
    return lambda n: replace(n, edges=(*n.edges, TemplateEdge(source=source, distance=distance)))


CHANGES: dict[str, tuple[int, Change, str]] = {
    "rows moved before they are there": (
        ROWS,
        without(LAST),
        r"Comm of Y for `actor_train` \(node 22\) reads `Y` of `actor_gen` phase 1 .*, but does not wait",
    ),
    "rows that nobody brings": (
        TRAIN,
        without(ROWS),
        r"of `actor_gen` phase 1 .*, which leaves it on other GPUs",
    ),
    "rows of another phase": (
        node("Op", "ref_inf", phase=2),
        without(SECOND),
        r"`ref_inf` phase 2 .* which is no more than phase 1",
    ),
    "weights that may not have arrived": (
        GEN,
        without(WEIGHTS),
        r"`actor_gen` phase 1 \(node 0\) needs version 1 of `actor` at step 2, but nothing makes sure",
    ),
    "weights replaced while they are read": (
        WEIGHTS,
        without(LAST),
        r"`actor_gen` phase \d .* needs version \d of `actor` at step \d, but nothing makes sure",
    ),
    "weights trained while they are sent": (
        TRAIN,
        without(WEIGHTS),
        r"Comm of W_actor .* needs version 1 of `actor` at step 1, but nothing makes sure",
    ),
    "trainings without an order": (
        TRAIN,
        without(TRAIN),
        r"`actor_train` .* write the weights of `actor` to one",
    ),
    "a version that is not there yet": (
        GEN,
        lambda n: replace(n, reads={"actor": 0}),
        r"needs version 1 of `actor` at step 1",
    ),
    "a version that is there no more": (
        TRAIN,
        lambda n: replace(n, reads={"actor": -1}),
        r"`actor_train` .* finds version",
    ),
    "another version sent": (
        WEIGHTS,
        lambda n: replace(n, source_step=-2),
        r"Comm of W_actor .* finds version",
    ),
    "a cycle in a step": (GEN, also(TRAIN), r"template nodes \[0, .* wait for each other inside one step"),
    "an operator that runs later": (
        GEN,
        lambda n: replace(n, first_step=1),
        "no Op for vertex `actor_gen` in some",
    ),
    "an operator that stops early": (
        TRAIN,
        lambda n: replace(n, lookahead=1),
        "no Op for vertex `actor_train` in",
    ),
    "a phase twice": (LAST, lambda n: replace(n, phase=2), "not have each phase of vertex `actor_gen` once"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_ordered_is_refused_by_name(name: str) -> None:
    at, change, words = CHANGES[name]
    with pytest.raises(PreflightError, match=words):
        check(changed(at, change), MACHINE)


def test_versions_that_are_swapped_are_refused() -> None:
    reads = {n.id: n.reads for n in STALE.template}
    swap = {GEN: reads[TRAIN], TRAIN: reads[GEN]}
    template = tuple(replace(n, reads=swap.get(n.id, n.reads)) for n in STALE.template)
    with pytest.raises(PreflightError, match=r"`actor_train` .* needs version 0 of `actor` at step 1"):
        check(replace(STALE, template=template), MACHINE)


def test_it_ends_the_program_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at, change, _ = CHANGES["rows moved before they are there"]
    path = write_plan(tmp_path, changed(at, change))
    assert main([str(path)]) == 3
    assert "\n  - Comm of Y for `actor_train` (node 22) reads `Y` of " in capsys.readouterr().err


class Memory:
    """What workers hold, without numbers: which nodes left their rows, and versions of weights by place."""

    def __init__(self, realisation: Realisation) -> None:
        self.realisation = realisation
        self.done: set[Instance] = set()
        self.held: dict[tuple[Weights, int], int | None] = {}
        self.reading: list[tuple[Instance, tuple[Weights, int]]] = []
        for place in realisation.places():
            for version in realisation.first_versions(place):
                self.held[place, version % place.copies] = version

    def uses(self, x: Instance) -> tuple[list[tuple[Weights, int]], list[tuple[Weights, int]]]:
        """Places and versions that an instance reads, and writes."""
        r, bound = self.realisation, self.realisation.bound[x.node]
        if bound.transfer is not None:
            version = r.transferred(bound.transfer, x.step)
            return [(bound.transfer.source, version)], [(bound.transfer.target, version)]
        if bound.node.kind != "Op":
            return [], []
        wanted = r.version(bound.node, x.step)
        reads = [(r.serving[v], wanted[r.serving[v].model]) for v in bound.vertices if v in r.serving]
        trained = [v for v in bound.vertices if isinstance(r.semantics.tasks[v], Train)]
        return reads, [(r.serving[v], x.step + 1) for v in trained]

    def start(self, x: Instance) -> bool:
        """Whether everything is there that the instance reads, and nobody reads what it will write."""
        reads, writes = self.uses(x)
        rows = (Instance(s, x.step) for i in self.realisation.bound[x.node].inputs for s in i.sources)
        fine = all(source in self.done for source in rows)
        fine &= all(self.held.get((w, v % w.copies)) == v for w, v in reads)
        written = [(w, v % w.copies) for w, v in writes]
        fine &= not any(slot in written for _, slot in self.reading)
        self.held |= dict.fromkeys(written)
        self.reading += [(x, (w, v % w.copies)) for w, v in reads]
        return fine

    def end(self, x: Instance) -> None:
        self.done.add(x)
        self.reading = [(y, slot) for y, slot in self.reading if y != x]
        self.held |= {(w, v % w.copies): v for w, v in self.uses(x)[1]}


def goes_well(realisation: Realisation, dice: random.Random, steps: int = 6) -> bool:
    """A run in which nodes take any time, and as many run at once as their edges allow."""
    dispatcher = Dispatcher(
        realisation.executable.template, steps, {i: frozenset() for i in realisation.bound}, frozenset()
    )
    memory, running = Memory(realisation), list[Instance]()
    while not dispatcher.finished:
        started = list(iter(dispatcher.next, None))
        dice.shuffle(started)
        if not all(memory.start(x) for x in started):
            return False
        running += started
        slow = dice.random() < 0.5 and len(running) > 1  # the earliest takes longest
        x = running.pop(dice.randrange(1, len(running)) if slow else dice.randrange(len(running)))
        memory.end(x)
        dispatcher.complete(x)
    return True


@pytest.mark.parametrize("case", range(4))
def test_without_any_edge_a_plan_is_refused_or_runs_well_in_any_order(case: int) -> None:
    whole, refused, dice = plans()[case], 0, random.Random(case)
    assert all(goes_well(Realisation(whole), dice) for _ in range(20))
    for i, n in enumerate(whole.template):
        for k in range(len(n.edges)):
            fewer = replace(n, edges=n.edges[:k] + n.edges[k + 1 :])
            template = (*whole.template[:i], fewer, *whole.template[i + 1 :])
            try:
                realisation = Realisation(replace(whole, template=template))
            except UnrealisableError:
                refused += 1
                continue
            if disordered(realisation):
                refused += 1
            else:
                assert all(goes_well(realisation, dice) for _ in range(20)), (n.id, n.edges[k])
    assert refused > len(whole.template)
