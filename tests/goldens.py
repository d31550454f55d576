"""Golden cases: commands with everything that they write, kept under `golden/`.

A case is a directory with a file `cmd`: one `rpegc …` command a line, `#` starts a comment. It runs in an
empty directory that holds copies of the case's `input*` files. Whatever it writes is kept beside `cmd`:
stage files, `stdout` and `stderr` where there is any, and `exit` (the exit codes, one a line). A file that
is kept but not written, and one that is written but not kept, fail like one that differs.
"""

import difflib
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from ir_schema.diagnostics import DiagnosticError
from ir_schema.envelope import decode_stage
from rpegc.diff import difference, render

GOLDEN = Path(__file__).parents[1] / "golden"
COMMAND = "cmd"
Run = Callable[[list[str]], int]


def cases(root: Path = GOLDEN) -> list[Path]:
    """All case directories."""
    return sorted(p.parent for p in root.rglob(COMMAND))


def orphans(root: Path = GOLDEN) -> list[Path]:
    """Files that belong to no case."""
    homes = set(cases(root))
    return sorted(
        p for p in root.rglob("*") if p.is_file() and not homes & set(p.parents) and p.suffix != ".md"
    )


def is_input(name: str) -> bool:
    """Whether a file of a case goes in, rather than comes out."""
    return name == COMMAND or name.rsplit("/", maxsplit=1)[-1].startswith("input")


def kept(case: Path) -> dict[str, bytes]:
    """What the case is expected to write, by relative path."""
    files = {p.relative_to(case).as_posix(): p for p in case.rglob("*") if p.is_file()}
    return {name: p.read_bytes() for name, p in files.items() if not is_input(name)}


def commands(case: Path) -> list[list[str]]:
    """The argument lists of the case's commands, without `rpegc`."""
    found = []
    for line in (case / COMMAND).read_text().splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "rpegc", f"{case / COMMAND}: not an rpegc command: {line}"
            found.append(words[1:])
    return found


def written(case: Path, folder: Path, run: Run, streams: Callable[[], tuple[str, str]]) -> dict[str, bytes]:
    """Run the case in the empty `folder` and collect what it writes.

    `run` executes one command in `folder`; `streams` gives stdout and stderr since it was last asked.
    """
    for path in case.rglob("input*"):
        target = folder / path.relative_to(case)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    given = {p for p in folder.rglob("*") if p.is_file()}
    codes = [run(arguments) for arguments in commands(case)]
    files = {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p not in given
    }
    for name, text in zip(("stdout", "stderr"), streams(), strict=True):
        if text:
            files[name] = text.encode()
    files["exit"] = "".join(f"{code}\n" for code in codes).encode()
    return files


def bless(case: Path, files: dict[str, bytes]) -> None:
    """Keep `files` as what the case writes, and nothing else."""
    for name in kept(case).keys() - files.keys():
        (case / name).unlink()
    for name, data in files.items():
        (case / name).parent.mkdir(parents=True, exist_ok=True)
        (case / name).write_bytes(data)


def mismatch(case: Path, files: dict[str, bytes]) -> str:
    """What is written differently from what is kept, in the terms of the stages; empty if nothing is."""
    before = kept(case)
    found = [
        f"missing golden: {name} is written but not kept" for name in sorted(files.keys() - before.keys())
    ]
    found += [
        f"orphaned golden: {name} is kept but not written" for name in sorted(before.keys() - files.keys())
    ]
    for name in sorted(before.keys() & files.keys()):
        if before[name] != files[name]:
            found.append(f"{name} differs:\n{explain(before[name], files[name])}")
    return "\n".join(found)


def explain(before: bytes, after: bytes) -> str:
    """The semantic difference of two stage files, or a line-by-line one of anything else."""
    try:
        found = difference(decode_stage(before, check_id=False)[1], decode_stage(after, check_id=False)[1])
        if not found.same:
            return render(found)
    except (DiagnosticError, ValueError):
        pass
    texts = [data.decode(errors="replace").splitlines() for data in (before, after)]
    return "\n".join(difflib.unified_diff(*texts, "kept", "written", lineterm=""))
