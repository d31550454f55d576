"""Moving tensors between workers: rows of containers and fragments of weights.

One message per pair of ranks and call. All receives and sends of a call are posted before any is waited
for, so ranks that run the calls they take part in, in one common order, cannot wait in a circle.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from rpeg_rt.engine.engine import Shard
from rpeg_rt.engine.routing import Fragment
from rpeg_rt.engine.sharding import Slices
from rpeg_rt.engine.shim import device


def exchange(sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> int:
    """Send tensors to, and fill contiguous tensors from, other ranks (keys); returns the bytes sent."""
    contiguous = {rank: tensor.contiguous() for rank, tensor in sends.items()}
    works = [dist.irecv(tensor, rank) for rank, tensor in sorted(receives.items())]
    works += [dist.isend(tensor, rank) for rank, tensor in sorted(contiguous.items())]
    for work in works:
        if work is not None:
            work.wait()
    return sum(t.numel() * t.element_size() for t in contiguous.values())


def move_fragments(
    fragments: Sequence[Fragment],
    source: Sequence[Shard] | None,
    destination: Sequence[Shard] | None,
    dtype: torch.dtype,
) -> int:
    """Carry out this rank's part of a route; `source` / `destination` are None where it holds neither.

    Every rank is given the whole route in the same order; `dtype` is the source's. Fragments of a rank
    for itself are copied locally. Returns the bytes that this rank sent to others.
    """
    me = dist.get_rank()
    held, wanted = _by_name(source), _by_name(destination)
    outgoing: dict[int, list[Tensor]] = defaultdict(list)
    incoming: dict[int, list[Tensor]] = defaultdict(list)
    for fragment in fragments:
        if fragment.source == fragment.destination == me:
            _within(wanted, fragment).copy_(_within(held, fragment))
        elif fragment.source == me:
            outgoing[fragment.destination].append(_within(held, fragment))
        elif fragment.destination == me:
            incoming[fragment.source].append(_within(wanted, fragment))
    sends = {rank: torch.cat([p.reshape(-1) for p in parts]) for rank, parts in outgoing.items()}
    receives = {
        rank: torch.empty(sum(p.numel() for p in parts), dtype=dtype, device=device())
        for rank, parts in incoming.items()
    }
    sent = exchange(sends, receives)
    for rank, parts in incoming.items():
        for part, values in zip(parts, torch.split(receives[rank], [p.numel() for p in parts]), strict=True):
            part.copy_(values.view(part.shape))
    return sent


def _by_name(shards: Sequence[Shard] | None) -> dict[str, list[Shard]]:
    found: dict[str, list[Shard]] = defaultdict(list)
    for shard in shards or ():
        found[shard.name].append(shard)
    return found


def _within(shards: Mapping[str, Sequence[Shard]], fragment: Fragment) -> Tensor:
    """The view of the fragment in the shard that contains it."""
    for shard in shards[fragment.name]:
        if _contains(shard.slices, fragment.slices):
            local = zip(fragment.slices, shard.slices, strict=True)
            return shard.tensor[tuple(slice(f.start - s.start, f.stop - s.start) for f, s in local)]
    raise ValueError(f"this rank holds no shard with {fragment.name}{list(fragment.slices)}")


def _contains(outer: Slices, inner: Slices) -> bool:
    return all(o.start <= i.start and i.stop <= o.stop for o, i in zip(outer, inner, strict=True))
