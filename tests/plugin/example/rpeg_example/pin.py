"""Pass `pin`: keep one operator on one node, for example the one whose disk holds the prompts."""

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.problem import PartialPlacement, Problem
from passes.base import Pass


@dataclass(frozen=True)
class Pin(Pass[Problem, Problem]):
    """Fix the allocation of `vertex` to all GPUs of node `node` of rack `rack`; the search does the rest.

    What the problem already says about the plan of that vertex stays, except its allocation.
    """

    name: ClassVar[str] = "pin"
    summary: ClassVar[str] = "keep one operator on one node"
    source: ClassVar[type[Record]] = Problem
    target: ClassVar[type[Record]] = Problem

    vertex: str = "actor_gen"
    node: int = 0
    rack: int = 0

    def run(self, stage: Problem) -> Problem:
        """Raises DiagnosticError X101 or X102 when the vertex or the node does not exist."""
        known = [v.name for v in stage.graph.vertices]
        racks, nodes, gpus = stage.device_space
        if self.vertex not in known:
            raise DiagnosticError(
                [error("X101", f"no vertex `{self.vertex}` to pin", help=f"known: {', '.join(known)}")]
            )
        if not (0 <= self.rack < racks and 0 <= self.node < nodes):
            raise DiagnosticError(
                [
                    error(
                        "X102",
                        f"no node {self.node} in rack {self.rack}",
                        help=f"{racks} racks of {nodes} nodes",
                    )
                ]
            )
        place = msgspec.structs.replace(
            stage.plan.get(self.vertex, PartialPlacement()),
            origin=(self.rack, self.node, 0),
            extent=(1, 1, gpus),
        )
        return msgspec.structs.replace(stage, plan={**stage.plan, self.vertex: place})
