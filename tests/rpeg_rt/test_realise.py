"""A plan that was changed by hand and given a new id is refused or bound, but never a crash."""

import random
from functools import cache
from typing import Any

import msgspec
import pytest

from ir_schema.problem import Problem
from ir_schema.stages import Executable, TemplateNode
from rpeg_rt.failure import PreflightError
from rpeg_rt.preflight import Machine, check
from rpeg_rt.realise import Realisation
from tests.rpeg_rt.plans import executable, problem
from tests.rpeg_rt.test_runs import DISJOINT, MIXED, OVERLAP, SPLIT

replace = msgspec.structs.replace
FIELDS = [
    f
    for f in TemplateNode.__struct_fields__
    if f not in ("id", "edges", "predecessors", "time_ns", "parts_s")
]
OPTIONAL = ("phase", "container", "model", "source", "source_step", "src_phase", "allocation", "layout")
MACHINE = Machine(slots=4, memory_bytes=None)


@cache
def plans() -> list[Executable]:
    return [
        executable(problem(fuse=True), dict.fromkeys(DISJOINT, DISJOINT["critic_train"])),
        executable(problem(quantiles=SPLIT, staleness=1), DISJOINT),
        executable(problem(), MIXED),
        executable(problem(reward_model=True), OVERLAP),
    ]


def changed_template(dice: random.Random, e: Executable) -> Executable:
    """One node more, less, or with a field or the edges of another one."""
    nodes = list(e.template)
    i, other = dice.randrange(len(nodes)), dice.choice(nodes)
    match dice.choice(["drop", "repeat", "edges", "field", "field", "field", "none"]):
        case "drop":
            del nodes[i]
        case "repeat":
            nodes.append(replace(nodes[i], id=1 + max(n.id for n in nodes)))
        case "edges":
            nodes[i] = replace(nodes[i], edges=dice.choice([(), other.edges, nodes[i].edges[:-1]]))
        case "field":
            field = dice.choice(FIELDS)
            value: Any = getattr(other, field)
            nodes[i] = replace(nodes[i], **{field: dice.choice([value, 7]) if type(value) is int else value})
        case "none":
            nodes[i] = replace(nodes[i], **{dice.choice(OPTIONAL): None})
    return replace(e, template=tuple(nodes))


def changed_plan(dice: random.Random, e: Executable) -> Executable:
    """One placement less, elsewhere, or with other degrees."""
    plan = dict(e.plan)
    name = dice.choice(list(plan))
    match dice.choice(["drop", "copy", "origin", "microbatches", "degree"]):
        case "drop":
            del plan[name]
        case "copy":
            plan[name] = plan[dice.choice(list(plan))]
        case "origin":
            plan[name] = replace(plan[name], origin=(0, 0, dice.choice([1, 3, 9])))
        case "microbatches":
            plan[name] = replace(plan[name], microbatches=dice.choice([0, 3, 100]))
        case "degree":
            plan[name] = replace(plan[name], data_parallel=dice.choice([2, 4, 5]))
    return replace(e, plan=plan)


def changed_graph(dice: random.Random, e: Executable) -> Executable:
    """One vertex with a field of another one."""
    made: Problem = e.problem
    vertices = list(made.graph.vertices)
    i, field = dice.randrange(len(vertices)), dice.choice(["reads", "writes", "model", "role", "name"])
    vertices[i] = replace(vertices[i], **{field: getattr(dice.choice(vertices), field)})
    return replace(e, problem=replace(made, graph=replace(made.graph, vertices=tuple(vertices))))


@pytest.mark.parametrize("change", [changed_template, changed_plan, changed_graph])
def test_a_changed_plan_is_no_crash(change: Any) -> None:
    refused = 0
    for seed in range(250):
        dice = random.Random(seed)
        changed = change(dice, dice.choice(plans()))
        try:
            check(changed, MACHINE)
        except PreflightError:
            refused += 1
    assert refused > 25


def test_training_is_given_what_the_plan_leaves_free() -> None:
    """Of float64, whose predictions are those of float32."""
    fused, apart, *_ = plans()
    for made, models in ((fused, 2), (apart, 1)):
        for name, shown in (("megatron", True), ("paper", False), ("other", False)):
            prediction = replace(made.prediction, cost_model=name)
            realisation = Realisation(replace(made, prediction=prediction))
            for place in realisation.places():
                peaks = [prediction.devices[d].peak_bytes for d in place.allocation.device_names()]
                free = (prediction.score.memory_limit_bytes - 2 * max(peaks)) // models
                assert realisation.room(place) == (free if place.training and shown else 0)
                assert free > 0
    devices = {d: memory for d, memory in apart.prediction.devices.items() if d != "0.0.2"}
    prediction = replace(apart.prediction, cost_model="megatron", devices=devices)
    realisation = Realisation(replace(apart, prediction=prediction))
    assert {realisation.room(p) for p in realisation.places() if p.training} == {0}
