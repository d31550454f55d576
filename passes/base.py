"""What a pass is: a frozen dataclass from one stage type to the next, its fields being its options.

A pass is a thin shell over a pure function. Passes are found through the entry-point group
`rpegc.passes`, the built-in ones like a plugin's.
"""

import abc
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from ir_schema.base import Record

In = TypeVar("In", bound=Record)
Out = TypeVar("Out", bound=Record)


@dataclass(frozen=True)
class Pass(abc.ABC, Generic[In, Out]):
    """One step of a pipeline.

    `name` is its spelling in a pipeline, `summary` one line of help, `source` and `target` the stage
    types it maps between. Options are dataclass fields of type bool, int, float, str or None.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[type[Record]]
    target: ClassVar[type[Record]]

    @abc.abstractmethod
    def run(self, stage: In) -> Out:
        """The next stage. Raises DiagnosticError when the input is at fault."""
