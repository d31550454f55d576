"""The graph of one step in layers: longest-path layering, few crossings, no overlapping boxes.

An edge that skips layers passes through each of them at a bend, which takes part in ordering like a box.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ir_schema.problem import Graph
from rpegc.report.data import Drawing, PlacedVertex, RoutedEdge

BEND_HEIGHT = 0.35
SWEEPS = 8

Point = str | tuple[str, str, int]


def draw(graph: Graph) -> Drawing:
    """The compact graph laid out from left to right. Publication edges do not bend: they lead back."""
    carried: dict[tuple[str, str], list[str]] = {}
    for e in graph.data_edges:
        carried.setdefault((e.source, e.target), []).append(e.container)
    layer = layers([v.name for v in graph.vertices], list(carried))
    rows: list[list[Point]] = [[] for _ in range(1 + max(layer.values(), default=0))]
    for v in graph.vertices:
        rows[layer[v.name]].append(v.name)
    routes: dict[tuple[str, str], list[Point]] = {}
    for source, target in carried:
        bends: list[Point] = [(source, target, i) for i in range(layer[source] + 1, layer[target])]
        for i, bend in enumerate(bends, start=layer[source] + 1):
            rows[i].append(bend)
        routes[source, target] = [source, *bends, target]
    neighbours = _neighbours(routes.values())
    _order(rows, neighbours)
    y = _place(rows, neighbours)
    published: dict[tuple[str, str], list[str]] = {}
    for e in graph.publication_edges:
        published.setdefault((e.source, e.target), []).append(e.container)
    edges = [
        RoutedEdge(
            source=source,
            target=target,
            publication=False,
            containers=tuple(carried[source, target]),
            bends=tuple((layer[source] + i, y[p]) for i, p in enumerate(route[1:-1], start=1)),
        )
        for (source, target), route in routes.items()
    ]
    edges += [
        RoutedEdge(source=source, target=target, publication=True, containers=tuple(names), bends=())
        for (source, target), names in published.items()
    ]
    return Drawing(
        vertices=tuple(PlacedVertex(name=v.name, layer=layer[v.name], y=y[v.name]) for v in graph.vertices),
        edges=tuple(edges),
        layers=len(rows),
        height=max((y[p] + _size(p) / 2 for row in rows for p in row), default=0.0),
    )


def layers(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Length of the longest path that ends in each vertex; `edges` have no cycle."""
    before: dict[str, list[str]] = {name: [] for name in names}
    for source, target in edges:
        before[target].append(source)
    found: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in found:
            found[name] = 1 + max((depth(p) for p in before[name]), default=-1)
        return found[name]

    return {name: depth(name) for name in names}


def _neighbours(routes: Iterable[Sequence[Point]]) -> dict[Point, tuple[list[Point], list[Point]]]:
    """Of each point those before it and those behind it."""
    found: dict[Point, tuple[list[Point], list[Point]]] = {}
    for route in routes:
        for a, b in pairwise(route):
            found.setdefault(a, ([], []))[1].append(b)
            found.setdefault(b, ([], []))[0].append(a)
    return found


def _order(rows: list[list[Point]], neighbours: dict[Point, tuple[list[Point], list[Point]]]) -> None:
    """Sort every layer by the mean position of its neighbours in the previous layer, then backwards."""
    for sweep in range(SWEEPS):
        side = sweep % 2
        for row in rows[1:] if side == 0 else rows[-2::-1]:
            place = {p: i / max(1, len(r) - 1) for r in rows for i, p in enumerate(r)}
            key = {}
            for p in row:
                near = neighbours.get(p, ([], []))[side]
                key[p] = sum(place[n] for n in near) / len(near) if near else place[p]
            row.sort(key=key.__getitem__)


def _place(
    rows: list[list[Point]], neighbours: dict[Point, tuple[list[Point], list[Point]]]
) -> dict[Point, float]:
    """Centres across the layers: near the mean of the neighbours, in order and without overlap."""
    y: dict[Point, float] = {}
    for row in rows:
        top = -sum(map(_size, row)) / 2
        for p in row:
            y[p] = top + _size(p) / 2
            top += _size(p)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            wish = []
            for p in row:
                near = [n for side in neighbours.get(p, ([], [])) for n in side]
                wish.append(sum(y[n] for n in near) / len(near) if near else y[p])
            for p, position in zip(row, _spread(row, wish), strict=True):
                y[p] = position
    top = min((y[p] - _size(p) / 2 for row in rows for p in row), default=0.0)
    return {p: position - top for p, position in y.items()}


def _spread(row: Sequence[Point], wish: Sequence[float]) -> list[float]:
    """Positions near `wish` that keep order and distance: the mean of pushing down and of pushing up."""
    gaps = [(_size(a) + _size(b)) / 2 for a, b in pairwise(row)]
    down = list(wish)
    for i, gap in enumerate(gaps):
        down[i + 1] = max(down[i + 1], down[i] + gap)
    up = list(wish)
    for i in range(len(gaps) - 1, -1, -1):
        up[i] = min(up[i], up[i + 1] - gaps[i])
    return [(a + b) / 2 for a, b in zip(down, up, strict=True)]


def _size(point: Point) -> float:
    return 1.0 if isinstance(point, str) else BEND_HEIGHT
