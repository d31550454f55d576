"""When a run pauses for a held-out evaluation: controller and verifier must agree on it."""

from rpeg_rt.dispatch import Instance
from rpeg_rt.realise import Realisation
from rpeg_rt.semantics import Generate, Train


def policy_of(realisation: Realisation) -> str | None:
    """The vertex that trains the policy to be examined: that of a model that generates, or learns from
    pairs."""
    tasks, vertices = realisation.semantics.tasks, realisation.vertices
    generating = {vertices[name].model for name, task in tasks.items() if isinstance(task, Generate)}
    return next(
        (
            name
            for name, task in tasks.items()
            if isinstance(task, Train)
            and task.policy
            and (vertices[name].model in generating or task.tokens in realisation.from_outside)
        ),
        None,
    )


def pause(realisation: Realisation, x: Instance, every: int | None, steps: int) -> int | None:
    """After how many steps the run pauses for an evaluation, if completed node `x` is what it waited for: the
    training of the policy, every `every` steps but not at the end."""
    done = x.step + 1
    if every is None or done % every or done >= steps:
        return None
    bound = realisation.bound[x.node]
    trains = bound.node.kind == "Op" and policy_of(realisation) in bound.vertices
    return done if trains else None
