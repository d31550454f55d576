"""One connection as the controller has it: never waited for, neither reading nor writing."""

import selectors
import socket
from collections import deque

from rpeg_rt.network import keep_alive
from rpeg_rt.protocol import Join, Message
from rpeg_rt.wire import FrameBuffer, encode


class Peer:
    """A connection registered with `selector`, which has it as data: who is at the other end, as far as that
    is proved (worker `rank`, or the task of `join`), and bytes on their way in and out."""

    def __init__(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        self.socket, self._selector = connection, selector
        self.rank: int | None = None
        self.join: Join | None = None
        self.buffer = FrameBuffer()
        self._out: deque[memoryview] = deque()
        self._waiting = False
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        selector.register(connection, selectors.EVENT_READ, self)

    def read(self) -> bytes | None:
        """What has arrived; empty if the connection is closed, None if nothing has come."""
        try:
            return self.socket.recv(1 << 20)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self, message: Message) -> None:
        """Queue a frame."""
        self._out.append(memoryview(encode(message)))
        self.flush()

    def flush(self) -> None:
        """Send as much of what is queued as the connection takes."""
        try:
            while self._out:
                sent = self.socket.send(self._out[0])
                if sent == len(self._out[0]):
                    self._out.popleft()
                else:
                    self._out[0] = self._out[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # the loss is noticed when reading
        if self._waiting != bool(self._out):
            self._waiting = bool(self._out)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._waiting else 0)
            self._selector.modify(self.socket, events, self)

    def close(self) -> None:
        """Forget the connection."""
        self._selector.unregister(self.socket)
        self.socket.close()
