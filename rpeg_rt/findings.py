"""The verdict on a trace, and what every rule needs to reach it."""

from dataclasses import dataclass, field

from rpeg_rt.dispatch import Instance
from rpeg_rt.realise import Realisation


@dataclass
class Verdict:
    """What a trace was found to show: it is faithful if there are no violations.

    `exit_code` is that of the run; `bytes_moved` counts what workers sent to each other.
    """

    plan: str
    nodes: int = 0
    exit_code: int | None = None
    bytes_moved: int = 0
    violations: list[str] = field(default_factory=list)


class Rules:
    """What all rules share: the bound plan and where violations go."""

    def __init__(self, realisation: Realisation, verdict: Verdict) -> None:
        self.realisation, self.verdict = realisation, verdict

    def violated(self, rule: str, text: str) -> None:
        """Note a violation of `rule`; the text names nodes and times."""
        self.verdict.violations.append(f"{rule}: {text}")

    def name(self, x: Instance) -> str:
        """A node instance as messages call it."""
        n = self.realisation.nodes[x.node]
        phase = f" phase {n.phase}" if n.phases > 1 else ""
        return f"{n.kind} `{n.vertex}`{phase} at step {x.step} (node {n.id})"
