"""What controller, tasks and workers tell each other: typed records, which `wire` makes bytes of.

A worker opens with `Hello` and the run's secret, a task that starts workers with `Join` and the secret; until
it has, at most a small frame is read from it.
"""

import hmac

import msgspec
import numpy as np
import numpy.typing as npt

from ir_schema.trace import Fused
from rpeg_rt.bench.jobs import Job, Result
from rpeg_rt.rows import Ranges
from rpeg_rt.snapshots.manifest import Piece

PULSE_SECONDS = 5.0


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all frames."""


class Array(msgspec.Struct, frozen=True, array_like=True):
    """A numpy array: dtype name, shape and raw little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class RowsFrame(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a container with their global sequence (or prompt) indices."""

    rows: Ranges
    values: Array


class Move(msgspec.Struct, frozen=True, array_like=True):
    """This worker's part in bringing `container` of template nodes `sources` to its readers.

    It ends up holding `need`: `local` from its own store and `receives` from others, by worker.
    """

    container: str
    sources: tuple[int, ...]
    need: Ranges
    local: Ranges
    sends: tuple[tuple[int, Ranges], ...]
    receives: tuple[tuple[int, Ranges], ...]


class Hello(Message, frozen=True, tag=True, array_like=True):
    """Worker to controller: who it is, proved by the run's secret."""

    secret: str
    rank: int
    pid: int


class Join(Message, frozen=True, tag=True, array_like=True):
    """Task to controller: it can start workers. `task` of the launcher, proved by the run's secret; the index
    and the name of its node and its place there; versions of packages and the plan's id there; free memory
    in bytes and GPUs, where they are known; and what else is in the way of a run.
    """

    secret: str
    task: int
    node: int
    slot: int
    machine: str
    software: dict[str, str]
    plan: str
    memory_bytes: int | None
    gpus: int
    problem: str = ""


class Assign(Message, frozen=True, tag=True, array_like=True):
    """Controller to task: start these workers."""

    ranks: tuple[int, ...]


class Ended(Message, frozen=True, tag=True, array_like=True):
    """Task to controller: a worker has ended, with its exit status (negative: a signal) and last lines."""

    rank: int
    status: int
    log: str


class Signalled(Message, frozen=True, tag=True, array_like=True):
    """Task to controller: the launcher has sent it signal `number`."""

    number: int


class Start(Message, frozen=True, tag=True, array_like=True):
    """Controller to worker: the executable's canonical bytes and what every worker must agree on.

    `store` is where workers find each other, a host and a port at which worker 0 listens. `origin_ns` is the
    zero of all times of the run on the controller's monotonic clock; `eos` ends a response;
    `checkpoints` are the directories that models start from, by model, and `snapshot`
    is where a run is resumed from.
    """

    executable: bytes
    seed: int
    store: tuple[str, int]
    origin_ns: int
    eos: int | None
    checkpoints: dict[str, str]
    snapshot: str | None = None


class Pulse(Message, frozen=True, tag=True, array_like=True):
    """Worker to controller, every `PULSE_SECONDS`: it lives, and by its clock at `time_ns` it has used
    `used_ns` of processor time."""

    time_ns: int
    used_ns: int


class Bench(Message, frozen=True, tag=True, array_like=True):
    """Controller to worker, in place of `Start`: measure what you are asked to, as one of `world` workers who
    find each other at `store`; `place` is the worker's among those of its node."""

    store: tuple[str, int]
    world: int
    place: int


class Ready(Message, frozen=True, tag=True, array_like=True):
    """Worker to controller: models are built and loaded, or measuring can begin."""


class Command(Message, frozen=True, tag=True, array_like=True):
    """Controller to worker: carry out template node `node` at `step`. `rows` come from the host."""

    node: int
    step: int
    moves: tuple[Move, ...] = ()
    rows: dict[str, RowsFrame] = {}


class Done(Message, frozen=True, tag=True, array_like=True):
    """Worker to controller: what it really did.

    Versions read and written by model, bytes sent and received by peer, rows now held by container, metrics
    by vertex, for a host reader the rows themselves, and of fused training what was interleaved.
    """

    node: int
    step: int
    start_ns: int
    finish_ns: int
    layout: str
    reads: dict[str, int]
    writes: dict[str, int]
    sent: dict[int, int]
    received: dict[int, int]
    rows: dict[str, Ranges]
    metrics: dict[str, dict[str, float]]
    host_rows: dict[str, RowsFrame]
    fused: Fused | None = None


class Evaluate(Message, frozen=True, tag=True, array_like=True):
    """Controller to worker: with the newest weights of `vertex`, sample a response to each of its replica's
    held-out prompts `rows` [n, L_p], or score responses of pairs [n, L_p + L_r]. They are those from `first`
    on."""

    vertex: str
    first: int
    rows: Array
    paired: bool


class Answers(Message, frozen=True, tag=True, array_like=True):
    """Worker to controller: the responses [n, L_p + L_r] to an Evaluate, or of pairs the log-probabilities
    [n] of whole responses, and the version that gave them."""

    first: int
    version: int
    rows: Array


class Save(Message, frozen=True, tag=True, array_like=True):
    """Controller to worker: write the slices of training `vertex`'s weights into a laid-out checkpoint."""

    vertex: str
    path: str


class Saved(Message, frozen=True, tag=True, array_like=True):
    """Worker to controller: its slices of `vertex`'s weights, of `version`, are in the files."""

    vertex: str
    version: int


class Keep(Message, frozen=True, tag=True, array_like=True):
    """Controller to worker: write this worker's part of a snapshot after `step` steps into a directory."""

    step: int
    path: str


class Kept(Message, frozen=True, tag=True, array_like=True):
    """Worker to controller: the files that it wrote, by name; optimizer steps so far, by model trained here;
    what algorithms remember, by training vertex. Or why it could not (`failure`)."""

    files: dict[str, Piece]
    updates: dict[str, int]
    memory: dict[str, dict[str, float]]
    failure: str | None = None


class Failed(Message, frozen=True, tag=True, array_like=True):
    """Worker to controller: it cannot go on. `kind`: "peer" another worker went away, "numeric" a number is
    not finite, "error" anything else."""

    node: int | None
    step: int | None
    kind: str
    message: str
    detail: str


class Measure(Message, frozen=True, tag=True, array_like=True):
    """Controller to worker: do this job."""

    job: Job


class Measured(Message, frozen=True, tag=True, array_like=True):
    """Worker to controller: the job is done."""

    result: Result


class Stop(Message, frozen=True, tag=True, array_like=True):
    """Controller to worker or task: the run is over; leave."""


Frame = (
    Join
    | Assign
    | Ended
    | Signalled
    | Hello
    | Start
    | Pulse
    | Bench
    | Measure
    | Measured
    | Ready
    | Command
    | Done
    | Evaluate
    | Answers
    | Save
    | Saved
    | Keep
    | Kept
    | Failed
    | Stop
)


def to_array(values: npt.NDArray[np.generic]) -> Array:
    """`values` as a frame."""
    contiguous = np.ascontiguousarray(values)
    return Array(str(contiguous.dtype), values.shape, contiguous.tobytes())


def from_array(frame: Array) -> npt.NDArray[np.generic]:
    """The array of a frame (writable)."""
    return np.frombuffer(frame.data, dtype=np.dtype(frame.dtype)).reshape(frame.shape).copy()


def authentic(hello: Frame, secret: str) -> bool:
    """Whether `hello` introduces a worker or a task that knows the secret."""
    return isinstance(hello, Hello | Join) and hmac.compare_digest(hello.secret.encode(), secret.encode())
