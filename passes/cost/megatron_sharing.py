"""Processors that the workers of a node share (`docs/cost-megatron.md`): how much longer an operator takes,
and for how long it keeps processors busy that others need as well.
"""

import math
from typing import NamedTuple

from ir_schema.hardware import Hardware
from passes.cost.base import Parts
from passes.cost.megatron_memory import added


class Priced(NamedTuple):
    """An operator's time by parts [s], and for how long each of its workers keeps a processor of its node
    busy while all of these are at work; 0 where a worker has processors of its own."""

    parts: Parts
    busy: float = 0.0

    def times(self, count: float) -> "Priced":
        """The same, `count` times."""
        return Priced({name: count * seconds for name, seconds in self.parts.items()}, count * self.busy)


def in_turn(*prices: Priced) -> Priced:
    """One after another."""
    return Priced(added(*(p.parts for p in prices)), math.fsum(p.busy for p in prices))


def shared(h: Hardware, workers: int, parts: Parts, work: float) -> Priced:
    """An operator whose workers, so many on a node, take `parts` if nothing is shared, and compute for `work`
    seconds of them each. Messages are in part the processors' work as well."""
    if not h.node_processors:
        return Priced(parts)
    crowd = max(1.0, workers / h.node_processors)
    path, alike = parts["gemm"] + parts["bubble"], parts["opt"] + parts.get("once", 0.0)
    messages = sum(parts.get(name, 0.0) for name in ("tp", "cp", "ep", "pp", "dp"))
    # Stages of a pipeline wait for one another: fewer are at work on average.
    slow, slow_path = _slow(h, workers), _slow(h, workers * work / path if path else 1.0)
    alone, together = slow_path * path + messages, crowd * (slow * work + h.message_work * messages)
    sharing = max(alone, together) - path - messages + (slow * crowd - 1.0) * alike
    # All at work do most together, unless contention is so large that one alone does more.
    slowest = min(_slow(h, h.node_processors), max(1.0, h.node_processors))
    return Priced(parts | {"sharing": sharing}, slowest * (work + alike) + h.message_work * messages)


def _slow(h: Hardware, at_work: float) -> float:
    """How much longer computation takes than that of one worker, with so many at work."""
    return 1.0 + h.contention * max(0.0, min(at_work, h.node_processors) - 1.0)
