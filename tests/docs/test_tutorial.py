"""The tutorial's commands print what the tutorial says; `--bless` rewrites it."""

import difflib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.tutorial import Command, File, blessed, matches, parts, rewritten, same

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLESS = "python -m pytest tests/docs --bless"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Where `rpegc` and `rpeg-rt` are this checkout's, on a terminal without colours."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, module in (("rpegc", "rpegc"), ("rpeg-rt", "rpeg_rt")):
        script = folder / name
        script.write_text(
            f"#!/bin/sh\nexec '{sys.executable}' -c 'from {module}.cli import main; main()' \"$@\"\n"
        )
        script.chmod(0o755)
    python = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(folder), str(python), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
    }


def test_the_tutorial(tmp_path: Path, environment: dict[str, str], request: pytest.FixtureRequest) -> None:
    folder = tmp_path / "start"
    folder.mkdir()
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    wrong: list[str] = []

    def execute(part: File | Command) -> list[str]:
        if isinstance(part, File):
            (folder / part.name).write_text(part.content)
            return []
        done = subprocess.run(
            ["bash", "-c", part.text],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        printed = done.stdout.splitlines()
        if not same(part.output, printed):
            shown = blessed(part.output, printed)
            found = difflib.unified_diff(part.output, shown, "tutorial", "printed", lineterm="", n=1)
            wrong.append("\n".join([f"$ {part.text.rstrip()}", *found]))
        return printed

    new = rewritten(TUTORIAL.read_text(), execute)
    if request.config.getoption("--bless"):
        TUTORIAL.write_text(new)
    elif wrong:
        report = "\n\n".join(wrong)
        pytest.fail(f"{report}\n\nif this is what should be, bless it:\n  {BLESS}", pytrace=False)


TEXT = """Write a file:

```rpeg a.rpeg
rpeg 1
```

```console
$ cat a.rpeg
rpeg 1
$ echo one;
> echo 3.5 s
one
… s
```
"""


def test_files_and_commands_are_found_in_order() -> None:
    file, first, second = parts(TEXT)
    assert file == File("a.rpeg", "rpeg 1\n")
    assert isinstance(first, Command)
    assert (first.text, first.output) == ("cat a.rpeg\n", ("rpeg 1",))
    assert isinstance(second, Command)
    assert (second.text, second.output) == ("echo one;\necho 3.5 s\n", ("one", "… s"))


@pytest.mark.parametrize("block", ["```python\n1\n```\n", "```console\nrpegc\n```\n"])
def test_blocks_that_nothing_would_check_are_refused(block: str) -> None:
    with pytest.raises(ValueError, match="block"):
        list(parts(block))


def test_elisions_stay_within_a_line_and_everything_else_is_exact() -> None:
    assert same(("took … s", "done"), ["took 1.5 s", "done"])
    assert not same(("took … s",), ["took 1.5 s", "done"])
    assert not same(("took … s", "done"), ["took 1.5 s"])
    assert not same(("took … s",), ["took 1.5 ms"])
    assert not matches("a.c", "abc")


def test_blessing_keeps_elisions_that_fit_and_replaces_the_rest() -> None:
    def execute(part: File | Command) -> list[str]:
        if isinstance(part, File):
            return []
        return ["rpeg 2"] if part.text.startswith("cat") else ["zero", "one", "4.5 s"]

    new = rewritten(TEXT, execute)
    assert new == TEXT.replace("a.rpeg\nrpeg 1\n$", "a.rpeg\nrpeg 2\n$").replace("one\n…", "zero\none\n…")
