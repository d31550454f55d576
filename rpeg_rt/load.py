"""Reading an executable file and refusing one that is not what it claims to be.

`rpeg-rt` runs a file whose id does not match its content as little as a missing one (exit code 2);
`rpeg-rt verify` reports the same as a violation (exit code 7), but not what never was a plan (exit code 2).
"""

from dataclasses import dataclass
from pathlib import Path

from ir_schema.diagnostics import DiagnosticError
from ir_schema.envelope import decode_stage
from ir_schema.stages import Executable
from rpeg_rt.failure import FileError

_SCHEMA = b'"rpeg.executable"'
_BEGINNING = 200


class BrokenPlanError(FileError):
    """The file says that it is a plan, and is not intact."""


@dataclass(frozen=True)
class Plan:
    """An executable, its id (the plan hash) and the directory that relative paths may be resolved in."""

    executable: Executable
    id: str
    directory: Path


def load_plan(path: Path) -> Plan:
    """Read `plan.exe.json`.

    Raises FileError for anything but an executable stage, BrokenPlanError (which is one) for a changed one.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise FileError(f"cannot read the plan {path}: {exc.strerror}") from exc
    try:
        envelope, body = decode_stage(data)
    except DiagnosticError as exc:
        found = exc.diagnostics[0]
        text = f"{found.code}: {found.message}" + (f"; {found.help}" if found.help else "")
        if _SCHEMA in data[:_BEGINNING]:
            raise BrokenPlanError(f"{path}: {text}") from exc
        raise FileError(f"{path} is not a plan: {text}") from exc
    if not isinstance(body, Executable):
        stage = envelope.schema.removeprefix("rpeg.")
        raise FileError(
            f"{path} is not a plan but a `{stage}` stage; compile it with `rpegc … -o plan.exe.json`"
        )
    return Plan(executable=body, id=envelope.id, directory=path.resolve().parent)
