"""Y_cand: the structural choices (share, fuse, split, staleness) that the file allows (semantics: Search).

Staleness and sharing change what is learned, so only listed values are tried. Splitting does not; where it
is on and changes anything, leaving it out is always tried too.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ir_schema.base import Split
from ir_schema.diagnostics import Diagnostic, DiagnosticError, error
from ir_schema.problem import Problem, SearchSpace
from passes.search.sharing import refusals, share


@dataclass(frozen=True)
class Structure:
    """One choice y = (share, fuse, split, staleness)."""

    share: tuple[str, str] | None
    fuse: tuple[str, str] | None
    split: Split
    staleness: tuple[tuple[str, int], ...]

    def describe(self) -> str:
        """In words."""
        parts = [f"staleness {m} = {tau}" for m, tau in self.staleness]
        parts += [f"{name} {' + '.join(p)}" for name, p in (("share", self.share), ("fuse", self.fuse)) if p]
        return ", ".join([*parts, f"split {self.split}"])


def apply(problem: Problem, structure: Structure) -> Problem:
    """`problem` with the choices made and nothing left to choose (`search` is None)."""
    chosen = msgspec.structs.replace(
        problem,
        options=msgspec.structs.replace(problem.options, split=structure.split, fuse=structure.fuse),
        graph=msgspec.structs.replace(problem.graph, staleness=dict(structure.staleness)),
        search=None,
    )
    return chosen if structure.share is None else share(chosen, *structure.share)


def structures(
    problem: Problem, *, splitting: bool = True, asynchrony: bool = True
) -> list[tuple[Structure, Problem]]:
    """Every structure with its problem, without those that come to the same.

    `splitting` and `asynchrony` off restrict the choice (ablations A1, A2). Raises DiagnosticError E430 to
    E433 when a listed choice is impossible.
    """
    space = problem.search or SearchSpace()
    impossible = _impossible(problem, space)
    if impossible:
        raise DiagnosticError(impossible)
    chosen: list[tuple[Structure, Problem]] = []
    seen: set[bytes] = set()
    for structure in _product(problem, space, splitting=splitting, asynchrony=asynchrony):
        applied = apply(problem, structure)
        key = msgspec.json.encode(applied, order="deterministic")
        if key not in seen:
            seen.add(key)
            chosen.append((structure, applied))
    if not chosen:
        raise DiagnosticError(
            [
                error(
                    "E433",
                    "no combination of the listed choices is possible",
                    "search.share",
                    help="models that share a backbone need a staleness that is listed for both",
                )
            ]
        )
    return chosen


def _product(
    problem: Problem, space: SearchSpace, *, splitting: bool, asynchrony: bool
) -> Iterator[Structure]:
    models = problem.graph.trainable
    current = {m: problem.graph.staleness.get(m, 0) for m in models}
    listed = [space.staleness.get(m) or (current[m],) for m in models]
    if not asynchrony:
        listed = [(0,)] * len(models)
    shares = space.share or (None,)
    fuses = space.fuse or (problem.options.fuse,)
    for pair, fuse, split, taus in itertools.product(
        shares, fuses, _splits(problem, space, splitting), itertools.product(*listed)
    ):
        staleness = dict(zip(models, taus, strict=True))
        if pair is None or staleness[pair[0]] == staleness[pair[1]]:
            yield Structure(pair, fuse, split, tuple(staleness.items()))


def _splits(problem: Problem, space: SearchSpace, splitting: bool) -> tuple[Split, ...]:
    if not splitting or len(problem.workload.length_quantiles) < 2:
        return ("never",) if not splitting else (problem.options.split,)
    if space.split:
        return space.split
    return ("auto", "never") if problem.options.split == "auto" else ("never",)


def _impossible(problem: Problem, space: SearchSpace) -> list[Diagnostic]:
    """Listed choices that no problem could have."""
    found = []
    for m, values in space.staleness.items():
        path = f"search.staleness.{m}"
        if m not in problem.graph.trainable:
            found.append(error("E432", f"staleness of `{m}`, which is not trained", path, help="remove it"))
        if not values:
            found.append(
                error("E432", f"no staleness of `{m}` is listed", path, help="list one, or remove it")
            )
        found += [
            error("E432", f"staleness {tau} of `{m}` is negative", path, help="staleness counts steps")
            for tau in values
            if tau < 0
        ]
    equal = msgspec.structs.replace(problem.graph, staleness={})
    for i, pair in enumerate(space.share):
        if pair is not None:
            reasons = refusals(msgspec.structs.replace(problem, graph=equal), *pair)
            found += [
                error(
                    "E430",
                    f"`{pair[0]}` and `{pair[1]}` cannot share a backbone: {reason}",
                    f"search.share[{i}]",
                    help="share a trained policy and a trained value model of one architecture",
                )
                for reason in reasons
            ]
    roles = {v.name: (v.role, v.model) for v in problem.graph.vertices}
    for i, fuse in enumerate(space.fuse):
        if fuse is None:
            continue
        (role_a, model_a), (role_b, model_b) = (roles[name] for name in fuse)
        if {role_a, role_b} != {"training"} or model_a == model_b:
            found.append(
                error(
                    "E434",
                    f"`{fuse[0]}` and `{fuse[1]}` cannot be fused",
                    f"search.fuse[{i}]",
                    help="fuse the training vertices of two different models",
                )
            )
    return found
