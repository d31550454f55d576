"""While a search runs: how far it is, and Ctrl-C.

On a terminal one line is kept up to date; elsewhere a line is printed for every improvement. The first
Ctrl-C asks the search for the best plan so far, which is then written as if the search had ended by itself;
the second one quits. Before the search has begun the first one quits.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from passes.search.progress import WATCH, Improvement, Progress, Watch
from rpegc.cli.console import Console
from rpegc.driver import Instrument, StageRun
from rpegc.registry import AnyPass


class SearchWatch(Instrument):
    """Watches the pass `search`; `asked` tells whether it was asked to stop."""

    def __init__(self, console: Console, on_improvement: Callable[[Improvement], None] | None = None) -> None:
        self.console = console
        on_progress = None if console.quiet else self._show
        self.watch = Watch(on_progress=on_progress, on_improvement=on_improvement)
        self.begun = False
        self.best = 0.0

    @property
    def asked(self) -> bool:
        """Whether the search was asked to stop."""
        return self.watch.stop

    def before(self, p: AnyPass) -> None:
        """From now on there may be a best plan so far."""
        self.begun = self.begun or p.name == "search"

    def after(self, index: int, run: StageRun) -> None:
        """Clear the line that showed the progress."""
        if run.made_by is not None and run.made_by.name == "search":
            self.console.transient("")

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C."""
        if not self.begun or self.watch.stop:
            raise KeyboardInterrupt
        self.watch.stop = True
        self.console.say("stopping: the best plan so far will be written (Ctrl-C again quits)")

    def _show(self, progress: Progress) -> None:
        if self.console.terminal:
            self.console.transient(live(progress))
        elif progress.best > self.best:
            self.console.say(improvement(progress))
        self.best = max(self.best, progress.best)


@contextmanager
def watching(
    console: Console, on_improvement: Callable[[Improvement], None] | None = None
) -> Iterator[SearchWatch]:
    """Within this context searches are watched and Ctrl-C is handled (in the main thread only).

    `on_improvement` is told of every better plan.
    """
    observer = SearchWatch(console, on_improvement)
    token = WATCH.set(observer.watch)
    mine = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGINT, observer.interrupt) if mine else None
    try:
        yield observer
    finally:
        if mine:
            signal.signal(signal.SIGINT, previous)
        WATCH.reset(token)
        console.transient("")


def improvement(p: Progress) -> str:
    """One improvement, in words that are the same in every run: `after 120 evaluations: score 10450 …`."""
    return f"after {p.evaluations} evaluations: {best(p)}"


def live(p: Progress) -> str:
    """The state of the search, what matters most first: a terminal may cut the line."""
    parts = [] if p.seconds_left is None else [f"{p.seconds_left:.0f} s left"]
    parts.append(f"score {p.best:.5g}" if p.best else "no plan fits yet")
    if p.gap is not None:
        parts.append(f"at most {100 * p.gap:.1f} % to gain")
    of = "" if p.budget is None else f" of {p.budget}"
    where = f" in structure {p.structure} of {p.structures}" if p.structures > 1 else ""
    parts += [f"{p.rate:.0f}/s", *gains(p), f"{p.evaluations}{of} evaluations{where}"]
    return f"{p.method}: {', '.join(parts)}"


def best(p: Progress) -> str:
    """The best plan's score [tokens/s at full length] and its gain over the starting points."""
    if not p.best:
        return "no plan fits yet"
    gained = gains(p)
    return f"score {p.best:.5g}" + (f" ({', '.join(gained)})" if gained else "")


def gains(p: Progress) -> list[str]:
    """How much better the best plan is than each starting point that fits."""
    return [
        f"{100 * gain:+.1f} % over {name}"
        for name, start in (("greedy", p.greedy), ("concurrent", p.concurrent))
        if (gain := p.gain(start)) is not None
    ]
