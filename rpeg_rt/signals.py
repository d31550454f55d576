"""Ctrl-C and the signals of launchers as a request to end in order, from a program's first moment on.

SIGUSR1 is what Slurm can send before a time limit. Only the main thread can handle signals; elsewhere these
context managers do nothing.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Stopped(BaseException):
    """The program was asked to stop where nothing has begun that would have to end in order."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")


def _stop(number: int, _: FrameType | None) -> None:
    _install(dict.fromkeys(ASKING, signal.SIG_IGN))
    raise Stopped(number)


@contextmanager
def stoppable(*, last: bool) -> Iterator[None]:
    """While this lasts, a signal that asks to stop raises Stopped, once; it is the `last` that a program
    does."""
    with _handled(_stop) as before:
        yield
        if last:
            before.update(dict.fromkeys(before, signal.SIG_IGN))


@contextmanager
def on_interrupt(call: Callable[[int], None]) -> Iterator[None]:
    """While this lasts, `call` is called with the number of a signal that asks to stop. A program that leaves
    it by an exception is at its last words, which a signal does not cut off any more."""
    with _handled(lambda number, _: call(number)) as before:
        try:
            yield
        except BaseException:
            before.update({s: signal.SIG_IGN for s, handler in before.items() if handler is _stop})
            raise


@contextmanager
def complete() -> Iterator[None]:
    """While this lasts, launchers are not heard: what they want stopped is done. Ctrl-C raises Stopped."""
    with _handled(lambda number, frame: _stop(number, frame) if number == signal.SIGINT else None):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[dict[signal.Signals, Any]]:
    """`handler` in place of those that are yielded, and set again at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    before = _install(dict.fromkeys(ASKING, handler))
    try:
        yield before
    finally:
        _install(before)


def _install(handlers: Mapping[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Set handlers; those before."""
    return {s: signal.signal(s, handler) for s, handler in handlers.items()}
