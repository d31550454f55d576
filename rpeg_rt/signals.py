"""Ctrl-C and SIGTERM as a request to end in order, instead of an exception anywhere."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """While this lasts, `call` is called at SIGINT and SIGTERM (only the main thread can handle signals)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, lambda *_: call()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
