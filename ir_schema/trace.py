"""The trace of a run: one JSON line per event, each carrying the SHA-256 of all lines up to it.

    header                  plan id, steps, seed, precision; workers' devices, machines, backend, software
    dispatch / complete     in the order in which the controller acted
    evaluation              held-out prompts were answered while no node ran
    stopping                the run was asked to stop at the end of a step
    snapshot                the run's state was written between two steps
    footer                  exit code, message and counts: a trace without one was cut off

One changed byte breaks the chain from its line on. The chain proves integrity, not authorship: whoever
rewrites a whole trace is caught by the rules of `rpeg-rt verify`, not by the chain.
"""

import hashlib
import itertools
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from ir_schema.base import Record
from ir_schema.stages import Microtask

VERSION = 1
_CHAIN = b',"chain":"'
_END = b'"}\n'
_DIGEST = 64
_BEGIN = b'{"event":'


class NotATraceError(ValueError):
    """A file never was a trace; the text says what it is instead, or nothing."""


class BrokenTraceError(Exception):
    """A trace is not what a runtime wrote: the line and what is wrong with it."""


class Event(Record, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """Base of all trace lines. Times are nanoseconds since the start of the run."""


class Header(Event, frozen=True, kw_only=True):
    """What was run, where and with what. `workers` maps rank to device, `machines` to the host (under a
    launcher: its node) that the worker ran on. `backend` carried tensors between them, and `software` has
    versions of what decides what is computed. `eval_every`: how many steps lie between held-out evaluations
    (None: none but before and after).

    A resumed run begins at step `first` with the versions `oldest`..`first` of each trained model. One that
    may leave snapshots carries out what later steps need (`continues`), and pauses for one every `save_every`
    steps (None: only when it is asked to stop)."""

    version: int
    plan: str
    steps: int
    seed: int
    precision: str
    workers: dict[int, str]
    machines: dict[int, str]
    backend: str
    software: dict[str, str]
    eval_every: int | None = None
    first: int = 0
    oldest: dict[str, int] = {}
    continues: bool = False
    save_every: int | None = None


class Dispatch(Event, frozen=True, kw_only=True):
    """The controller started template node `node` at `step` on `workers`."""

    time_ns: int
    node: int
    step: int
    kind: str
    vertex: str
    phase: int | None
    workers: tuple[int, ...]


class Fused(Record, frozen=True, kw_only=True):
    """What a worker did of a fused training: the hash of the schedule that it followed, and the microtasks of
    each optimizer step in the order in which they ran."""

    schedule: str
    executed: tuple[tuple[Microtask, ...], ...]


class Part(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One worker's report: when it worked, in which layout, which versions it read and wrote, bytes by peer,
    the rows that it then held (half-open
    ranges of sequence indices), and for fused training the microtasks."""

    start_ns: int
    finish_ns: int
    layout: str
    reads: dict[str, int]
    writes: dict[str, int]
    sent: dict[int, int]
    received: dict[int, int]
    rows: dict[str, tuple[tuple[int, int], ...]]
    fused: Fused | None = None


class Complete(Event, frozen=True, kw_only=True):
    """All workers of the node have reported. A host vertex has `host` in place of workers."""

    time_ns: int
    node: int
    step: int
    parts: dict[int, Part]
    host: Part | None = None


class Evaluation(Event, frozen=True, kw_only=True):
    """After `step` steps, while no node ran, the workers of training vertex `vertex` answered `prompts`
    held-out prompts, or scored pairs.

    `versions` are those that each worker used, `reward` is the mean (of pairs that of the margins), `correct`
    the share of rewards of 1 or more (of pairs that are preferred rightly).
    """

    step: int
    start_ns: int
    time_ns: int
    vertex: str
    versions: dict[int, int]
    prompts: int
    reward: float
    correct: float


class Stopping(Event, frozen=True, kw_only=True):
    """The run was asked to stop: step `step` and those after it, none of which had begun, will not begin."""

    time_ns: int
    step: int


class Snapshot(Event, frozen=True, kw_only=True):
    """While no node ran, after `step` steps and before any later one, the run's state was written: `versions`
    of the weights of each trained model, `bytes` in all. `failure` says why it was not."""

    step: int
    start_ns: int
    time_ns: int
    versions: dict[str, tuple[int, ...]]
    bytes: int
    failure: str | None = None


class Footer(Event, frozen=True, kw_only=True):
    """How the run ended."""

    time_ns: int
    exit_code: int
    message: str
    dispatched: int
    completed: int


Line = Header | Dispatch | Complete | Evaluation | Stopping | Snapshot | Footer

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


class Chain:
    """Makes the lines of a trace of its events."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def line(self, event: Event) -> bytes:
        """The next line of the file."""
        body = _encoder.encode(event)[:-1]
        self._digest.update(body)
        return body + _CHAIN + self._digest.hexdigest().encode() + _END


def read_events(file: BinaryIO) -> Iterator[Line]:
    """The events of a trace, checked against its chain as they are read.

    Raises NotATraceError, or BrokenTraceError where a line does not fit.
    """
    chain = hashlib.sha256()
    first = file.readline()
    if not first.startswith(_BEGIN) and _CHAIN not in first:
        raise NotATraceError("" if first else "it is empty")
    for number, line in enumerate(itertools.chain((first,), file), start=1):
        body, digest = _split(line, number)
        chain.update(body)
        if chain.hexdigest().encode() != digest:
            raise BrokenTraceError(f"line {number} was changed: it does not fit the hash chain")
        try:
            yield _decoder.decode(body + b"}")
        except msgspec.DecodeError as exc:
            raise BrokenTraceError(f"line {number} is not an event: {exc}") from exc


def _split(line: bytes, number: int) -> tuple[bytes, bytes]:
    """A line's body and digest."""
    tail = len(_CHAIN) + _DIGEST + len(_END)
    cut = len(line) - tail
    if cut <= 0 or line[cut : cut + len(_CHAIN)] != _CHAIN or not line.endswith(_END):
        raise BrokenTraceError(f"line {number} is incomplete or was changed: it does not end in its hash")
    return line[:cut], line[cut + len(_CHAIN) : -len(_END)]
