"""Frames survive the wire in any pieces, and only who knows the secret is listened to."""

import pickle
import socket
import struct
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg_rt.fleet import Fleet, Lost, Received
from rpeg_rt.joining import local_fleet
from rpeg_rt.protocol import Command, Failed, Hello, Move, RowsFrame, Stop, authentic, from_array, to_array
from rpeg_rt.wire import HELLO_LIMIT, Channel, FrameBuffer, ProtocolError, encode

COMMAND = Command(
    node=3,
    step=2,
    moves=(Move("Y", (0, 1), ((0, 4),), ((0, 2),), ((1, ((2, 3),)),), ((2, ((2, 4),)),)),),
    rows={"r": RowsFrame(((0, 2),), to_array(np.array([0.5, -1.0])))},
)
MESSAGES = [Hello("s", 1, 42), COMMAND, Failed(None, None, "error", "é", "x\ny"), Stop()]


@given(st.data())
def test_frames_are_reassembled_from_any_pieces(data: st.DataObject) -> None:
    stream = b"".join(encode(m) for m in MESSAGES)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    buffer, found = FrameBuffer(limit=1 << 20), []
    for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += list(buffer.feed(stream[a:b]))
    assert found == MESSAGES


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 2), (2,), (0, 4), ()])
def test_arrays_survive(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    back = from_array(to_array(values[..., ::-1] if shape else values))
    assert back.dtype == values.dtype
    assert np.array_equal(back, values[..., ::-1] if shape else values)
    assert back.flags.writeable


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", pickle.dumps({"a": 1}), b"\x92\xa5Hello\x01", b"\x91\xa7Unknown"],
)
def test_what_is_no_frame_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(FrameBuffer().feed(struct.pack("!Q", len(payload)) + payload))


def test_a_frame_longer_than_the_limit_is_refused_before_it_arrives() -> None:
    with pytest.raises(ProtocolError, match=str(HELLO_LIMIT)):
        list(FrameBuffer().feed(struct.pack("!Q", HELLO_LIMIT + 1)))


def test_the_secret() -> None:
    assert authentic(Hello("secret", 0, 1), "secret")
    assert not authentic(Hello("Secret", 0, 1), "secret")
    assert not authentic(Stop(), "secret")


@pytest.fixture
def fleet():
    """A fleet of two that listens, without anybody started."""
    made = local_fleet(2, "a plan")
    made.listen()
    yield made
    made.close()


def connect(fleet: Fleet) -> socket.socket:
    return socket.create_connection(fleet.address, timeout=5)


def gather(fleet: Fleet, seconds: float = 2.0, count: int = 1) -> list[object]:
    found: list[object] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        found += fleet.events(0.05)
    return found


@pytest.mark.parametrize(
    "opening",
    [
        encode(Hello("wrong", 0, 1)),
        encode(Stop()),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!Q", 1 << 40),
    ],
    ids=["wrong secret", "no hello", "http", "huge"],
)
def test_strangers_are_dropped_without_a_word(fleet: Fleet, opening: bytes) -> None:
    stranger = connect(fleet)
    stranger.sendall(opening)
    assert gather(fleet, seconds=0.3) == []
    assert stranger.recv(1) == b""


def test_who_does_not_say_who_it_is_in_time_is_dropped(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is silent or never comes to an end; a worker that is late, but in time, is admitted."""
    monkeypatch.setattr("rpeg_rt.fleet.HELLO_SECONDS", 0.5)
    silent, worker, endless = (connect(fleet) for _ in range(3))
    endless.sendall(encode(Hello(fleet.own.secret, 0, 1))[:-1])
    began = time.monotonic()
    assert gather(fleet, seconds=0.2) == []
    Channel(worker).send(Hello(fleet.own.secret, 1, 77))
    assert len(gather(fleet)) == 1
    assert fleet.events(10.0) == []  # which returns when somebody is due
    assert 0.4 < time.monotonic() - began < 5.0
    assert gather(fleet, seconds=0.2) == []
    assert silent.recv(1) == endless.recv(1) == b""
    worker.settimeout(0.1)
    with pytest.raises(TimeoutError):
        worker.recv(1)
    assert (fleet.pids, gather(fleet, seconds=0.1)) == ({1: 77}, [])


def test_a_hello_that_was_not_looked_at_in_time_counts(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller was stopped meanwhile."""
    monkeypatch.setattr("rpeg_rt.fleet.HELLO_SECONDS", 0.1)
    worker = connect(fleet)
    fleet.events(0.0)
    Channel(worker).send(Hello(fleet.own.secret, 1, 77))
    time.sleep(0.3)
    assert gather(fleet) == [Received(1, Hello(fleet.own.secret, 1, 77))]


def test_a_worker_is_admitted_once_and_missed_when_it_goes(fleet: Fleet) -> None:
    worker = connect(fleet)
    Channel(worker).send(Hello(fleet.own.secret, 1, 77))
    assert gather(fleet) == [Received(1, Hello(fleet.own.secret, 1, 77))]
    assert fleet.pids == {1: 77}
    again = connect(fleet)
    Channel(again).send(Hello(fleet.own.secret, 1, 78))
    outside = connect(fleet)
    Channel(outside).send(Hello(fleet.own.secret, 2, 79))
    assert gather(fleet, seconds=0.3) == []
    assert again.recv(1) == outside.recv(1) == b""

    fleet.send(1, COMMAND)
    assert Channel(worker).receive() == COMMAND
    big = Command(node=1, step=1, rows={"x": RowsFrame(((0, 1),), to_array(np.zeros(3_000_000)))})
    fleet.send(1, big)
    worker.settimeout(5)
    received = bytearray()
    size = len(encode(big))
    while len(received) < size:
        fleet.events(0)
        received += worker.recv(1 << 20)
    assert bytes(received) == encode(big)
    worker.close()
    (lost,) = gather(fleet)
    assert isinstance(lost, Lost)
    assert lost.rank == 1


def test_only_loopback_is_listened_on(fleet: Fleet) -> None:
    assert fleet.address[0] == "127.0.0.1"
