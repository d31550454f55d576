"""The communications of which operators and transfers consist, one at a time."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from rpeg_rt.bench.jobs import Transfer
from rpeg_rt.engine.shim import device


def transfer(subject: Transfer, ranks: Sequence[int], group: dist.ProcessGroup) -> Callable[[], object]:
    """A call of the communication among `ranks`, on buffers that are made now. Collective."""
    count, elements = len(ranks), subject.nbytes // 4
    if subject.primitive == "point_to_point":
        return _message(elements, ranks)
    share = -(-elements // count)
    whole, part = torch.zeros(share * count, device=device()), torch.zeros(share, device=device())
    if subject.primitive == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if subject.primitive == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def _message(elements: int, ranks: Sequence[int]) -> Callable[[], object]:
    """One way, as a pipeline's stages talk: a worker's calls send and receive in turn, so that none can run
    ahead."""
    first, second = ranks
    buffer, me = torch.zeros(elements, device=device()), dist.get_rank()
    there = True

    def call() -> None:
        nonlocal there
        sender, receiver = (first, second) if there else (second, first)
        there = not there
        if me == sender:
            dist.send(buffer, receiver)
        else:
            dist.recv(buffer, sender)

    return call
