"""The spawner: starts the workers of one task, watches over them, and ends them with their controller.

It joins the controller over the control plane, forks the workers that it is assigned, reports every one
that ends, and kills all that are left when the controller says stop or goes away: no worker outlives its
controller. A worker dies with its spawner (parent-death signal). A run on one machine has one spawner,
`python -m rpeg_rt.spawn`; under a launcher every task is one.
"""

import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from rpeg_rt.network import Endpoint, endpoint, keep_alive
from rpeg_rt.protocol import Assign, Ended, Join, Signalled, Stop
from rpeg_rt.wire import FRAME_LIMIT, Channel, FrameBuffer

LOG_LINES = 12
_LOG_BYTES = 1 << 14
_PR_SET_PDEATHSIG = 1
_ASKING = (signal.SIGTERM, signal.SIGUSR1)
"""Signals by which a launcher ends a run: the controller is told and decides."""


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends (Linux; elsewhere a closed socket ends it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Spawner:
    """The workers of one task, once `connection` has led to the controller; `listener` is the socket at which
    worker 0 lets the others find each other, where this task may be assigned it."""

    def __init__(self, connection: socket.socket, here: Endpoint, join: Join, listener: int | None) -> None:
        self._connection, self._join, self._listener = connection, join, listener
        self._address = connection.getpeername()
        self._channel = Channel(connection)
        self._buffer = FrameBuffer(FRAME_LIMIT)
        self._children: dict[int, int] = {}
        self._logs: dict[int, Any] = {}
        os.environ["OMP_NUM_THREADS"] = "1"
        if here.interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = here.interface

    def serve(self) -> bool:
        """Do what the controller asks for until it says stop (True) or goes away (False)."""
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller hears it too
        for number in (signal.SIGCHLD, *_ASKING):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        keep_alive(self._connection)
        stopped = False
        with selectors.DefaultSelector() as selector, suppress(OSError):
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            self._channel.send(self._join)
            while not stopped:
                ready = [key.fileobj for key, _ in selector.select()]
                if wake in ready:
                    self._heed(wake.recv(4096))
                if self._connection in ready:
                    data = self._connection.recv(1 << 16)
                    if not data:
                        break
                    stopped = self._obey(data)
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
        self._connection.close()
        return stopped

    def _heed(self, numbers: bytes) -> None:
        """Pass on signals of the launcher and the ends of workers."""
        for number in dict.fromkeys(numbers):
            if number in _ASKING:
                self._channel.send(Signalled(number))
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            rank = self._children.pop(pid)
            self._channel.send(Ended(rank, os.waitstatus_to_exitcode(status), self._tail(rank)))

    def _obey(self, data: bytes) -> bool:
        """Whether the controller said stop."""
        for frame in self._buffer.feed(data):
            if isinstance(frame, Stop):
                return True
            assert isinstance(frame, Assign)
            if len(frame.ranks) > 1:
                import rpeg_rt.worker  # noqa: F401  (torch and Megatron once, before the forks)
            for rank in frame.ranks:
                self._children[self._fork(rank)] = rank
        return False

    def _fork(self, rank: int) -> int:
        parent = os.getpid()
        self._logs[rank] = log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the worker lives)
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (signal.SIGINT, *_ASKING):  # the launcher's signals reach all processes of a task
                signal.signal(number, signal.SIG_IGN)
            self._connection.close()
            null = os.open(os.devnull, os.O_RDONLY)
            for target, source in ((0, null), (1, log.fileno()), (2, log.fileno())):
                os.dup2(source, target)
            from rpeg_rt.worker import main

            code = main(rank, self._address, self._join.secret, self._listener)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _tail(self, rank: int) -> str:
        """The last lines that a worker wrote."""
        with self._logs.pop(rank) as log:
            size = os.fstat(log.fileno()).st_size
            data: bytes = os.pread(log.fileno(), _LOG_BYTES, max(0, size - _LOG_BYTES))
        return "\n".join(data.decode(errors="replace").splitlines()[-LOG_LINES:])


def main() -> NoReturn:
    """Be the spawner of the controller that started this process and wrote on standard input where it is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(os.getppid())
    config = json.loads(sys.stdin.readline())
    address, join = tuple(config["address"]), msgspec.convert(config["join"], Join)
    connection = socket.create_connection(address)
    Spawner(connection, endpoint(address[0], config["interface"]), join, config["listener"]).serve()
    # Not sys.exit: unloading what was imported takes seconds, and there is nothing to flush.
    os._exit(0)


if __name__ == "__main__":
    main()
