"""Ctrl-C and the signals of launchers as a request to end in order, instead of an exception anywhere."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_interrupt(call: Callable[[int], None]) -> Iterator[None]:
    """While this lasts, `call` is called with the number of a SIGINT, SIGTERM, or SIGUSR1 (which Slurm can
    send before a time limit); only the main thread can handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {s: signal.signal(s, lambda n, _: call(n)) for s in asking}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
