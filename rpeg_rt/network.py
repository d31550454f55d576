"""Network interfaces of this machine (IPv4), and noticing peers that fall silent."""

import socket
import struct
import sys
from dataclasses import dataclass

BACKEND = "gloo"
"""What carries tensors between workers."""
_SIOCGIFADDR = 0x8915
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 10, 5, 4


@dataclass(frozen=True)
class Endpoint:
    """An address of this machine and the interface that has it (None where the system does not say)."""

    address: str
    interface: str | None


class NoInterfaceError(Exception):
    """No interface of this machine is what was asked for."""


def endpoint(controller: str, interface: str | None) -> Endpoint:
    """The address at which others reach this machine: that of `interface`, or the one from which the route to
    the controller's address leaves. Raises NoInterfaceError."""
    if interface is not None:
        address = _address_of(interface)
        if address is None:
            have = ", ".join(f"{name} ({a})" for name, a in _interfaces().items())
            raise NoInterfaceError(
                f"there is no interface `{interface}` with an IPv4 address; there are {have}"
            )
        return Endpoint(address, interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((controller, 9))  # no packet is sent
        except OSError as exc:
            raise NoInterfaceError(f"there is no route to {controller} ({exc.strerror})") from exc
        address = str(probe.getsockname()[0])
    named = [name for name, a in _interfaces().items() if a == address]
    loopback = "lo" if sys.platform == "linux" and address.startswith("127.") else None
    return Endpoint(address, named[0] if named else loopback)


def keep_alive(connection: socket.socket) -> None:
    """Have the system end a connection whose other side has not answered for half a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", (_IDLE_SECONDS + _PROBE_SECONDS * _PROBES) * 1000),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _interfaces() -> dict[str, str]:
    """IPv4 addresses by interface."""
    found = {name: _address_of(name) for _, name in socket.if_nameindex()}
    return {name: address for name, address in found.items() if address is not None}


def _address_of(interface: str) -> str | None:
    if sys.platform != "linux":
        return None
    import fcntl

    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
