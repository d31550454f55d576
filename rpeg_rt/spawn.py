"""The spawner: imports torch and Megatron once, then forks the workers of one machine.

`python -m rpeg_rt.spawn` reads one JSON line from standard input, forks, reports every worker that ends
as a JSON line on standard output, and kills all that are left when standard input closes: no worker
outlives its controller. A worker dies with the spawner (parent-death signal).
"""

import ctypes
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends (Linux; elsewhere a closed socket ends it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _fork(rank: int, config: dict[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(
            Path(config["logs"]) / f"worker-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        from rpeg_rt.worker import main

        code = main(rank, tuple(config["address"]), config["secret"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(children: dict[int, int]) -> None:
    """Report the children that have ended."""
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        rank = children.pop(pid, None)
        if rank is not None:
            report = {"rank": rank, "pid": pid, "status": os.waitstatus_to_exitcode(status)}
            with suppress(BrokenPipeError):  # The controller may have ended: then so does this process.
                os.write(sys.stdout.fileno(), json.dumps(report).encode() + b"\n")


def main() -> NoReturn:
    """Fork the workers that standard input asks for, and watch over them until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(os.getppid())
    config = json.loads(sys.stdin.readline())
    import rpeg_rt.worker  # noqa: F401  (torch and Megatron, before the fork)

    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    children = {_fork(rank, config): rank for rank in range(config["workers"])}
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ, "stdin")
    selector.register(wake, selectors.EVENT_READ, "wake")
    while True:
        _reap(children)
        keys = [key.data for key, _ in selector.select()]
        if "stdin" in keys and not os.read(sys.stdin.fileno(), 4096):
            break
        if "wake" in keys:
            wake.recv(4096)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    # Not sys.exit: unloading what was imported takes seconds, and there is nothing to flush.
    os._exit(0)


if __name__ == "__main__":
    main()
