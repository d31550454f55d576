"""How many operations the runtime's own code dispatches (`docs/cost-megatron.md`).

They were counted with a `TorchDispatchMode` around an operator on one worker, for 2 and 4 layers and 1 and 2
microbatches, between which the counts are linear: views and allocations included, the backward pass too.
`tests/rpeg_rt/bench/test_operations.py` counts them again. They do not depend on shapes.
"""

from typing import NamedTuple

from ir_schema.hardware import Dispatch


class Operations(NamedTuple):
    """Of a layer in every pass; of what lies at the ends of the model in every pass, and how many more of it
    a vocabulary head needs; of a layer, and otherwise, once in an operator (of training: in an update)."""

    layer: int
    ends: int
    vocabulary: int
    layer_once: int
    once: int


_UNIFORM = 18
"""What the random numbers of a round take, which NumPy computes, as so many operations."""
PREFILL = Operations(79, 99 + _UNIFORM, 0, 8, 39)
DECODE = Operations(58, 55 + _UNIFORM, 0, 0, 0)
FORWARD = Operations(66, 70, 23, 0, 21)
TRAINING = Operations(253, 193, 43, 114, 164)


class Dispatched(NamedTuple):
    """Seconds for which a pass dispatches: in each layer, and at the model's ends."""

    layer: float = 0.0
    ends: float = 0.0


def dispatched(dispatch: Dispatch | None, operations: Operations, *, vocabulary: bool) -> Dispatched:
    """What dispatching the operations of a pass takes, of a model with or without a vocabulary head."""
    if dispatch is None:
        return Dispatched()
    each, ends = seconds_each(dispatch, operations), operations.ends + operations.vocabulary * vocabulary
    return Dispatched(operations.layer * each, ends * each)


def dispatched_once(dispatch: Dispatch | None, operations: Operations, layers: float) -> float:
    """What an operator, or an update, dispatches outside of its passes, in seconds."""
    if dispatch is None:
        return 0.0
    return (operations.layer_once * layers + operations.once) * seconds_each(dispatch, operations)


def seconds_each(dispatch: Dispatch, operations: Operations) -> float:
    """What one of these operations takes."""
    if operations is TRAINING:
        return dispatch.training
    return dispatch.forward if operations is FORWARD else dispatch.decoding
