"""What is left behind by a bug: how it is told, and a directory with which it happens again."""

import shlex
import traceback
from pathlib import Path

from ir_schema.diagnostics import Diagnostic
from rpegc.failure import InternalFailure, UsageFailure
from rpegc.stagefiles import make_directory, write_bytes


def crash(message: str, exc: BaseException) -> Diagnostic:
    """The diagnostic of an exception that nobody expected: what was raised, and where."""
    frames = traceback.extract_tb(exc.__traceback__)
    where = f"at {Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    raised = "".join(traceback.format_exception_only(exc)).strip()
    return Diagnostic(
        code="E990",
        message=message,
        notes=tuple(n for n in (raised, where) if n),
        help="this is a bug in the compiler or a plugin; please report it",
    )


def reproducible(
    failure: InternalFailure, folder: Path, name: str, data: bytes, option: str, pipeline: str
) -> InternalFailure:
    """`failure` with its replay command, after the input and the pipeline were written into `folder`.

    `option` stands before the input on the command line (`--from`, or nothing for a problem). Where nothing
    can be written, `failure` itself.
    """
    source = folder / name
    arguments = [
        "rpegc",
        *filter(None, [option]),
        str(source),
        "-p",
        pipeline,
        "--verify-each",
        "-o",
        "/dev/null",
    ]
    replay = shlex.join(arguments)
    cause = failure.__cause__ or failure
    try:
        make_directory(folder)
        write_bytes(str(source), data)
        write_bytes(str(folder / "pipeline.txt"), f"{pipeline}\n".encode())
        write_bytes(str(folder / "replay.sh"), f"{replay}\n".encode())
        write_bytes(str(folder / "traceback.txt"), "".join(traceback.format_exception(cause)).encode())
    except UsageFailure:
        return failure
    first, *others = failure.diagnostics
    told = Diagnostic(
        code=first.code,
        message=first.message,
        labels=first.labels,
        notes=first.notes,
        help=f"{first.help}; it happens again with:\n{replay}",
    )
    again = InternalFailure([told, *others], reproducer=str(folder))
    again.__cause__ = failure.__cause__
    return again
