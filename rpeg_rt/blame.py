"""Who and what is at fault when a run ends early, in words: worker, GPU, machine, node and step."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rpeg_rt.dispatch import Instance
from rpeg_rt.failure import NumericError, RunError, WorkerFailedError, WorkerLostError
from rpeg_rt.protocol import Failed
from rpeg_rt.realise import Realisation
from rpeg_rt.template import describe

_DETAIL_LINES = 8


class Blame:
    """Turns what the controller noticed into the error that ends the run; `machines` are those of the
    ranks."""

    def __init__(self, realisation: Realisation, machines: Sequence[str]) -> None:
        self.realisation, self.machines = realisation, machines

    def describe(self, x: Instance) -> str:
        """A node instance."""
        n = self.realisation.nodes[x.node]
        return f"{describe(n)} at step {x.step} (node {n.id})"

    def workers(self, ranks: Iterable[int]) -> str:
        """Workers with their GPUs, and the machines that they are on."""
        named = sorted(ranks)
        places = [
            f"{', '.join(f'{r} (GPU {self.realisation.devices[r]})' for r in there)} on {machine}"
            for machine, there in groupby(named, key=lambda r: self.machines[r])
        ]
        return f"worker{'s' if len(named) > 1 else ''} {' and '.join(places)}"

    def lost(self, rank: int, doing: Instance | None, how: str) -> RunError:
        """Worker `rank` is gone; `how` it ended, as far as that is known."""
        when = (
            "while it had nothing to do" if doing is None else f"while it carried out {self.describe(doing)}"
        )
        return WorkerLostError(f"{self.workers([rank])} was lost {when}: {how}")

    def failed(self, rank: int, failed: Failed) -> RunError:
        """Worker `rank` says that it cannot go on."""
        where = "outside of any node"
        if failed.node is not None and failed.step is not None:
            where = f"in {self.describe(Instance(failed.node, failed.step))}"
        if failed.kind == "numeric":
            return NumericError(f"{self.workers([rank])} failed {where}: {failed.message}")
        lines = [line for line in failed.detail.splitlines() if line.strip("^~ ")]
        detail = "".join(f"\n    | {line}" for line in lines[-_DETAIL_LINES:])
        return WorkerFailedError(f"{self.workers([rank])} failed {where}: {failed.message}{detail}")
