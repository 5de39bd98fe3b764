"""Which addresses this machine has, and whether a port is free."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence

from usher_core.errors import LocalError
from usher_core.ids import join_host_port, split_host_port

# RFC 5737 and RFC 3849: addresses for documentation; the routing table alone is asked about them.
_ELSEWHERE = {4: (socket.AF_INET, "192.0.2.1"), 6: (socket.AF_INET6, "2001:db8::1")}
_LOOPBACK = {4: "127.0.0.1", 6: "::1"}


def primary_address(version: int) -> str | None:
    """Return the address that this machine uses towards others, or None where it has no route.

    Connecting a UDP socket sends nothing: the kernel only picks a route and a source address.
    """
    family, elsewhere = _ELSEWHERE[version]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            host = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if ipaddress.ip_address(host).is_link_local else host


def advertised_addresses(udp_host: str, udp_port: int, given: Sequence[str]) -> list[str]:
    """Return the `IP:PORT` texts for answers, the most preferred first.

    Args:
        udp_host: the IP address that the relays listen on.
        udp_port: the UDP port in use, and the default for those given without one.
        given: `--advertise`, IP addresses or names; when empty, loopback and the primary address, or the one address
            listened on.

    Raises LocalError for what has no IP address, or one of the other IP version than the listener.
    """
    listener = _ip_of(udp_host, "--udp")
    if given:
        named = [split_host_port(text, udp_port) for text in given]
        addresses = [(str(_ip_of(host, "--advertise")), port) for host, port in named]
    elif listener.is_unspecified:
        hosts = [_LOOPBACK[listener.version], primary_address(listener.version)]
        addresses = [(host, udp_port) for host in dict.fromkeys(hosts) if host]
    else:
        addresses = [(str(listener), udp_port)]
    for host, _ in addresses:
        if _ip_of(host, "--advertise").version != listener.version:
            raise LocalError(
                f"--advertise {host}: the relays listen on {udp_host}, which is another IP version",
                "advertise addresses of the version of --udp",
            )
    return [join_host_port(host, port) for host, port in addresses]


def check_port_is_free(kind: socket.SocketKind, flag: str, text: str) -> None:
    """Raise LocalError when `HOST:PORT` can't be bound.

    UDP is tried without SO_REUSEPORT: relays of another `usher up` would otherwise share the port and its packets.
    """
    host, port = split_host_port(text)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise LocalError(f"{flag} {text}: {host!r} is no address: {error.strerror}") from None
    with contextlib.closing(socket.socket(family, kind)) as probe:
        if kind is socket.SOCK_STREAM:
            # A server that has just ended leaves connections in TIME_WAIT, which do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise cannot_be_used(flag, text, error) from None


def cannot_be_used(flag: str, text: str, error: OSError) -> LocalError:
    """Return what to raise when `HOST:PORT` is another's, or none of this machine."""
    return LocalError(
        f"{flag} {text} can't be used: {error.strerror}",
        f"stop what uses it, or choose another one with {flag} HOST:PORT (port 0 picks a free one)",
    )


def resolve(flag: str, text: str) -> str:
    """Return `HOST:PORT` with the first IP address of HOST. Raises LocalError when it has none."""
    host, port = split_host_port(text)
    return join_host_port(str(_ip_of(host, flag)), port)


def _ip_of(host: str, flag: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        # Answers and listeners take addresses only, so a name is resolved here, once.
        return ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])
    except (OSError, UnicodeError, ValueError):
        raise LocalError(f"{flag}: {host!r} is neither an IP address nor a name that has one") from None
