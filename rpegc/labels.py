"""Names by which people and comparisons recognise a node: what it is and where, not its id.

Ids are insertion order: one node more shifts all that follow. A label stays the same, so two plans can be
compared node by node. Labels within one graph are unique.
"""

from collections.abc import Iterable

from ir_schema.stages import Node, TemplateNode, UnrolledVertex


def node_label(node: Node) -> str:
    """`Op actor_gen@3.2` (step 3, phase 2), `Comm Y actor_gen@3.1 -> reward@3`, `Reshard actor …`.

    A template's nodes have no step of their own; there `@-1` is the distance of a transfer's source.
    """
    target = node.vertex + _moment(node, node.step, node.phase if node.phases > 1 else None)
    if node.kind == "Op":
        return f"Op {target}"
    source = node.source or "?"
    if node.source_step is not None:
        source += _moment(node, node.source_step, node.src_phase)
    return f"{node.kind} {node.container or node.model or '?'} {source} -> {target}"


def _moment(node: Node, step: int, phase: int | None) -> str:
    distance = f"@{step:+d}" if step else ""
    when = distance if isinstance(node, TemplateNode) else f"@{step}"
    return when + (f".{phase}" if phase is not None else "")


def node_labels(nodes: Iterable[Node]) -> dict[int, str]:
    """Unique label of every node by id; equal ones are told apart by `#2`, `#3`, …"""
    labels: dict[int, str] = {}
    seen: dict[str, int] = {}
    for node in nodes:
        label = node_label(node)
        seen[label] = seen.get(label, 0) + 1
        labels[node.id] = label if seen[label] == 1 else f"{label} #{seen[label]}"
    return labels


def vertex_label(vertex: UnrolledVertex) -> str:
    """`actor_gen@3`."""
    return f"{vertex.vertex}@{vertex.step}"
