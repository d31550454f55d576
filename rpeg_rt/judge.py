"""A verifier in a process of its own, which can be ended when it hangs and may do to itself what it likes.

`python -m rpeg_rt.judge PARENT DIRECTORY NAME` loads verifier NAME and answers on standard output: first
`{}`, or `{"unloadable": why, "file": whether a file is at fault}`; then to each line `[prompt, response,
record]` of standard input `{"reward": number}` or `{"error": text}`, until that closes. What the verifier
prints goes to standard error.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rpeg_rt.failure import FileError, UserCodeError
from rpeg_rt.spawn import die_with_parent
from rpeg_rt.verifiers import as_reward, last_line, load_verifier

LOAD_SECONDS = 300.0
WINDOW_BYTES = 32768
"""Requests are sent ahead up to this size: a pipe takes it without waiting for whoever reads it."""


class Question(NamedTuple):
    """What a verifier is given."""

    prompt: str
    response: str
    record: dict[str, Any]


class Verdict(NamedTuple):
    """A reward, or why there is none."""

    reward: float
    error: str | None = None


class Judge:
    """One verifier process, started by `start` or when it is first needed, and anew after it was ended."""

    def __init__(self, name: str, directory: Path, timeout_seconds: float) -> None:
        self._name, self._directory, self._timeout = name, directory, timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._closed = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process and load the verifier. Raises FileError if there is no such verifier,
        UserCodeError if it cannot be loaded, or the system has no process for it."""
        command = [sys.executable, "-m", "rpeg_rt.judge", str(os.getpid()), str(self._directory), self._name]
        with self._lock:
            if self._closed:
                raise UserCodeError(f"verifier `{self._name}` is needed no longer")
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
                )
            except OSError as exc:
                raise UserCodeError(f"verifier `{self._name}` gets no process: {exc.strerror}") from exc
        line = self._line(LOAD_SECONDS)
        if not line:
            why = f"was not loaded within {LOAD_SECONDS:.0f} s" if line is None else self._ended()
            self._end()
            raise UserCodeError(f"verifier `{self._name}` {why}")
        answer = json.loads(line)
        if "unloadable" in answer:
            self._end()
            raise (FileError if answer["file"] else UserCodeError)(answer["unloadable"])

    def close(self) -> None:
        """End the process for good; a thread that waits for it gets an error."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def verdicts(self, questions: Sequence[Question]) -> Iterator[Verdict]:
        """The verdict on each question, in order. One that takes longer than the time-out, or ends the
        process, has an error, and the next one gets a new process."""
        lines = [json.dumps(q, default=str).encode() + b"\n" for q in questions]
        done = 0
        while done < len(lines):
            if self._process is None:
                try:
                    self.start()
                except (FileError, UserCodeError) as exc:
                    done += 1
                    yield Verdict(0.0, str(exc))
                    continue
            for verdict in self._ask(lines[done:]):
                done += 1
                yield verdict

    def _ask(self, lines: Sequence[bytes]) -> Iterator[Verdict]:
        """Verdicts on `lines`, up to the first that the process does not survive."""
        assert self._process is not None
        assert self._process.stdin is not None
        sent = outstanding = 0
        for i, mine in enumerate(lines):
            with suppress(BrokenPipeError):  # it has ended, which reading will tell
                while sent <= i or (sent < len(lines) and outstanding + len(lines[sent]) <= WINDOW_BYTES):
                    outstanding += len(lines[sent])
                    sent += 1
                    self._process.stdin.write(lines[sent - 1])
                self._process.stdin.flush()
            line = self._line(self._timeout)
            if not line:
                why = f"it did not answer within {self._timeout:g} s" if line is None else self._ended()
                self._end()
                yield Verdict(0.0, why)
                return
            outstanding -= len(mine)
            answer = json.loads(line)
            yield Verdict(answer.get("reward", 0.0), answer.get("error"))

    def _line(self, seconds: float) -> bytes | None:
        """The next line that the process writes; empty if it has ended, None if it takes too long."""
        assert self._process is not None
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], seconds)[0]:
                return None
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                return b""
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _ended(self) -> str:
        """How the process came to its end, which is at hand."""
        assert self._process is not None
        code = self._process.wait()
        return f"its process ended by signal {-code}" if code < 0 else f"its process ended with code {code}"

    def _end(self) -> None:
        assert self._process is not None
        with self._lock:
            process, self._process, self._unread = self._process, None, b""
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def main(parent: str, directory: str, name: str) -> None:
    """Load a verifier and answer."""
    die_with_parent(int(parent))
    # A launcher signals all processes of a task; a run ends its verifiers itself.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)

    def answer(found: dict[str, Any]) -> None:
        answers.write(json.dumps(found).encode() + b"\n")
        answers.flush()

    try:
        verifier = load_verifier(name, Path(directory))
    except (FileError, UserCodeError) as exc:
        answer({"unloadable": str(exc), "file": isinstance(exc, FileError)})
        return
    answer({})
    for line in questions:
        prompt, response, record = json.loads(line)
        try:
            found: dict[str, Any] = {"reward": as_reward(verifier(prompt, response, record))}
        except BaseException as exc:  # sys.exit() in a verifier is an error like others
            found = {"error": last_line(exc)[:2000]}
        answer(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
