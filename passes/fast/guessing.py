"""Plans compared without being lowered: a bound on the makespan and a guess at what a plan is worth.

In every plan a GPU is busy for at least K_eval times the operators placed on it: the bound. The guess lets
the first step take as long as its longest path and the others follow at the pace of the busiest GPU, or of
the slowest loop of serving a model, training it and serving it again; it grows with the memory that seems to
be missing. The busiest and the fullest GPU of a row are found at the beginning of some interval, because only
there operators are added to those on a GPU.
"""

from typing import NamedTuple

import numpy as np

from passes.fast.compilation import compiled
from passes.fast.tables import Flags, Floats, Ints

NEVER = 1 << 61
STEP, EXCESS = 0.1, 20.0  # how much a guess grows where memory is missing, and with its share
UNRELATED, SAME, DISJOINT, SAME_OR_DISJOINT = range(4)


class Shapes(NamedTuple):
    """By place and shape number: `gpus`; the least and the whole time [ns] of a step, -1 where not asked for
    yet; bytes that stay on a GPU, that come and go beside them, and that do where nothing stays."""

    gpus: Ints
    least: Ints
    whole: Ints
    stays: Floats
    comes: Floats
    alone: Floats


class Terms(NamedTuple):
    """What else a guess depends on: places in topological `order`; `before`[u, v], whether v waits for u in a
    step; K_eval `steps`, of which `window` are under way at most; `cycles`, places of a model's serving and
    training and after how many steps the one waits for the other; the memory `limit` [bytes] and how strictly
    it is kept; whose weights do not stay: those of `guests`, and where they share GPUs with
    their `trainer` (-1: none); and whether utilisation counts (`efficiency`) on how many `gpus`."""

    order: Ints
    before: Flags
    steps: int
    window: int
    cycles: Ints
    limit: float
    strictness: float
    guests: Flags
    trainer: Ints
    efficiency: bool
    gpus: int


class Moves(NamedTuple):
    """What may be drawn. By place p and size k: shape numbers `shapes[shape_from[p, k] : shape_from[p, k+1]]`
    and first GPUs `starts[start_from[p, k] : start_from[p, k+1]]`; `sizes` in GPUs; `block` of each place,
    and `relation` of each two places."""

    sizes: Ints
    shapes: Ints
    shape_from: Ints
    starts: Ints
    start_from: Ints
    block: Ints
    relation: Ints


@compiled
def _judge(shapes: Shapes, terms: Terms, row: Ints, finish: Ints) -> tuple[int, float]:
    """Bound and guess [ns] for one row; -1 if a time has not been asked for. `finish` is scratch of V."""
    places = len(row)
    bound, busiest, fullest, work = 0, 0, 0.0, 0
    away = 0  # the places whose weights do not stay, as bits
    for p in range(places):
        if shapes.whole[p, row[p, 0]] < 0:
            return -1, 0.0
        t = terms.trainer[p]
        if terms.guests[p]:
            away |= 1 << p
        elif t >= 0:
            apart = row[p, 1] + shapes.gpus[p, row[p, 0]] <= row[t, 1]
            if not apart and row[t, 1] + shapes.gpus[t, row[t, 0]] > row[p, 1]:
                away |= 1 << p
    for p in range(places):
        at, least, whole, stays, comes = row[p, 1], 0, 0, 0.0, 0.0
        for q in range(places):
            shape = row[q, 0]
            if row[q, 1] <= at < row[q, 1] + shapes.gpus[q, shape]:
                least += shapes.least[q, shape]
                whole += shapes.whole[q, shape]
                if away >> q & 1:
                    comes = max(comes, shapes.alone[q, shape])
                else:
                    stays += shapes.stays[q, shape]
                    comes = max(comes, shapes.comes[q, shape])
        bound, busiest, fullest = max(bound, least), max(busiest, whole), max(fullest, stays + comes)
        work += shapes.whole[p, row[p, 0]] * shapes.gpus[p, row[p, 0]]
    path = 0
    for p in terms.order:
        start = 0
        for q in range(places):
            if terms.before[q, p]:
                start = max(start, finish[q])
        finish[p] = start + shapes.whole[p, row[p, 0]]
        path = max(path, finish[p])
    pace = max(busiest, path // terms.window)
    for c in range(len(terms.cycles)):
        first, last, steps = terms.cycles[c]
        finish[:] = -1
        for p in terms.order:
            start = 0 if p == first else -1
            for q in range(places):
                if terms.before[q, p]:
                    start = max(start, finish[q])
            if start >= 0:
                finish[p] = start + shapes.whole[p, row[p, 0]]
        pace = max(pace, finish[last] // steps)
    guess = float((terms.steps - 1) * pace + path)
    if terms.efficiency:
        guess /= np.sqrt(min(1.0, terms.steps * work / (terms.gpus * max(guess, 1.0))))
    if fullest > terms.limit:
        guess *= 1 + terms.strictness * (STEP + EXCESS * (fullest / terms.limit - 1))
    return terms.steps * bound, guess


@compiled
def judge(shapes: Shapes, terms: Terms, rows: Ints, bound: Ints, guess: Floats) -> bool:
    """Bounds and guesses of all rows; False as soon as a time is missing."""
    finish = np.empty(rows.shape[1], np.int64)
    for i in range(len(rows)):
        bound[i], guess[i] = _judge(shapes, terms, rows[i], finish)
        if bound[i] < 0:
            return False
    return True


@compiled
def judge_pairs(
    shapes: Shapes, terms: Terms, left: Ints, right: Ints, moved: Ints, limit: int, guess: Floats
) -> bool:
    """Guesses of every row of `left` with the places `moved` as in every row of `right`, `NEVER` where the
    bound is not below `limit`; False as soon as a time is missing."""
    row, finish = np.empty(left.shape[1:], np.int64), np.empty(left.shape[1], np.int64)
    for i in range(len(left)):
        row[:] = left[i]
        for j in range(len(right)):
            for v in moved:
                row[v, 0], row[v, 1] = right[j, v, 0], right[j, v, 1]
            bound, found = _judge(shapes, terms, row, finish)
            if bound < 0:
                return False
            guess[i, j] = found if bound < limit else NEVER
    return True


@compiled
def _size_of(moves: Moves, gpus: int) -> int:
    for k in range(len(moves.sizes)):
        if moves.sizes[k] == gpus:
            return k
    return -1


@compiled
def _related(shapes: Shapes, moves: Moves, row: Ints) -> bool:
    """Whether the allocations of `row` lie to each other as they must."""
    places = len(row)
    for p in range(places):
        for q in range(p):
            relation = moves.relation[p, q]
            if relation == UNRELATED:
                continue
            a, b = row[p, 1], row[q, 1]
            m, n = shapes.gpus[p, row[p, 0]], shapes.gpus[q, row[q, 0]]
            same, disjoint = a == b and m == n, a + m <= b or b + n <= a
            if (relation == SAME and not same) or (relation == DISJOINT and not disjoint):
                return False
            if relation == SAME_OR_DISJOINT and not (same or disjoint):
                return False
    return True


@compiled
def _put(moves: Moves, row: Ints, block: int, k: int, start: int) -> bool:
    """Put every place of `block` on size `k` from `start` in a shape drawn at random; False where one cannot
    stand there."""
    for p in range(len(row)):
        if moves.block[p] != block:
            continue
        low, high = moves.shape_from[p, k], moves.shape_from[p, k + 1]
        if low == high:
            return False
        legal = False
        for s in range(moves.start_from[p, k], moves.start_from[p, k + 1]):
            legal = legal or moves.starts[s] == start
        if not legal:
            return False
        row[p, 0], row[p, 1] = moves.shapes[np.random.randint(low, high)], start
    return True


@compiled
def anneal(
    shapes: Shapes,
    terms: Terms,
    moves: Moves,
    start: Ints,
    seed: int,
    rounds: int,
    temperature: float,
    kept: Ints,
    kept_guess: Floats,
) -> int:
    """Anneal the guess from `start`, cooling from `temperature`; that and the rows at which the walk arrived
    that were nearly as good as the best so far, with their guesses, into `kept`, the last ones if there are
    more than have room. Returns how many there are."""
    np.random.seed(seed)
    places = len(start)
    finish = np.empty(places, np.int64)
    row, new = start.copy(), start.copy()
    _, cost = _judge(shapes, terms, row, finish)
    kept[0], kept_guess[0] = row, cost
    best, count = cost, 1
    for i in range(rounds):
        heat = temperature * (1 - i / rounds) ** 2 + 1e-5
        new[:] = row
        p = np.random.randint(places)
        k = _size_of(moves, shapes.gpus[p, row[p, 0]])
        draw = np.random.random()
        if draw < 0.25:  # another shape on the same GPUs
            low, high = moves.shape_from[p, k], moves.shape_from[p, k + 1]
            if low == high:
                continue
            new[p, 0] = moves.shapes[np.random.randint(low, high)]
        else:
            q = np.random.randint(places)
            target, first = k, row[p, 1]
            if draw < 0.5 and q != p:  # onto the GPUs of another
                target, first = _size_of(moves, shapes.gpus[q, row[q, 0]]), row[q, 1]
            elif draw < 0.65 and q != p:  # the two change places
                target, first = _size_of(moves, shapes.gpus[q, row[q, 0]]), row[q, 1]
                if k < 0 or not _put(moves, new, moves.block[q], k, row[p, 1]):
                    continue
            else:  # anywhere
                drawn = moves.shape_from[p, 0], moves.shape_from[p, len(moves.sizes)]
                number = moves.shapes[np.random.randint(drawn[0], drawn[1])]
                target = _size_of(moves, shapes.gpus[p, number])
                low, high = moves.start_from[p, target], moves.start_from[p, target + 1]
                first = moves.starts[np.random.randint(low, high)]
            if target < 0 or not _put(moves, new, moves.block[p], target, first):
                continue
        if not _related(shapes, moves, new):
            continue
        _, found = _judge(shapes, terms, new, finish)
        if found <= cost or np.random.random() < np.exp((cost - found) / (cost * heat)):
            changed = found != cost
            row[:] = new
            cost = found
            best = min(best, cost)
            if changed and cost <= best * 1.01:
                kept[count % len(kept)] = row
                kept_guess[count % len(kept)] = cost
                count += 1
    return min(count, len(kept))
