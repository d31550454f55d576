"""Alpha-beta times [s] of the communication primitives (semantics: Cost); zero for one participant."""

from ir_schema.hardware import AlphaBeta


def all_reduce(link: AlphaBeta, nbytes: float, participants: int) -> float:
    """2(p-1) alpha + 2 (p-1)/p M beta, M the per-GPU buffer."""
    if participants == 1:
        return 0.0
    p = participants
    return 2 * (p - 1) * link.alpha + 2 * (p - 1) / p * nbytes * link.beta


def all_gather(link: AlphaBeta, nbytes: float, participants: int) -> float:
    """(p-1) alpha + (p-1)/p M beta, M the gathered buffer."""
    if participants == 1:
        return 0.0
    p = participants
    return (p - 1) * link.alpha + (p - 1) / p * nbytes * link.beta


def reduce_scatter(link: AlphaBeta, nbytes: float, participants: int) -> float:
    """(p-1) alpha + (p-1)/p M beta, M the per-GPU input buffer."""
    return all_gather(link, nbytes, participants)


def point_to_point(link: AlphaBeta, nbytes: float) -> float:
    """alpha + M beta."""
    return link.alpha + nbytes * link.beta
