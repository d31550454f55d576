"""Where a run begins: at step 0 with version 0 of every model, or at step N of a run that is resumed.

Everyone who asks which version a node reads or which versions lie where when the first node starts asks here,
so that controller, workers and verifier agree on a resumed run as on a fresh one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Beginning:
    """The first `step` of a run, and by trained model the `oldest` of the versions oldest..step that it has
    then. A version before that is read as the oldest, as at the start of a fresh run."""

    step: int = 0
    oldest: Mapping[str, int] = field(default_factory=dict)

    def version(self, model: str, wanted: int) -> int:
        """The version of trained `model` that stands for `wanted`."""
        return max(self.oldest.get(model, 0), wanted)

    def ring(self, model: str, staleness: int, step: int) -> list[int]:
        """The versions that operators which serve `model` read from step `step` on before one of that step or
        a later one is installed, ascending."""
        return sorted({self.version(model, s - staleness) for s in range(step, step + staleness)})


FRESH = Beginning()
