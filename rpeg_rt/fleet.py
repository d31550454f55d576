"""The workers of a run as the controller sees them: starting, talking, noticing deaths, and ending them.

Everything arrives through one selector, so the controller sleeps until something happens. A run on one
machine listens on loopback only, one under a launcher at the address of one interface. A connection that
does not prove to know the run's secret is dropped, at once or after `HELLO_SECONDS`.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

import rpeg_rt
from rpeg_rt.peer import Peer
from rpeg_rt.protocol import Assign, Ended, Frame, Hello, Join, Message, Signalled, Stop, authentic
from rpeg_rt.spawn import LOG_LINES
from rpeg_rt.wire import FRAME_LIMIT, ProtocolError

CLOSE_SECONDS = 5.0
HELLO_SECONDS = 30.0
"""How long a connection may take to say who it is; workers and tasks do so first of all."""
REPORT_SECONDS = 2.0
STOP_SECONDS = 0.5


@dataclass(frozen=True)
class Received:
    """Worker `rank` sent a frame."""

    rank: int
    frame: Frame


@dataclass(frozen=True)
class Lost:
    """Worker `rank` is gone; None: a task that starts workers."""

    rank: int | None
    reason: str


@dataclass(frozen=True)
class Asked:
    """The launcher sent signal `number` to a task."""

    number: int


@dataclass(frozen=True)
class Woken:
    """Somebody called `wake`."""


Event = Received | Lost | Asked | Woken


class Fleet:
    """`count` workers of `tasks` tasks: `start`, `events` until done, then `close` (also after errors).

    `own` is the task that this process starts by itself, the only one of a run without a launcher;
    `address` is listened on, at `port` (0: any); `interface` is where the workers' traffic goes.
    """

    def __init__(
        self,
        count: int,
        own: Join,
        *,
        tasks: int = 1,
        address: str = "127.0.0.1",
        port: int = 0,
        interface: str | None = None,
    ) -> None:
        self.count, self.own, self.tasks = count, own, tasks
        self._where, self._interface = (address, port), interface
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, Peer] = {}
        self._members: dict[int, Peer] = {}
        self._strangers: dict[Peer, float] = {}  # with the moment at which they are dropped, ascending
        self._assignment: Mapping[int, tuple[int, ...]] = {}
        self.joins: dict[int, Join] = {}
        self.pids: dict[int, int] = {}
        self._ended: dict[int, Ended] = {}
        self._spawner: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the fleet)
        self._listener: socket.socket | None = None
        self._store: socket.socket | None = None
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, "woken")

    def wake(self) -> None:
        """Make `events` return; callable from any thread."""
        with suppress(BlockingIOError):
            self._wake.send(b"\0")

    @property
    def address(self) -> tuple[str, int]:
        """Where tasks and workers connect to."""
        assert self._listener is not None
        host, port = self._listener.getsockname()
        return host, port

    @property
    def store(self) -> tuple[str, int]:
        """Where worker 0 will let the others find each other."""
        assert self._store is not None
        host, port = self._store.getsockname()
        return host, port

    def listen(self) -> None:
        """Wait for tasks and workers: those who know the secret appear among `joins` and as
        `Received(rank, Hello)`. Raises OSError if the port is taken."""
        self._listener = socket.create_server(self._where, backlog=self.count + self.tasks)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")

    def open(self) -> None:
        """Listen, and start this process's own task; the others are the launcher's."""
        self.listen()
        self._store = socket.create_server((self._where[0], 0), backlog=self.count)
        root = str(Path(rpeg_rt.__file__).resolve().parent.parent)
        inherited = os.environ.get("PYTHONPATH")
        path = root if not inherited else os.pathsep.join([root, inherited])
        self._spawner = subprocess.Popen(
            [sys.executable, "-P", "-m", "rpeg_rt.spawn"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env=os.environ | {"PYTHONPATH": path},
            pass_fds=[self._store.fileno()],
        )
        assert self._spawner.stdin is not None
        config = {
            "address": self.address,
            "join": msgspec.to_builtins(self.own),
            "interface": self._interface,
            "listener": self._store.fileno(),
        }
        with self._spawner.stdin as pipe:
            pipe.write(json.dumps(config).encode() + b"\n")

    def start(self, assignment: Mapping[int, tuple[int, ...]]) -> None:
        """Start the workers: ranks by task. Opens the fleet if that has not been done."""
        if self._listener is None:
            self.open()
        self._assignment = assignment
        for task in self._members:
            self._assign(task)

    def send(self, rank: int, message: Message) -> None:
        """Queue a frame for worker `rank` (dropped if it is gone: its loss is an event)."""
        peer = self._peers.get(rank)
        if peer is not None:
            peer.send(message)

    def events(self, timeout: float | None) -> list[Event]:
        """What has happened; waits for at most `timeout` seconds (None: until something does)."""
        found: list[Event] = []
        for key, mask in self._selector.select(self._patience(timeout)):
            if key.data == "woken":
                self._woken.recv(4096)
                found.append(Woken())
            elif key.data == "listener":
                self._accept()
            else:
                if mask & selectors.EVENT_WRITE:
                    key.data.flush()
                if mask & selectors.EVENT_READ:
                    found += self._read(key.data)
        found += self._part_with_strangers()
        if self._spawner is not None and self.own.task not in self.joins and self._spawner.poll() is not None:
            found.append(Lost(None, self._spawner_ended()))
        return found

    def explain(self, rank: int) -> str:
        """How a lost worker ended, with the last lines that it wrote."""
        task = next(t for t, ranks in self._assignment.items() if rank in ranks)
        deadline = time.monotonic() + REPORT_SECONDS
        while rank not in self._ended and task in self._members and time.monotonic() < deadline:
            member = self._members[task]
            with selectors.DefaultSelector() as selector:
                selector.register(member.socket, selectors.EVENT_READ)
                if selector.select(deadline - time.monotonic()):
                    self._read(member)
        ended = self._ended.get(rank)
        if ended is not None:
            status = ended.status
            how = f"killed by signal {-status}" if status < 0 else f"exited with status {status}"
            how += " (which the system sends where memory runs out)" if status == -signal.SIGKILL else ""
            return how + _indented(ended.log)
        return "its connection closed" if task in self._members else self._task_ended(task)

    def close(self) -> None:
        """End all workers and wait until they have ended."""
        if self._wake.fileno() < 0:
            return
        for peer in self._peers.values():
            peer.send(Stop())
        self._await(self._peers, STOP_SECONDS)
        for member in self._members.values():
            member.send(Stop())
        self._await(self._members, CLOSE_SECONDS if self.tasks > 1 else STOP_SECONDS)
        if self._spawner is not None:
            # It may still import, and then hears nothing; or it was not admitted yet.
            with suppress(subprocess.TimeoutExpired):
                self._spawner.wait(CLOSE_SECONDS if self.pids else 0)
            self._spawner.kill()
            self._spawner.wait()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Peer):
                key.data.close()
        self._selector.close()
        self._log.close()
        for end in (self._listener, self._store, self._wake, self._woken):
            if end is not None:
                end.close()

    def _await(self, leaving: Mapping[int, Peer], seconds: float) -> None:
        """Give those who were told to stop a moment to leave by themselves."""
        deadline = time.monotonic() + seconds
        while leaving and time.monotonic() < deadline:
            self.events(max(0.0, deadline - time.monotonic()))

    def _assign(self, task: int) -> None:
        if task in self._assignment:
            self._members[task].send(Assign(self._assignment[task]))

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._strangers[Peer(connection, self._selector)] = time.monotonic() + HELLO_SECONDS

    def _patience(self, timeout: float | None) -> float | None:
        """As long as `timeout`, but not beyond the moment at which a stranger is to be dropped."""
        due = next(iter(self._strangers.values()), None)
        if due is None:
            return timeout
        left = max(0.0, due - time.monotonic())
        return left if timeout is None else min(timeout, left)

    def _part_with_strangers(self) -> list[Event]:
        """Let go of those who have not said in time who they are. What they have sent is read first: time in
        which this process itself was stopped is not held against them."""
        found: list[Event] = []
        now = time.monotonic()
        for stranger in [s for s, due in self._strangers.items() if due <= now]:
            found += self._read(stranger)
            if stranger in self._strangers:
                self._drop(stranger)
        return found

    def _read(self, peer: Peer) -> list[Event]:
        data = peer.read()
        if data is None:
            return []
        if not data:
            return self._drop(peer)
        found: list[Event] = []
        try:
            for frame in peer.buffer.feed(data):
                if peer.rank is not None:
                    found.append(Received(peer.rank, frame))
                elif peer.join is not None:
                    found += self._hear(frame)
                elif isinstance(frame, Hello) and self._admit(peer, frame):
                    found.append(Received(frame.rank, frame))
                elif not (isinstance(frame, Join) and self._enrol(peer, frame)):
                    return self._drop(peer)
        except ProtocolError:
            return found + self._drop(peer)
        return found

    def _admit(self, peer: Peer, hello: Hello) -> bool:
        """Whether a connection's first frame makes it worker `hello.rank`."""
        if not authentic(hello, self.own.secret):
            return False
        if hello.rank in self._peers or not 0 <= hello.rank < self.count:
            return False
        del self._strangers[peer]
        peer.rank, peer.buffer.limit = hello.rank, FRAME_LIMIT
        self._peers[hello.rank] = peer
        self.pids[hello.rank] = hello.pid
        return True

    def _enrol(self, peer: Peer, join: Join) -> bool:
        """Whether a connection's first frame makes it task `join.task`."""
        if not authentic(join, self.own.secret) or join.task in self.joins or not 0 <= join.task < self.tasks:
            return False
        del self._strangers[peer]
        peer.join, peer.buffer.limit = join, FRAME_LIMIT
        self._members[join.task] = peer
        self.joins[join.task] = join
        self._assign(join.task)
        return True

    def _hear(self, frame: Frame) -> list[Event]:
        """What a task says; a worker may end before it has connected."""
        if isinstance(frame, Signalled):
            return [Asked(frame.number)]
        if not isinstance(frame, Ended):
            raise ProtocolError("no frame of a task")
        self._ended[frame.rank] = frame
        return [] if frame.rank in self.pids else [Lost(frame.rank, "it ended before it connected")]

    def _drop(self, peer: Peer) -> list[Event]:
        peer.close()
        self._strangers.pop(peer, None)
        if peer.rank is not None:
            del self._peers[peer.rank]
            return [Lost(peer.rank, "its connection closed")]
        if peer.join is None:
            return []
        task = peer.join.task
        del self._members[task]
        rank = next(iter(self._assignment.get(task, ())), None) if self.tasks > 1 else None
        return [Lost(rank, self._task_ended(task))]

    def _task_ended(self, task: int) -> str:
        if self.tasks > 1:
            return f"task {task} on {self.joins[task].machine} ended"
        return self._spawner_ended()

    def _spawner_ended(self) -> str:
        self._log.seek(0)
        return "the process that starts workers ended" + _indented(
            "\n".join(self._log.read().decode(errors="replace").splitlines()[-LOG_LINES:])
        )


def _indented(log: str) -> str:
    """Lines of a log under what they belong to."""
    return "".join(f"\n    | {line}" for line in log.splitlines())
