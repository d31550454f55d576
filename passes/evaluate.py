"""The whole evaluator: a configuration through unroll, lower, cost and schedule."""

from ir_schema.stages import Configuration, Scheduled
from passes.cost import cost
from passes.lower import lower
from passes.schedule import schedule
from passes.unroll import unroll


def evaluate(configuration: Configuration) -> Scheduled:
    """The scheduled stage of `configuration`."""
    return schedule(cost(lower(unroll(configuration))))
