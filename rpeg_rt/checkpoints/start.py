"""Whether models can start from the checkpoints that they name, from what their files say of themselves.

Configurations and headers are read, no tensor is: so everything that is wrong is known before anything is
loaded.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ir_schema.config_reader import decode_config
from ir_schema.diagnostics import DiagnosticError
from ir_schema.hugging_face import import_config
from ir_schema.model import ModelSpec
from ir_schema.problem import Problem
from rpeg_rt.checkpoints import SCORE, saved_name
from rpeg_rt.checkpoints.config import CLASSES, differences
from rpeg_rt.checkpoints.directory import read_tensors
from rpeg_rt.checkpoints.keys import not_understood
from rpeg_rt.checkpoints.safetensors import NUMBERS, Stored
from rpeg_rt.engine.architecture import canonical_shapes
from rpeg_rt.failure import FileError
from rpeg_rt.initial import initial_label
from rpeg_rt.precision import weight_type

_LISTED = 4
_EXACT = {"float64": NUMBERS, "float32": ("F32", "F16", "BF16"), "bfloat16": ("BF16",)}
# Tables that some files keep and that follow from the configuration.
_DERIVED = "rotary_emb.inv_freq"


@dataclass
class Checkpoints:
    """The checkpoint directories of a problem's models by name, what is wrong with them, and what is worth
    knowing of what is not wrong."""

    directories: dict[str, Path] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def examine(problem: Problem, directory: Path) -> Checkpoints:
    """Look at the checkpoints of all models; relative paths lead from `directory`."""
    found = Checkpoints()
    precision = "float32" if problem.run is None else problem.run.precision
    for name, spec in problem.models.items():
        if initial_label(spec, name) is None:
            assert spec.checkpoint is not None
            path = (directory / spec.checkpoint).resolve()
            found.directories[name] = path
            findings, notes = _examine(spec, path, weight_type(spec, precision))
            found.findings += [f"model `{name}`: {text}" for text in findings]
            found.notes += [f"model `{name}`: {text}" for text in notes]
    if found.directories:
        random = [f"`{name}`" for name in sorted(problem.models) if name not in found.directories]
        if random:
            found.notes.append(f"without a checkpoint, from random weights: {', '.join(random)}")
    return found


def _examine(spec: ModelSpec, path: Path, precision: str) -> tuple[list[str], list[str]]:
    """Findings and notes on one model's checkpoint."""
    if not path.is_dir():
        return [f"its checkpoint {path} is no directory"], []
    family, findings = _configuration(spec, path / "config.json")
    notes: list[str] = []
    try:
        tensors = read_tensors(path)
    except FileError as exc:
        return [*findings, str(exc)], []
    if not findings:
        findings, notes = _tensors(spec, family, tensors, path, precision)
    return findings, notes


def _configuration(spec: ModelSpec, path: Path) -> tuple[str, list[str]]:
    """The family that a checkpoint is of, and findings on its configuration."""
    try:
        config = decode_config(path.read_bytes(), str(path))
    except OSError as exc:
        return "", [f"cannot read {path}: {exc.strerror}"]
    except DiagnosticError as exc:
        return "", [d.message for d in exc.diagnostics]
    family = str(config.get("model_type"))
    if family not in CLASSES:
        return "", [f"{path} is of family `{family}`; the runtime starts from {', '.join(CLASSES)}"]
    findings = [f"{path} says {text}, which is not understood" for text in not_understood(config)]
    named = config.get("architectures") or []
    if not isinstance(named, list) or any(name not in CLASSES[family] for name in named):
        findings.append(f"{path} names architecture {named}, not one of {', '.join(CLASSES[family])}")
    try:
        saved = import_config(config, spec.head, str(path))
    except DiagnosticError as exc:
        return family, [*findings, *(d.message for d in exc.diagnostics)]
    found = differences(spec, saved)
    apart = [
        f"`{key}` is {_shown(ours)} in the plan and {_shown(theirs)} there" for key, ours, theirs in found
    ]
    if apart:
        findings.append(
            f"{path} describes another model: {'; '.join(apart)}; give it as `arch` and compile again"
        )
    return family, findings


def _tensors(
    spec: ModelSpec, family: str, tensors: dict[str, Stored], path: Path, precision: str
) -> tuple[list[str], list[str]]:
    shapes = {saved_name(name, family): shape for name, shape in canonical_shapes(spec).items()}
    notes = []
    if spec.has_scalar_head and SCORE not in tensors:
        del shapes[SCORE]
        notes.append(f"{path} has no scalar head (`{SCORE}`): it starts from the run's seed")
    spare = {SCORE} if not spec.has_scalar_head else set()
    if not spec.has_lm_head:
        spare.add("lm_head.weight")
    extra = [n for n in tensors if n not in shapes and not n.endswith(_DERIVED)]
    left = [f"`{name}`" for name in extra if name in spare]
    if left:
        notes.append(f"{', '.join(left)} of {path} is not used")
    findings = _list("tensors are missing", path, (f"`{n}`" for n in shapes if n not in tensors))
    findings += _list("tensors are not expected", path, (f"`{n}`" for n in extra if n not in spare))
    there = {name: tensors[name] for name in shapes if name in tensors}
    findings += _list(
        "tensors have another shape",
        path,
        (f"`{n}` {list(t.shape)}, not {list(shapes[n])}" for n, t in there.items() if t.shape != shapes[n]),
    )
    findings += _list(
        f"tensors are not {', '.join(NUMBERS)}",
        path,
        (f"`{n}` is {t.dtype}" for n, t in there.items() if t.dtype not in NUMBERS),
    )
    wide = sorted({t.dtype for t in there.values() if t.dtype not in _EXACT[precision]})
    if wide:
        notes.append(f"weights of {path} in {', '.join(wide)} are rounded to {precision}")
    return findings, notes


def _list(what: str, path: Path, items: Iterable[str]) -> list[str]:
    found = list(items)
    if not found:
        return []
    more = f", … ({len(found)} in all)" if len(found) > _LISTED else ""
    return [f"{what} in {path}: {', '.join(found[:_LISTED])}{more}"]


def _shown(value: Any) -> str:
    """A value as problem files spell it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
