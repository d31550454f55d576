"""Cost model `paper_free_network`: what a plan would take if moving bytes between GPUs took no time."""

from typing import ClassVar

import msgspec

from ir_schema.base import TIERS
from ir_schema.hardware import AlphaBeta, Tiers
from ir_schema.problem import Problem
from passes.cost.paper import PaperCost

FREE = Tiers(**dict.fromkeys(TIERS, AlphaBeta(alpha=0.0, beta=0.0)))


class FreeNetworkCost(PaperCost):
    """Cost model `paper` on the problem's hardware with an infinitely fast network."""

    name: ClassVar[str] = "paper_free_network"

    def __init__(self, problem: Problem) -> None:
        hardware = msgspec.structs.replace(problem.hardware, collective=FREE, point_to_point=FREE)
        super().__init__(msgspec.structs.replace(problem, hardware=hardware))
