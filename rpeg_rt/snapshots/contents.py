"""Which versions of which model a run holds between two steps, where, and which worker writes what."""

from collections.abc import Sequence

from ir_schema.model import ModelSpec
from ir_schema.problem import Layout
from rpeg_rt.engine.routing import holders
from rpeg_rt.engine.sharding import Slices
from rpeg_rt.realise import Realisation, Weights
from rpeg_rt.semantics import Train


def trainer_of(realisation: Realisation, model: str) -> Weights:
    """The place where a trained model's newest version and optimizer state are."""
    return next(
        realisation.serving[vertex]
        for vertex, task in realisation.semantics.tasks.items()
        if isinstance(task, Train) and realisation.serving[vertex].model == model
    )


def places_of(realisation: Realisation, model: str, step: int) -> dict[int, Weights]:
    """After `step` steps: every version of a trained model that later steps may read, and where it is."""
    found: dict[int, Weights] = {}
    for place in realisation.places():
        if place.model == model and place.lasting and not place.training:
            for version in realisation.ring(place, step):
                found.setdefault(version, place)
    return dict(sorted((found | {step: trainer_of(realisation, model)}).items()))


def written_by(rank: int, spec: ModelSpec, ranks: Sequence[int], layout: Layout) -> dict[str, list[Slices]]:
    """The slices of weights in a placed layout that worker `rank` writes: those that hold one take turns."""
    found: dict[str, list[Slices]] = {}
    turn = 0
    for name, parts in holders(spec, (ranks, layout)).items():
        for slices, holding in parts:
            if holding[turn % len(holding)] == rank:
                found.setdefault(name, []).append(slices)
            turn += 1
    return found
