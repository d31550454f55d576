"""The clock of a worker's machine, told by the controller's.

Every report is a pair of messages: a command that left at a known time and a report that came back at
another, with the worker's own times between. Their middle is the usual estimate of how far two clocks are
apart (RFC 5905, section 8).
"""


class Clock:
    """Translates one worker's times, ns, to the controller's; on one machine they are the same."""

    def __init__(self) -> None:
        self._ahead = 0

    def translate(self, sent: int, start: int, finish: int, received: int) -> tuple[int, int]:
        """`start` and `finish` by the worker's clock, of work asked for at `sent` and reported at `received`
        by the controller's: by the latter, and within the two. Clocks that drift are followed."""
        least, most = sent - start, received - finish
        if not least <= self._ahead <= most:
            self._ahead = (least + most) // 2
        return max(sent, start + self._ahead), min(received, finish + self._ahead)
