"""Polish: the best plan improved vertex by vertex until no change improves it (semantics: Search).

Candidates that cannot improve are skipped without being evaluated (`Guess.judge`), and of those that differ
only in where they stand one is tried.
"""

import msgspec
import numpy as np

from passes.search.evaluator import Rows
from passes.search.found import Found
from passes.search.ledger import CHUNK, Ledger
from passes.search.neighbours import Neighbours
from passes.search.space import Space


def polish(ledger: Ledger, neighbours: Neighbours, found: Found) -> Found:
    """The plan reached from `found`; every step is better, and fits in memory once one does.

    What was reached before the ledger ran out is in the ledger's `best`.
    """
    improved = True
    while improved:
        improved = False
        for vertex in range(len(found.row)):
            rows = _changes(neighbours, found, vertex)
            better = best_of(ledger, found, rows)
            ledger.end_round()
            if better is not None:
                found, improved = better, True
    return found


def best_of(ledger: Ledger, found: Found, rows: Rows, most: int | None = None) -> Found | None:
    """The best of `rows` (the first of several) that is better than `found`, and fits if that does; None if
    there is none. The promising ones are evaluated first, so that others need not be, `most` of them at
    most."""
    space, best = found.space, found
    bound, guess = space.guess.judge(rows)
    ceiling = ledger.ceiling(bound)
    order = np.argsort(guess, kind="stable")
    order = order[ceiling[order] > ledger.value(found)][:most]
    rows, ceiling = rows[order], ceiling[order]
    for start in range(0, len(rows), CHUNK):
        value, fits = ledger.value(best), best.evaluation.feasible
        chunk = rows[start : start + CHUNK][ceiling[start : start + CHUNK] > value]
        if not len(chunk):
            continue
        figures = ledger.evaluate(space, chunk)
        values = ledger.values(figures)
        fitting = ledger.fits(figures)
        better = values > value if fits or not fitting.any() else fitting
        if fits or fitting.any():
            values = np.where(fitting, values, -1.0)
        i = int(values.argmax())
        if better[i]:
            makespan, busy, peak = figures[i].tolist()
            best = Found(space, chunk[i], (makespan, busy, peak))
    return None if best is found else best


def _changes(neighbours: Neighbours, found: Found, vertex: int) -> Rows:
    """Every candidate of a vertex on every kind of place, and the present placement with fewer waves."""
    space, row = found.space, found.row
    made = [_fewer_waves(space, found, vertex)]
    for n, start in neighbours.places(row, (vertex,)).tolist():
        numbers = space.options[vertex].numbers_on[n]
        rows = np.repeat(row[None], len(numbers), axis=0)
        rows[:, vertex, 0] = numbers
        rows[:, vertex, 1] = start
        made.append(rows)
    rows = np.concatenate(made)
    return rows[space.allows(rows)]


def _fewer_waves(space: Space, found: Found, vertex: int) -> Rows:
    placement = found.plan[space.vertices[vertex]]
    rows = np.repeat(found.row[None], placement.waves - 1, axis=0)
    for new, waves in zip(rows, range(1, placement.waves), strict=True):
        new[vertex, 0] = space.evaluator.shape(vertex, msgspec.structs.replace(placement, waves=waves))
    return rows
