"""What the documentation says is trusted, held against a run: where it listens, what strangers achieve."""

import os
import pickle
import signal
import socket
import struct
import time
from pathlib import Path

import msgspec
import pytest

from ir_schema.problem import Placement
from ir_schema.trace import Header
from rpeg_rt.fleet import Fleet
from rpeg_rt.joining import local_fleet
from rpeg_rt.protocol import Assign, Hello, Message, Stop
from rpeg_rt.trace import read_trace
from rpeg_rt.wire import HELLO_LIMIT, encode
from tests.rpeg_rt.plans import colocated, place
from tests.rpeg_rt.test_faults import check_trace, descendants, end, long_run

APART: dict[str, Placement] = colocated() | {"ref_inf": place("1"), "critic_inf": place("1")}
_LISTENING = "0A"


def sockets(pids: set[int]) -> dict[str, list[tuple[str, int]]]:
    """Where these processes listen for TCP, and to whom they are connected, by state ("0A": listening)."""
    mine = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                mine.add(os.readlink(fd))
            except OSError:
                continue
    found: dict[str, list[tuple[str, int]]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            host, port = fields[1].split(":")
            if f"socket:[{fields[9]}]" in mine:
                host = host.removeprefix("0000000000000000FFFF0000")  # IPv4, spelt as IPv6
                if len(host) == 8:
                    host = socket.inet_ntoa(struct.pack("<I", int(host, 16)))
                found.setdefault(fields[3], []).append((host, int(port, 16)))
    return found


class Evil:
    """An object whose unpickling leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def framed(payload: bytes) -> bytes:
    return struct.pack("!Q", len(payload)) + payload


def strange(left: Path) -> dict[str, bytes]:
    """What strangers may say; unpickled, some of it would make the directory `left`."""
    wrong = "0" * 64
    messages: dict[str, Message] = {
        "a guessed secret": Hello(wrong, 0, 1),
        "no secret": Hello("", 1, 1),
        "an order without a word of who it is": Stop(),
        "an order to start workers": Assign((0, 1)),
    }
    return {what: encode(message) for what, message in messages.items()} | {
        "a web browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        "a pickle": pickle.dumps(Evil(left)),
        "a pickle in a frame": framed(pickle.dumps(Evil(left))),
        "more than a word": framed(b"\xc1" * (HELLO_LIMIT + 1)),
        "a size beyond all bounds": struct.pack("!Q", 2**63),
        "msgpack of something else": framed(msgspec.msgpack.encode({"secret": None})),
        "nothing": b"",
    }


def is_dropped(address: tuple[str, int], data: bytes) -> bool:
    """Whether the other side closes the connection without a word; with who says nothing it is patient."""
    with socket.create_connection(address, timeout=10) as stranger:
        stranger.sendall(data)
        if not data:
            return True
        try:
            return stranger.recv(1) == b""
        except ConnectionResetError:
            return True


def test_a_run_listens_on_loopback_only_and_strangers_do_not_disturb_it(tmp_path: Path) -> None:
    with long_run(tmp_path, APART) as (process, below):
        found = sockets({process.pid, *below})
        assert found[_LISTENING]
        assert {host for host, _ in found[_LISTENING]} == {"127.0.0.1"}
        assert {host for state in found.values() for host, _ in state} == {"127.0.0.1"}
        mine = sockets({process.pid})[_LISTENING]
        ports = {port for _, port in mine} - {port for _, port in sockets(set(below))[_LISTENING]}
        (control,) = ports  # the store's socket is worker 0's too
        for what, data in strange(tmp_path / "left").items():
            assert is_dropped(("127.0.0.1", control), data), what
        assert process.poll() is None
        assert set(below) <= descendants(process.pid).keys()
        process.send_signal(signal.SIGINT)
        end(process, 130, within=30)
    assert not (tmp_path / "left").exists()
    check_trace(tmp_path, 130)
    header = next(read_trace(tmp_path / "trace.jsonl"))
    assert isinstance(header, Header)
    host = socket.gethostname()
    assert (header.machines, header.backend) == ({0: host, 1: host}, "gloo")
    assert {"rpeg", "torch", "megatron-core", "numpy", "python"} <= header.software.keys()


@pytest.fixture
def fleet() -> Fleet:
    made = local_fleet(2, "a plan")
    made.listen()
    return made


def test_only_who_knows_the_secret_is_a_worker_and_only_once(fleet: Fleet, tmp_path: Path) -> None:
    def events(seconds: float = 0.3) -> list[object]:
        found: list[object] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found += fleet.events(0.05)
        return found

    strangers = []
    for data in strange(tmp_path / "left").values():
        strangers.append(socket.create_connection(fleet.address))
        strangers[-1].sendall(data)
        assert events(0.06) == []
    assert (fleet.pids, fleet.joins) == ({}, {})
    with socket.create_connection(fleet.address) as worker, socket.create_connection(fleet.address) as second:
        worker.sendall(encode(Hello(fleet.own.secret, 1, 77)))
        assert len(events()) == 1
        second.sendall(encode(Hello(fleet.own.secret, 1, 78)))  # the same rank again
        assert events() == []
        assert fleet.pids == {1: 77}
    for stranger in strangers:
        stranger.close()
    fleet.close()
    assert not (tmp_path / "left").exists()


def test_every_run_has_a_secret_of_its_own() -> None:
    secrets = set()
    for _ in range(3):
        made = local_fleet(1, "a plan")
        secrets.add(made.own.secret)
        made.close()
    assert len(secrets) == 3
    assert all(len(secret) == 64 for secret in secrets)
