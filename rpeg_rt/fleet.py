"""The workers of a run as the controller sees them: starting, talking, noticing deaths, and ending them.

Everything arrives through one selector, so the controller sleeps until something happens. Only loopback is
listened on, and a connection that does not prove to know the run's secret is dropped.
"""

import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import rpeg_rt
from rpeg_rt.protocol import (
    FRAME_LIMIT,
    Frame,
    FrameBuffer,
    Hello,
    Message,
    ProtocolError,
    Stop,
    authentic,
    encode,
)

LOG_LINES = 12
CLOSE_SECONDS = 5.0
REPORT_SECONDS = 2.0
STOP_SECONDS = 0.5


@dataclass(frozen=True)
class Received:
    """Worker `rank` sent a frame."""

    rank: int
    frame: Frame


@dataclass(frozen=True)
class Lost:
    """Worker `rank` is gone; None: the process that starts them."""

    rank: int | None
    reason: str


@dataclass(frozen=True)
class Woken:
    """Somebody called `wake`."""


Event = Received | Lost | Woken


class _Peer:
    """One connection: its socket, who is at the other end, and bytes on their way out."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.rank: int | None = None
        self.buffer = FrameBuffer()
        self.out: deque[memoryview] = deque()
        self.waiting = False


class Fleet:
    """`count` workers on this machine: `start`, `events` until done, then `close` (also after errors)."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._directory = tempfile.TemporaryDirectory(prefix="rpeg-rt-", ignore_cleanup_errors=True)
        self.directory = Path(self._directory.name)
        self.secret = secrets.token_hex(32)
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}
        self.pids: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._spawner: subprocess.Popen[bytes] | None = None
        self._reports = b""
        self._listener: socket.socket | None = None
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
        """Where workers connect to."""
        assert self._listener is not None
        host, port = self._listener.getsockname()
        return host, port

    def listen(self) -> None:
        """Wait for workers on loopback; those who know the secret appear as `Received(rank, Hello)`."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=self.count)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")

    def start(self) -> None:
        """Start the workers."""
        self.listen()
        root = str(Path(rpeg_rt.__file__).resolve().parent.parent)
        inherited = os.environ.get("PYTHONPATH")
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": root if not inherited else os.pathsep.join([root, inherited]),
        }
        with (self.directory / "spawner.log").open("wb") as log:
            self._spawner = subprocess.Popen(
                [sys.executable, "-P", "-m", "rpeg_rt.spawn"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        assert self._spawner.stdin is not None
        assert self._spawner.stdout is not None
        config = {
            "address": self.address,
            "secret": self.secret,
            "workers": self.count,
            "logs": str(self.directory),
        }
        self._spawner.stdin.write(json.dumps(config).encode() + b"\n")
        self._spawner.stdin.flush()
        self._selector.register(self._spawner.stdout, selectors.EVENT_READ, "spawner")

    def send(self, rank: int, message: Message) -> None:
        """Queue a frame for worker `rank` (dropped if it is gone: its loss is an event)."""
        peer = self._peers.get(rank)
        if peer is None:
            return
        peer.out.append(memoryview(encode(message)))
        self._flush(peer)

    def events(self, timeout: float | None) -> list[Event]:
        """What has happened; waits for at most `timeout` seconds (None: until something does)."""
        found: list[Event] = []
        for key, mask in self._selector.select(timeout):
            if key.data == "woken":
                self._woken.recv(4096)
                found.append(Woken())
            elif key.data == "listener":
                self._accept()
            elif key.data == "spawner":
                found += self._read_reports()
            else:
                if mask & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if mask & selectors.EVENT_READ:
                    found += self._read(key.data)
        return found

    def explain(self, rank: int) -> str:
        """How a lost worker ended, with the last lines that it wrote."""
        deadline = time.monotonic() + REPORT_SECONDS
        while rank not in self._ended and self._spawner and time.monotonic() < deadline:
            stdout = self._spawner.stdout
            assert stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(stdout, selectors.EVENT_READ)
                if selector.select(deadline - time.monotonic()) and any(
                    isinstance(event, Lost) and event.rank is None for event in self._read_reports()
                ):
                    break
        status = self._ended.get(rank)
        how = "its connection closed"
        if status is not None:
            how = f"killed by signal {-status}" if status < 0 else f"exited with status {status}"
        return how + self.log_tail(f"worker-{rank}.log")

    def log_tail(self, name: str) -> str:
        """The last lines of a log of this run, indented; empty if there are none."""
        try:
            lines = (self.directory / name).read_text(errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            return ""
        return "".join(f"\n    | {line}" for line in lines)

    def close(self) -> None:
        """End all workers and wait until they have ended; remove what the run left on disk."""
        for rank in list(self._peers):
            self.send(rank, Stop())
        if self._spawner is not None:
            assert self._spawner.stdin is not None
            assert self._spawner.stdout is not None
            if self.pids:
                self._await_exits()
            else:
                self._spawner.kill()  # It may still import, and then hears nothing.
            for pipe in (self._spawner.stdin, self._spawner.stdout):
                pipe.close()
            try:
                self._spawner.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self._spawner.kill()
                self._spawner.wait()
        for peer in self._peers.values():
            peer.socket.close()
        self._peers.clear()
        self._selector.close()
        for end in (self._wake, self._woken, *([self._listener] if self._listener else [])):
            end.close()
        self._directory.cleanup()

    def _await_exits(self) -> None:
        """Give workers that were told to stop a moment to leave by themselves."""
        deadline = time.monotonic() + STOP_SECONDS
        while self._peers and time.monotonic() < deadline:
            self.events(max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _read(self, peer: _Peer) -> list[Event]:
        try:
            data = peer.socket.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return self._drop(peer)
        found: list[Event] = []
        try:
            for frame in peer.buffer.feed(data):
                if peer.rank is None and not self._admit(peer, frame):
                    return self._drop(peer)
                assert peer.rank is not None
                found.append(Received(peer.rank, frame))
        except ProtocolError:
            return found + self._drop(peer)
        return found

    def _admit(self, peer: _Peer, frame: Frame) -> bool:
        """Whether a connection's first frame makes it worker `frame.rank`."""
        if not authentic(frame, self.secret):
            return False
        assert isinstance(frame, Hello)
        if frame.rank in self._peers or not 0 <= frame.rank < self.count:
            return False
        peer.rank, peer.buffer.limit = frame.rank, FRAME_LIMIT
        self._peers[frame.rank] = peer
        self.pids[frame.rank] = frame.pid
        return True

    def _drop(self, peer: _Peer) -> list[Event]:
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.rank is None:
            return []
        del self._peers[peer.rank]
        return [Lost(peer.rank, "its connection closed")]

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.out:
                sent = peer.socket.send(peer.out[0])
                if sent == len(peer.out[0]):
                    peer.out.popleft()
                else:
                    peer.out[0] = peer.out[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            peer.out.clear()  # the loss is noticed when reading
        if peer.waiting != bool(peer.out):
            peer.waiting = bool(peer.out)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.waiting else 0)
            self._selector.modify(peer.socket, events, peer)

    def _read_reports(self) -> list[Event]:
        """Ends of workers, as the spawner tells them; a worker may end before it has connected."""
        assert self._spawner is not None
        assert self._spawner.stdout is not None
        data = os.read(self._spawner.stdout.fileno(), 4096)
        if not data:
            self._selector.unregister(self._spawner.stdout)
            return [Lost(None, "the process that starts workers ended" + self.log_tail("spawner.log"))]
        *lines, self._reports = (self._reports + data).split(b"\n")
        found: list[Event] = []
        for line in lines:
            report = json.loads(line)
            self._ended[report["rank"]] = report["status"]
            if report["rank"] not in self.pids:
                found.append(Lost(report["rank"], "it ended before it connected"))
        return found
