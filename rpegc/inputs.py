"""Getting a stage to start from: a problem as text or JSON, or a stage file.

The first character tells JSON from text. A path in a problem (a hardware file, a model's config) is
relative to the problem's own directory, or to the working directory for standard input.
"""

import difflib
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import Diagnostic, DiagnosticError
from ir_schema.envelope import decode_stage, is_envelope, stage_name
from rpegc.diagnostics import Source
from rpegc.driver import StageRun, input_run
from rpegc.failure import usage_error
from rpegc.stagefiles import read_bytes

MOST_FINDINGS = 5


@dataclass(frozen=True)
class Input:
    """A stage to start from, and the text that diagnostics about it point into."""

    run: StageRun
    source: Source


def stage_schema_of(data: bytes) -> str | None:
    """The schema that a stage file names; None if `data` is none."""
    if not data.lstrip().startswith(b"{"):
        return None
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return str(value["schema"]) if is_envelope(value) else None


def directory_of(name: str) -> Path:
    """The directory that paths inside file `name` are relative to."""
    return Path.cwd() if name == "-" else Path(name).resolve().parent


def parse_problem(data: bytes, name: str, options: Mapping[str, object] | None = None) -> Input:
    """A problem from the bytes of file `name`; `options` replace some of its own. Raises DiagnosticError."""
    from rpegc.frontend import load

    loaded = load(data, name, directory_of(name), options)
    external = {Path(name).name: hashlib.sha256(data).hexdigest()}
    run = input_run(loaded.problem, parent=loaded.parent, external=external, source_map=loaded.source_map)
    return Input(run, loaded.source)


def read_stage(name: str, *, check: bool = True) -> Input:
    """A stage file, with `check` a sound one. Raises UsageFailure E911 and DiagnosticError E901 … E905."""
    envelope, body = decode_stage(read_bytes(name))
    if check:
        _check(body)
    run = input_run(body, parent=envelope.parent, external=envelope.external, source_map=envelope.source_map)
    return Input(run, Source(name, ""))


def any_stage(data: bytes, name: str) -> Record:
    """The stage in the bytes of file `name`, which may be a problem or a stage file."""
    if not stage_schema_of(data):
        return parse_problem(data, name).run.stage
    stage = decode_stage(data)[1]
    _check(stage)
    return stage


def _check(stage: Record) -> None:
    from rpegc.invariants import unsound

    found = list(unsound(stage))
    if found:
        more = [f"and {len(found) - MOST_FINDINGS} more"] if len(found) > MOST_FINDINGS else []
        message = f"the `{stage_name(stage)}` is not sound: {found[0]}"
        notes = (*found[1:MOST_FINDINGS], *more)
        help = "compile the problem again"
        raise DiagnosticError([Diagnostic(code="E905", message=message, notes=notes, help=help)])


def problem_bytes(name: str, commands: Iterable[str] = ()) -> bytes:
    """The bytes of problem file `name`.

    Raises UsageFailure E911 when it cannot be read, suggesting which of `commands` was perhaps meant, and
    E913 when it is a later stage's file.
    """
    if name != "-" and not os.path.lexists(name):
        near = difflib.get_close_matches(name, list(commands), n=1)
        help = f"did you mean the command `{near[0]}`?" if near else "give a problem file, or `-` for stdin"
        raise usage_error("E911", f"cannot read `{name}`: no such file", help=help)
    data = read_bytes(name)
    schema = stage_schema_of(data)
    if schema not in (None, "rpeg.problem"):
        help = f"resume from it with `--from {name}`"
        raise usage_error("E913", f"`{name}` is a `{schema}` file, not a problem", help=help)
    return data
