"""Frames as bytes: length-prefixed msgpack, never pickle, over a stream that may end or lie anywhere."""

import socket
import struct
import threading
from collections.abc import Iterator

import msgspec

from rpeg_rt.protocol import Frame, Message

_LENGTH = struct.Struct("!Q")
HELLO_LIMIT = 4096
FRAME_LIMIT = 1 << 34

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


class ProtocolError(Exception):
    """A peer sent something that is not a frame of this protocol."""


def encode(message: Message) -> bytes:
    """Length and payload of one frame."""
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def decode(payload: bytes) -> Frame:
    """The frame in a payload. Raises ProtocolError."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as exc:
        raise ProtocolError(f"malformed frame: {exc}") from exc


class FrameBuffer:
    """Reassembles frames from a byte stream; `limit` bounds the size of a frame."""

    def __init__(self, limit: int = HELLO_LIMIT) -> None:
        self.limit = limit
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes; yield the frames that are complete. Raises ProtocolError."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > self.limit:
                raise ProtocolError(f"frame of {length} bytes, more than {self.limit}")
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            payload = bytes(self._data[_LENGTH.size : end])
            del self._data[:end]
            yield decode(payload)


class Channel:
    """A blocking connection, as workers use it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one frame; callable from any thread."""
        with self._sending:
            self._socket.sendall(encode(message))

    def receive(self) -> Frame | None:
        """The next frame; None when the peer has closed. Raises ProtocolError."""
        head = self._exactly(_LENGTH.size)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > FRAME_LIMIT:
            raise ProtocolError(f"frame of {length} bytes")
        payload = self._exactly(length)
        return None if payload is None else decode(payload)

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            data = self._socket.recv(min(count - len(parts), 1 << 20))
            if not data:
                return None
            parts += data
        return bytes(parts)
