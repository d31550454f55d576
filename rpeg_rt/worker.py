"""A persistent worker: one process per GPU, hosting the shards of every model placed on it.

It carries out commands in the order in which they come, one at a time; every worker of a node is given the
node in one common order, so collectives match. It reports what it really did, and leaves when its
controller goes away.
"""

import os
import socket
import threading
import time
import traceback
from contextlib import suppress

import torch
import torch.distributed as dist

from rpeg_rt.bench.worker import BenchWorker
from rpeg_rt.engine.training import NumericError
from rpeg_rt.execution import EngineError, Executor, told
from rpeg_rt.network import keep_alive
from rpeg_rt.protocol import (
    PULSE_SECONDS,
    Bench,
    Command,
    Evaluate,
    Failed,
    Hello,
    Keep,
    Pulse,
    Ready,
    Save,
    Start,
    Stop,
)
from rpeg_rt.wire import Channel


def _failure(command: Command | None, exc: BaseException) -> Failed:
    text, frames = told(exc), traceback.format_tb(exc.__traceback__)
    if isinstance(exc, EngineError):
        # Most likely a setting: the message names it, and of the engine's inside the last place will do.
        text, frames = str(exc), traceback.format_tb((exc.__cause__ or exc).__traceback__)[-1:]
    lower = text.lower()
    lost = isinstance(exc, dist.DistError) or "gloo" in lower or "connection" in lower
    kind = "numeric" if isinstance(exc, NumericError | FloatingPointError) else "peer" if lost else "error"
    node, step = (None, None) if command is None else (command.node, command.step)
    return Failed(node, step, kind, text, "".join(frames))


def _beat(channel: Channel) -> None:
    """Tell the controller for as long as there is one that this process lives, and how much it works."""
    with suppress(OSError):
        while True:
            channel.send(Pulse(time.monotonic_ns(), time.process_time_ns()))
            time.sleep(PULSE_SECONDS)


def main(rank: int, address: tuple[str, int], secret: str, listener: int | None) -> int:
    """Serve commands until the controller says stop or goes away; the process's exit code. `listener` is the
    descriptor of the store's socket, for worker 0."""
    torch.set_num_threads(1)
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        channel = Channel(connection)
        channel.send(Hello(secret, rank, os.getpid()))
        command: Command | None = None
        try:
            start = channel.receive()
            if isinstance(start, Bench):
                return BenchWorker(rank, start, listener).serve(channel)
            if not isinstance(start, Start):
                return 1
            threading.Thread(target=_beat, args=(channel,), daemon=True).start()
            executor = Executor(rank, start, listener)
            channel.send(Ready())
            while True:
                frame = channel.receive()
                if frame is None or isinstance(frame, Stop):
                    return 0
                if isinstance(frame, Evaluate):
                    channel.send(executor.evaluate(frame))
                    continue
                if isinstance(frame, Keep):
                    channel.send(executor.keep(frame))
                    continue
                if isinstance(frame, Save):
                    channel.send(executor.save(frame))
                    continue
                assert isinstance(frame, Command)
                command = frame
                channel.send(executor.execute(command))
                command = None
        except Exception as exc:
            traceback.print_exc()
            channel.send(_failure(command, exc))
            # Peers may be waiting for this worker: stay until the controller has heard and decides.
            channel.receive()
            return 1
