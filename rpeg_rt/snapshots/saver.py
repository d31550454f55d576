"""The controller's part in snapshots: when they are due, and how the parts of all workers become one."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ir_schema.trace import Snapshot
from rpeg_rt.protocol import Frame, Keep, Kept
from rpeg_rt.realise import Realisation
from rpeg_rt.snapshots.contents import places_of
from rpeg_rt.snapshots.directory import begin, finish
from rpeg_rt.snapshots.manifest import VERSION, Manifest, Trained, settings

Ask = Callable[[Mapping[int, Keep]], Mapping[int, Frame]]
"""Puts a question to workers; their answers by rank."""


def boundary(after: int, every: int | None, steps: int) -> int:
    """The step before which a run pauses next: the next multiple of `every`, or the end of its `steps`."""
    return steps if every is None else min(steps, (after // every + 1) * every)


@dataclass(frozen=True)
class Saver:
    """Leaves snapshots of a run of `plan` with `seed` in `directory`: every `every` steps and at the end, or
    (None) only when the run is stopped. The newest `keep` are kept."""

    realisation: Realisation
    plan: str
    seed: int
    directory: Path
    every: int | None
    keep: int

    def take(self, step: int, ask: Ask, now: Callable[[], int]) -> Snapshot:
        """Leave a snapshot after `step` steps, none of whose nodes is left and no later one of which has
        begun; what became of it. Where it cannot be written, the older ones are still there."""
        started, size = now(), 0
        models = self.realisation.problem.graph.trainable
        versions = {m: tuple(places_of(self.realisation, m, step)) for m in models}
        part: Path | None = None
        try:
            part = begin(self.directory, step)
            requests = dict.fromkeys(range(self.realisation.world), Keep(step, str(part.resolve())))
            parts = [a for a in ask(requests).values() if isinstance(a, Kept)]
            failure = next((p.failure for p in parts if p.failure is not None), None)
            if failure is None:
                manifest = self._manifest(step, versions, parts)
                finish(part, manifest, self.keep)
                size = sum(f.bytes for f in manifest.files.values())
        except OSError as exc:
            failure = exc.strerror or str(exc)
        if failure is not None and part is not None:
            shutil.rmtree(part, ignore_errors=True)
        return Snapshot(
            step=step, start_ns=started, time_ns=now(), versions=versions, bytes=size, failure=failure
        )

    def _manifest(self, step: int, versions: dict[str, tuple[int, ...]], parts: list[Kept]) -> Manifest:
        updates = {model: count for p in parts for model, count in p.updates.items()}
        return Manifest(
            version=VERSION,
            step=step,
            plan=self.plan,
            seed=self.seed,
            settings=settings(self.realisation.problem),
            models={m: Trained(versions=v, updates=updates[m]) for m, v in versions.items()},
            memory={vertex: memory for p in parts for vertex, memory in p.memory.items()},
            files={name: file for p in parts for name, file in sorted(p.files.items())},
        )
