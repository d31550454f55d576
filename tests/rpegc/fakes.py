"""Small passes over real stage types, so that the driver is tested apart from the planner."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration, Unrolled, UnrolledVertex
from passes.base import Pass


@dataclass(frozen=True)
class Tune(Pass[Problem, Problem]):
    name: ClassVar[str] = "tune"
    summary: ClassVar[str] = "change the horizon"
    source: ClassVar[type[Record]] = Problem
    target: ClassVar[type[Record]] = Problem

    steps: int = 8
    label: str = "x"
    ratio: float = 0.5
    strict: bool = False
    limit: float | None = None
    mode: Literal["fast", "slow"] = "fast"

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError("steps must not be negative")

    def run(self, stage: Problem) -> Problem:
        if self.strict:
            raise DiagnosticError([error("E299", "too strict", "graph.vertices[0]")])
        return msgspec.structs.replace(
            stage, options=msgspec.structs.replace(stage.options, steps=self.steps)
        )


@dataclass(frozen=True)
class Plan(Pass[Problem, Configuration]):
    name: ClassVar[str] = "plan"
    summary: ClassVar[str] = "put everything on the first GPU"
    source: ClassVar[type[Record]] = Problem
    target: ClassVar[type[Record]] = Configuration

    fault: str = "nothing"

    def run(self, stage: Problem) -> Configuration:
        if self.fault == "crash":
            raise RuntimeError("out of luck")
        if self.fault == "type":
            return stage  # type: ignore[return-value]
        plan = {
            v.name: Placement(
                origin=(0, 0, 0),
                extent=(1, 1, 1) if self.fault != "unsound" else (9, 9, 9),
                data_parallel=1,
                pipeline_parallel=1,
                tensor_parallel=1,
                microbatches=1,
            )
            for v in stage.graph.vertices
            if v.model is not None
        }
        return Configuration(problem=msgspec.structs.replace(stage, plan={}, search=None), plan=plan)


@dataclass(frozen=True)
class Spread(Pass[Configuration, Unrolled]):
    name: ClassVar[str] = "spread"
    summary: ClassVar[str] = "one step without edges"
    source: ClassVar[type[Record]] = Configuration
    target: ClassVar[type[Record]] = Unrolled

    def run(self, stage: Configuration) -> Unrolled:
        vertices = tuple(
            UnrolledVertex(id=i, vertex=v.name, vertex_index=i, step=0, reads={}, writes={})
            for i, v in enumerate(stage.problem.graph.vertices)
        )
        return Unrolled(configuration=stage, vertices=vertices, edges=())


FAKES = {kind.name: kind for kind in (Tune, Plan, Spread)}
