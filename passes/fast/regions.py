"""What GPUs hold under each plan, and keys of plans: both follow from which vertices meet on how many GPUs.

By P7 every allocation is an interval of the flattened device space, so the borders of all of them cut it
into pieces with equal contents.
"""

import numpy as np
from numpy.typing import NDArray

from passes.fast.compilation import compiled, part
from passes.fast.tables import TRAINING, Contents, Ints, Shapes

FUSED, MISSING = 3, 4  # columns of passes.fast.lowering.Lowered.counts
WEIGHTS = 2  # the part of a transient under `paper` that is not there where weights are resident


@part
def _meetings(contents: Contents, shapes: Shapes, row: Ints, masks: Ints, sizes: Ints, borders: Ints) -> int:
    """Every set of places that meet on some GPU, as bits, with the number of GPUs they share, into `masks`
    and `sizes`; returns how many there are. `borders` is scratch of 2 V + 2."""
    places, count, found = len(row), 2, 0
    borders[0], borders[1] = 0, contents.gpus
    for p in range(places):
        low = row[p, 1]
        for border in (low, low + shapes.gpus[p, row[p, 0]]):
            at = count
            while at > 0 and borders[at - 1] > border:
                borders[at] = borders[at - 1]
                at -= 1
            borders[at] = border
            count += 1
    for j in range(count - 1):
        low, high = borders[j], borders[j + 1]
        if low == high:
            continue
        mask = 0
        for p in range(places):
            if row[p, 1] <= low < row[p, 1] + shapes.gpus[p, row[p, 0]]:
                mask |= 1 << p
        at = 0
        while at < found and masks[at] != mask:
            at += 1
        if at == found:
            masks[at], sizes[at] = mask, 0
            found += 1
        sizes[at] += high - low
    return found


@part
def _same(shapes: Shapes, row: Ints, p: int, q: int) -> bool:
    """Whether two places have one allocation and layout."""
    same = row[p, 1] == row[q, 1] and shapes.gpus[p, row[p, 0]] == shapes.gpus[q, row[q, 0]]
    return bool(same and shapes.layout[p, row[p, 0]] == shapes.layout[q, row[q, 0]])


@part
def _apart(shapes: Shapes, row: Ints, p: int, q: int) -> bool:
    """Whether two places share no GPU."""
    a, b = row[p, 1], row[q, 1]
    return bool(a + shapes.gpus[p, row[p, 0]] <= b or b + shapes.gpus[q, row[q, 0]] <= a)


@compiled
def peaks(contents: Contents, shapes: Shapes, rows: Ints, counts: Ints, handovers: Ints, out: Ints) -> None:
    """The largest peak [bytes] of each plan of `rows` into `out`, added in the order of the cost models'
    `memory`, and so equal to the byte."""
    places, models = rows.shape[1], contents.models
    masks, sizes = np.empty(2 * places + 2, np.int64), np.empty(2 * places + 2, np.int64)
    borders = np.empty(2 * places + 2, np.int64)
    order, where = np.empty(models, np.int64), np.empty(models, np.int64)
    state, state_first = np.empty(models, np.int64), np.empty(models, np.bool_)
    kept, keeps = np.empty(models), np.empty(models, np.bool_)
    resident = np.empty(places, np.bool_)  # whether what the vertex reads stays on its GPUs
    guest = np.empty(places, np.int64)  # the first reader of the visiting copy that the vertex reads, or -1
    a, b = contents.pair
    for i in range(len(rows)):
        out[i] = 0
        if counts[i, MISSING]:
            continue
        row = rows[i]
        for p in range(places):
            trainer, serves = contents.trainer[p], contents.role[p] != TRAINING
            resident[p], guest[p] = trainer < 0, -1
            if trainer >= 0 and serves:
                if contents.megatron:
                    resident[p] = contents.staleness[p] > 0
                else:
                    resident[p] = contents.staleness[p] > 0 and _apart(shapes, row, p, trainer)
            if contents.megatron and not resident[p] and serves and not _same(shapes, row, p, trainer):
                guest[p] = p
                for q in range(p):
                    if guest[q] == q and contents.model[q] == contents.model[p] and _same(shapes, row, p, q):
                        guest[p] = q
                        break
        found = _meetings(contents, shapes, row, masks, sizes, borders)
        peak = 0.0
        for j in range(found):
            mask = masks[j]

            # Persistent bytes: models by first appearance, state and copies of each likewise.
            listed = 0
            for m in range(models):
                where[m], state[m], kept[m], keeps[m], state_first[m] = -1, -1, 0.0, False, False
            for p in range(places):
                if not mask >> p & 1:
                    continue
                m, trains = contents.model[p], contents.role[p] == TRAINING
                copies = shapes.copies[p, row[p, 0]]
                adds = trains or resident[p]
                if contents.megatron and not trains and adds:
                    for q in range(p):
                        serving = mask >> q & 1 and contents.role[q] != TRAINING
                        if serving and contents.model[q] == m and _same(shapes, row, p, q):
                            adds = False
                if where[m] < 0 and (adds or not contents.megatron):
                    where[m], order[listed] = listed, m
                    listed += 1
                if not adds:
                    continue
                if trains:
                    state[m], state_first[m] = p, not keeps[m]
                else:
                    keeps[m] = True
                    kept[m] = kept[m] + copies if contents.megatron else max(kept[m], copies)
            held = 0.0
            for at in range(listed):
                m = order[at]
                if not state_first[m]:
                    held += kept[m]
                if state[m] >= 0:
                    for part in range(shapes.state.shape[2]):
                        held += shapes.state[state[m], row[state[m], 0], part]
                if state_first[m]:
                    held += kept[m]

            # The largest transient of an operator, a fused pair being one.
            most = 0.0
            for p in range(places):
                if not mask >> p & 1 or (counts[i, FUSED] and p == b):
                    continue
                pair = counts[i, FUSED] and p == a
                total, own, others = 0.0, 0.0, 0.0
                for part in range(shapes.transient.shape[2]):
                    value = shapes.transient[p, row[p, 0], part]
                    serves = contents.role[p] != TRAINING
                    if not contents.megatron and part == WEIGHTS and serves and keeps[contents.model[p]]:
                        value = 0.0
                    if pair:
                        value += shapes.transient[b, row[b, 0], part]
                    total += value
                for g in range(places):
                    if not mask >> g & 1 or guest[g] != g:
                        continue
                    nbytes = shapes.weights[g, row[g, 0]]
                    if guest[p] == g:
                        own += nbytes
                        continue
                    absent = True
                    for n in (p, b) if pair else (p, p):
                        trainer = contents.trainer[g]
                        if n != trainer and not contents.after[n, trainer]:
                            absent = False
                        for r in range(places):
                            if guest[r] == g and not contents.after[r, n]:
                                absent = False
                    if not absent:
                        others += nbytes
                most = max(most, total + own + others)
            for p in range(places):
                source = handovers[i, p]
                if contents.megatron and source >= 0 and mask >> p & 1:
                    nbytes = 0.0
                    for end in (source, p):
                        if guest[end] >= 0 and mask >> guest[end] & 1:
                            nbytes += shapes.weights[guest[end], row[guest[end], 0]]
                    most = max(most, nbytes)
            peak = max(peak, np.rint(held + most))
        out[i] = np.int64(peak)


@part
def _mixed(h: np.uint64, value: np.uint64) -> np.uint64:
    """`h` with `value` mixed in (the finaliser of MurmurHash3)."""
    h = (h ^ value) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(29))


@compiled
def keys(contents: Contents, shapes: Shapes, rows: Ints, out: NDArray[np.uint64]) -> None:
    """128 bits of each plan of `rows` into `out`: of every place's shape, of the number of GPUs each set of
    places shares, and of the tier that each two allocations span."""
    places, node, rack = rows.shape[1], contents.node, contents.rack
    masks, sizes = np.empty(2 * places + 2, np.int64), np.empty(2 * places + 2, np.int64)
    borders = np.empty(2 * places + 2, np.int64)
    for i in range(len(rows)):
        row = rows[i]
        found = _meetings(contents, shapes, row, masks, sizes, borders)
        for half in range(2):
            h = np.uint64(0x9E3779B97F4A7C15) + np.uint64(half)
            for p in range(places):
                h = _mixed(h, shapes.digest[p, row[p, 0], half])
                n, low = shapes.gpus[p, row[p, 0]], row[p, 1]
                for q in range(p):
                    m, other = shapes.gpus[q, row[q, 0]], row[q, 1]
                    tier = 0
                    if max(n, m) > rack or low // rack != other // rack:
                        tier = 2
                    elif max(n, m) > node or low // node != other // node:
                        tier = 1
                    h = _mixed(h, np.uint64(tier))
            total = np.uint64(0)
            for j in range(found):
                total += _mixed(_mixed(h, np.uint64(masks[j])), np.uint64(sizes[j]))
            out[i, half] = _mixed(h, total)
