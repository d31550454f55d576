"""What is measured of a machine: the jobs whose results a hardware file is fitted to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from ir_schema.base import Tier
from ir_schema.samples import (
    CopySample,
    LayerSample,
    Memory,
    Primitive,
    ProductSample,
    TransferSample,
)
from rpeg_rt.bench.crew import Workers
from rpeg_rt.bench.jobs import Copy, Effort, Job, LayerRest, Occupancy, Product, Result, Transfer

_COLLECTIVES: tuple[Primitive, ...] = ("all_reduce", "all_gather", "reduce_scatter")
_DISPATCHES = 50
"""Of a worker that is asked for nothing."""


@dataclass(frozen=True)
class Sweep:
    """Which shapes are measured, and how long each. The rows of products are swept at width `widths[-1]`,
    their widths at `rows[-1]` rows; `oblong` are rows, inner and columns of others, as layers have them: from
    narrow to wide, and back. `layer` is (hidden, sequences, tokens) of the reference."""

    width: int
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    oblong: tuple[tuple[int, int, int], ...]
    copied: int
    layer: tuple[int, int, int]
    messages: tuple[int, ...]
    effort: Effort


def sweep(gpu: bool, quick: bool, rounds: int) -> Sweep:
    """The shapes for GPUs, or for processors, and the effort of one round."""
    step = 2 if quick else 1
    effort = Effort(0.05, 5, 25) if quick else Effort(0.2, 9, 50).shared(rounds)
    if gpu:
        return Sweep(
            width=2,
            rows=(1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)[::-step][::-1],
            widths=(128, 256, 512, 1024, 2048, 4096)[::-step][::-1],
            oblong=_oblong((16, 512), ((2048, 8192), (4096, 12288))[::step]),
            copied=1 << 31,
            layer=(4096, 4, 2048),
            messages=tuple(1 << k for k in range(12, 29, 2 * step)),
            effort=effort,
        )
    return Sweep(
        width=4,
        rows=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512)[::-step][::-1],
        widths=(16, 32, 64, 128, 256, 512)[::-step][::-1],
        oblong=_oblong((8, 64), ((64, 192), (192, 640))[::step]),
        copied=1 << 26,
        layer=(512, 8, 64),
        messages=tuple(1 << k for k in range(8, 25, 2 * step)),
        effort=effort,
    )


def _oblong(rows: Sequence[int], sides: Sequence[tuple[int, int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple((m, *pair) for m in rows for a, b in sides for pair in ((a, b), (b, a)))


Sample = ProductSample | CopySample | LayerSample | TransferSample


def slowest(results: Sequence[Result]) -> tuple[float, ...]:
    """Seconds by repetition, of the slowest worker in each."""
    return tuple(max(times) for times in zip(*(r.seconds for r in results), strict=True))


def shape_jobs(nodes: Sequence[Sequence[int]], gpu: bool, s: Sweep) -> Iterator[tuple[str, Job, Sample]]:
    """What each kernel's job is called, the job, and its sample without seconds.

    Processors are shared, so kernels run on one, two and all workers of a node at once; GPUs are not.
    """
    node = tuple(nodes[0])
    together = (len(node),) if gpu else tuple(sorted({1, min(2, len(node)), len(node)}))
    square = s.widths[-1]
    swept = [*((r, square) for r in s.rows), *((s.rows[-1], w) for w in s.widths)]
    shapes = dict.fromkeys([*((r, w, w) for r, w in swept), *s.oblong])
    hidden, sequences, tokens = s.layer
    for n in together:
        for rows, inner, columns in shapes:
            subject = Product(rows, columns, inner, s.width)
            sample = ProductSample(
                rows=rows, columns=columns, inner=inner, width=s.width, workers=n, seconds=()
            )
            yield "matrix products", Job(subject, node[:n], s.effort), sample
        copied = CopySample(nbytes=s.copied, workers=n, seconds=())
        yield "copies", Job(Copy(s.copied), node[:n], s.effort), copied
        rest = LayerSample(
            hidden=hidden, width=s.width, sequences=sequences, tokens=tokens, workers=n, seconds=()
        )
        yield "norms and sums", Job(LayerRest(hidden, s.width, sequences, tokens), node[:n], s.effort), rest


def transfer_jobs(
    nodes: Sequence[Sequence[int]], per_rack: int, s: Sweep
) -> Iterator[tuple[str, Job, TransferSample]]:
    """The same of communications at every tier that there is: collectives of two and of all workers of a
    node, of all workers of two and of all nodes of a rack, and beyond; messages of a pair of workers."""
    for tier, groups, pair in _tiers(nodes, per_rack):
        for ranks in groups:
            for primitive in _COLLECTIVES:
                yield from _sizes(primitive, tier, ranks, nodes, s)
        yield from _sizes("point_to_point", tier, pair, nodes, s)


def _tiers(
    nodes: Sequence[Sequence[int]], per_rack: int
) -> Iterator[tuple[Tier, list[tuple[int, ...]], tuple[int, ...]]]:
    """Tiers, the groups of workers in which collectives are measured there, and a pair of workers."""
    first = tuple(nodes[0])
    if len(first) > 1:
        yield "intra", list(dict.fromkeys((first[:2], first))), first[:2]
    rack = nodes[:per_rack]
    if len(rack) > 1:
        groups = [tuple(rank for node in part for rank in node) for part in (rack[:2], rack)]
        yield "inter", list(dict.fromkeys(groups)), (first[0], rack[1][0])
    if len(nodes) > per_rack:
        everybody = tuple(rank for node in nodes for rank in node)
        apart = (*first, *nodes[per_rack])
        yield "rack", list(dict.fromkeys((apart, everybody))), (first[0], nodes[per_rack][0])


def _sizes(
    primitive: Primitive, tier: Tier, ranks: tuple[int, ...], nodes: Sequence[Sequence[int]], s: Sweep
) -> Iterator[tuple[str, Job, TransferSample]]:
    per_node = max(sum(rank in node for rank in ranks) for node in nodes)
    for nbytes in s.messages:
        sample = TransferSample(
            primitive=primitive,
            tier=tier,
            participants=len(ranks),
            per_node=per_node,
            nbytes=nbytes,
            seconds=(),
        )
        yield (
            f"{primitive.replace('_', '-')}, {tier}",
            Job(Transfer(primitive, nbytes), ranks, s.effort),
            sample,
        )


def occupancy(workers: Workers, gpu: bool) -> tuple[Memory | None, tuple[float, ...]]:
    """A worker's memory (None: the system does not say), and how long it takes to ask one for nothing."""
    node = workers.nodes[0]
    job = Job(Occupancy(), tuple(node), Effort())
    times = []
    for i in count():
        results, seconds = workers.measure(job, "asking for nothing")
        if i == _DISPATCHES:
            break
        times.append(seconds)
    idle = max((r.process_bytes for r in results if r.process_bytes is not None), default=None)
    total = min(r.total_bytes for r in results) // (1 if gpu else len(node))
    return None if idle is None else Memory(total_bytes=total, idle_bytes=idle), tuple(times)
