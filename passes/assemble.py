"""Assemble: a scheduled configuration as the executable file that the runtime follows (semantics: Lower)."""

from dataclasses import dataclass
from typing import ClassVar

from ir_schema.base import Record
from ir_schema.diagnostics import DiagnosticError
from ir_schema.stages import Executable, Prediction, Scheduled, Score
from passes.base import Pass
from passes.cost import cost
from passes.feasibility import out_of_memory
from passes.lower import lower
from passes.template import fold, horizon
from passes.unroll import unroll


def assemble(scheduled: Scheduled) -> Executable:
    """The executable file of `scheduled`. Raises DiagnosticError E420 if a device is over its memory."""
    configuration = scheduled.configuration
    problem = configuration.problem
    if not scheduled.memory_feasible:
        raise DiagnosticError([out_of_memory(scheduled.devices, scheduled.memory_limit_bytes)])
    steps = horizon(problem)
    costed = cost(lower(unroll(configuration, steps)))
    provenance = problem.hardware.provenance
    return Executable(
        problem=problem,
        plan=configuration.plan,
        template=fold(costed.nodes, steps),
        microtasks=costed.microtasks,
        prediction=Prediction(
            cost_model=problem.options.cost_model,
            hardware="unnamed" if provenance is None else provenance.name,
            score=Score(**{f: getattr(scheduled, f) for f in Score.__struct_fields__}),
            devices=scheduled.devices,
        ),
        search=configuration.search,
    )


@dataclass(frozen=True)
class Assemble(Pass[Scheduled, Executable]):
    """Schedule to executable file."""

    name: ClassVar[str] = "assemble"
    summary: ClassVar[str] = "fold the graph into one step's template and write the executable"
    source: ClassVar[type[Record]] = Scheduled
    target: ClassVar[type[Record]] = Executable

    def run(self, stage: Scheduled) -> Executable:
        """See `assemble`."""
        return assemble(stage)
