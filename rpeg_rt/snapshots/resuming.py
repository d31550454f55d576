"""Whether a plan can go on from a snapshot, and where its run then begins."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ir_schema.problem import Problem
from rpeg_rt.beginning import Beginning
from rpeg_rt.failure import FileError
from rpeg_rt.load import Plan
from rpeg_rt.snapshots.directory import newest
from rpeg_rt.snapshots.manifest import Manifest, settings

# What may differ between two runs that are one: where version 0 came from, and sizes of the plan's own.
_NOT_COMPARED = frozenset({"run.steps", "run.eval_prompts", "workload.length_quantiles"})
# What would make it a run of something else.
_FIXED = (
    "run.algorithm",
    "run.precision",
    "run.seed",
    "workload.prompts",
    "trainable",
    "trainings",
    "models",
)


@dataclass(frozen=True)
class Resumed:
    """The snapshot at `place` that a run goes on from; `findings` keep it from that, `notes` tell of it."""

    place: Path
    manifest: Manifest
    beginning: Beginning
    findings: list[str]
    notes: list[str]


def resume(directory: Path, plan: Plan, steps: int, seed: int | None, warn: Callable[[str], None]) -> Resumed:
    """The newest whole snapshot in `directory`, for a run of `plan` of `steps` steps in all with `seed`
    (None: that of the snapshot). Raises FileError where there is none, or only of later steps."""
    place, manifest = newest(directory, warn)
    if manifest.step > steps:
        raise FileError(
            f"the run has more than {steps} steps already: {place} is of step {manifest.step}; give --steps "
            "as many or more"
        )
    problem = plan.executable.problem
    refused, told = differences(manifest, problem, manifest.seed if seed is None else seed)
    findings = [f"it is no plan of the run in {place}: {text}" for text in refused]
    notes = [f"resuming after step {manifest.step} from {place}"]
    if manifest.plan != plan.id:
        notes.append(f"the snapshot was taken under another plan, {manifest.plan[:16]}")
    notes += [f"not as it was when the snapshot was taken: {text}" for text in told]
    return Resumed(place.resolve(), manifest, beginning(manifest), findings, notes)


def beginning(manifest: Manifest) -> Beginning:
    """Where a run begins that goes on from a snapshot: with the versions up to the newest, without a gap."""
    oldest = {}
    for name, model in manifest.models.items():
        oldest[name] = manifest.step
        while oldest[name] - 1 in model.versions:
            oldest[name] -= 1
    return Beginning(manifest.step, oldest)


def differences(manifest: Manifest, problem: Problem, seed: int) -> tuple[list[str], list[str]]:
    """Why `problem` cannot go on from a snapshot (nothing where it can), and what else is not as it was."""
    was, now = _flat(manifest.settings), _flat(settings(problem))
    was["run.seed"], now["run.seed"] = manifest.seed, seed
    refused, told = [], []
    for key in dict.fromkeys((*was, *now)):
        if was.get(key) == now.get(key) or key in _NOT_COMPARED:
            continue
        text = f"`{key}` was {was.get(key)} and is {now.get(key)}"
        starts = key.endswith(".checkpoint") and key.split(".")[1] in problem.graph.trainable
        if starts or not _within(key, _FIXED):
            told.append(text)
        else:
            refused.append(text)
    return refused, told


def _within(key: str, sections: tuple[str, ...]) -> bool:
    return any(key == s or key.startswith(f"{s}.") for s in sections)


def _flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested values by dotted name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[above + key] = value
    return found
