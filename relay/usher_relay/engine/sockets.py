"""The sockets of the Python engine, and the translation between their addresses and path keys.

* A listener bound to a wildcard address asks for the local address of each datagram (IP_PKTINFO, RFC 3542 section 6)
  and answers from it; else a host with several addresses would answer from whichever the kernel likes.
* SO_REUSEPORT lets a new relay bind beside the old one.
* The upstream socket sets DF: what does not fit a hop is cut by us, never by IP, because fragments get lost.
* Nothing here blocks: what the kernel does not take at once is dropped and counted.
"""

from __future__ import annotations

import errno
import socket
import sys
from typing import TypeAlias

import structlog

from usher_core.errors import LocalError
from usher_core.ids import V4_MAPPED_PREFIX, Route, join_host_port
from usher_core.routes import RouteTable
from usher_relay.counters import Drop
from usher_relay.endpoint import Endpoint
from usher_relay.engine.interface import SocketStatus
from usher_relay.listeners import Listener
from usher_relay.uplink import MAX_CLIENT_DATAGRAM, Packet
from usher_shell.udp_buffers import granted_buffers, kernel_drops, set_buffers

log = structlog.get_logger()

Ancillary: TypeAlias = list[tuple[int, int, bytes]]

MAX_LOCAL_ADDRESSES = 1_024

_LINUX = sys.platform == "linux"
# The socket module names none of these; the numbers are those of the kernels' headers.
_IP_PKTINFO = 8 if _LINUX else 26
_IP_MTU_DISCOVER = 10
_IPV6_MTU_DISCOVER = 23
_PMTUDISC_DO = 2
_IP_MTU = 14
_IPV6_MTU = 24
_DEFAULT_MTU = 1_500

_SEND_DROPS = {
    errno.EAGAIN: Drop.SEND_AGAIN,
    errno.ENOBUFS: Drop.SEND_NO_BUFFERS,
    errno.EMSGSIZE: Drop.SEND_TOO_LONG,
    errno.EAFNOSUPPORT: Drop.HOP_LISTENER,
}


def drop_reason(error: OSError) -> Drop:
    """Return under which reason a failed send is counted."""
    return _SEND_DROPS.get(error.errno or 0, Drop.SEND_REFUSED)


class ListenSocket:
    """The socket of one listener.

    Args:
        listener: where to bind.
        receive_buffer: bytes asked of the kernel.
        send_buffer: bytes asked of the kernel.
        cached_addresses: most client addresses whose translation is kept at hand.
    """

    def __init__(self, listener: Listener, receive_buffer: int, send_buffer: int, cached_addresses: int) -> None:
        self._cached_addresses = cached_addresses
        self.listener = listener
        self.name = str(listener.id)
        self._id = listener.id.to_bytes(2)
        self._family = socket.AF_INET6 if listener.is_ipv6 else socket.AF_INET
        self.socket = _open(self._family, listener.host, listener.port, reuse_port=True)
        set_buffers(self.socket, self.name, receive_buffer, send_buffer)
        if listener.is_wildcard:
            if listener.is_ipv6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            else:
                self.socket.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        self._path_keys: dict[Endpoint, bytes] = {}
        self._destinations: dict[bytes, Endpoint] = {}
        self._locals: dict[bytes, Ancillary] = {}

    @property
    def address(self) -> str:
        """The `HOST:PORT` that it is bound to."""
        host, port = self.socket.getsockname()[:2]
        return join_host_port(host, port)

    def receive(self, limit: int) -> list[Packet]:
        """Return what waits, at most `limit` datagrams."""
        if self.listener.is_wildcard:
            return self._receive_with_local(limit)
        packets: list[Packet] = []
        recvfrom, path_keys = self.socket.recvfrom, self._path_keys
        try:
            for _ in range(limit):
                datagram, source = recvfrom(MAX_CLIENT_DATAGRAM + 1)
                packets.append((path_keys.get(source) or self._learn(source), None, datagram))
        except OSError as error:
            _ignore_empty(error, self.name)
        return packets

    def send(self, path_key: bytes, datagram: bytes, local: object) -> None:
        """Send to a client. Raises OSError when the kernel does not take it."""
        destination = self._destinations.get(path_key) or self._destination(path_key)
        if local is None:
            self.socket.sendto(datagram, destination)
        else:
            self.socket.sendmsg((datagram,), local, 0, destination)  # type: ignore[arg-type]  # we made it

    def _receive_with_local(self, limit: int) -> list[Packet]:
        packets: list[Packet] = []
        recvmsg, path_keys = self.socket.recvmsg, self._path_keys
        space = socket.CMSG_SPACE(20)
        try:
            for _ in range(limit):
                datagram, ancillary, _, source = recvmsg(MAX_CLIENT_DATAGRAM + 1, space)
                local = self._local(ancillary[0][2]) if ancillary else None
                packets.append((path_keys.get(source) or self._learn(source), local, datagram))
        except OSError as error:
            _ignore_empty(error, self.name)
        return packets

    def _learn(self, source: Endpoint) -> bytes:
        host, port = source[0], source[1]
        address = socket.inet_pton(self._family, host)
        path_key = self._id + port.to_bytes(2) + (address if len(address) == 16 else V4_MAPPED_PREFIX + address)
        if len(self._path_keys) >= self._cached_addresses:
            self._path_keys.clear()
            self._destinations.clear()
        self._path_keys[source] = path_key
        # With the scope of a link-local client, which a path key cannot hold.
        self._destinations[path_key] = source
        return path_key

    def _destination(self, path_key: bytes) -> Endpoint:
        address = path_key[4:]
        if (address[:12] == V4_MAPPED_PREFIX) is self.listener.is_ipv6:
            raise OSError(errno.EAFNOSUPPORT, "the listener is of another address family")
        port = int.from_bytes(path_key[2:4])
        if self.listener.is_ipv6:
            return socket.inet_ntop(self._family, address), port, 0, 0
        return socket.inet_ntop(self._family, address[12:]), port

    def _local(self, info: bytes) -> Ancillary:
        """Return the ancillary data that makes an answer leave from where the datagram with `info` arrived."""
        local = self._locals.get(info)
        if local is None:
            if self.listener.is_ipv6:
                # struct in6_pktinfo: address 16, interface 4. A link-local address is nothing without its interface.
                is_link_local = info[0] == 0xFE and info[1] & 0xC0 == 0x80
                answer = info if is_link_local else info[:16] + bytes(4)
                local = [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, answer)]
            else:
                # struct in_pktinfo: interface 4, our address 4 (ipi_spec_dst), destination in the header 4.
                local = [(socket.IPPROTO_IP, _IP_PKTINFO, bytes(4) + info[4:8] + bytes(4))]
            if len(self._locals) >= MAX_LOCAL_ADDRESSES:
                self._locals.clear()
            self._locals[info] = local
        return local


class HopSocket:
    """A socket towards transceivers or relays of other clusters. An IPv6 one also serves those with IPv4 addresses.

    Args:
        name: in metrics.
        host: local address.
        receive_buffer: bytes asked of the kernel.
        send_buffer: bytes asked of the kernel.
        hop_mtu: bytes of an IP packet on the way, 0 to ask the kernel.
        port: where others send to, 0 for any.
        is_shared: whether other sockets may have the same port, and their kernel spreads over them what comes.
    """

    def __init__(
        self,
        name: str,
        host: str,
        receive_buffer: int,
        send_buffer: int,
        hop_mtu: int = 0,
        port: int = 0,
        *,
        is_shared: bool = False,
    ) -> None:
        self.name = name
        self.is_ipv6 = ":" in host
        self._hop_mtu = hop_mtu
        family = socket.AF_INET6 if self.is_ipv6 else socket.AF_INET
        self.socket = _open(family, host, port, reuse_port=is_shared, dual_stack=True)
        set_buffers(self.socket, self.name, receive_buffer, send_buffer)
        if _LINUX:
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_DO)
            if self.is_ipv6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_DO)

    @property
    def address(self) -> str:
        """The `HOST:PORT` that it is bound to."""
        host, port = self.socket.getsockname()[:2]
        return join_host_port(host, port)

    def endpoint(self, host: str, port: int) -> Endpoint | None:
        """Return the address of the other end as this socket reports it, or None when it cannot reach that family."""
        is_ipv6 = ":" in host
        if not self.is_ipv6:
            return None if is_ipv6 else (host, port)
        # Through binary and back: an address has many spellings, and sources are compared with this one.
        address = socket.inet_pton(socket.AF_INET6, host if is_ipv6 else f"::ffff:{host}")
        return socket.inet_ntop(socket.AF_INET6, address), port, 0, 0

    def reachable(self, table: RouteTable) -> list[tuple[Route, Endpoint, int]]:
        """Return each route of a table with its address and hop size; say how many have no address for us, if any."""
        sizes: dict[str, int] = {}
        found: list[tuple[Route, Endpoint, int]] = []
        for route, transceiver in table.items():
            host, port = transceiver.address
            endpoint = self.endpoint(host, port)
            if endpoint is not None:
                if host not in sizes:
                    sizes[host] = self.hop_size(host)
                found.append((route, endpoint, sizes[host]))
        if len(found) < len(table):
            log.warning(
                "some transceivers have IPv6 addresses, which this relay cannot reach",
                count=len(table) - len(found),
                fix="--upstream ::",
            )
        return found

    def hop_size(self, host: str) -> int:
        """Return the most UDP payload that one packet to `host` carries: as the kernel knows, or as set."""
        is_ipv6 = ":" in host and not host.startswith("::ffff:")
        headers = 48 if is_ipv6 else 28
        return (self._hop_mtu or _path_mtu(host.removeprefix("::ffff:"), is_ipv6)) - headers

    def receive(self, limit: int) -> list[tuple[bytes, Endpoint]]:
        """Return what waits, at most `limit` datagrams, each with its source."""
        datagrams: list[tuple[bytes, Endpoint]] = []
        recvfrom = self.socket.recvfrom
        try:
            for _ in range(limit):
                datagrams.append(recvfrom(65_535))  # noqa: PERF401  # what came before an error must not be lost
        except OSError as error:
            _ignore_empty(error, self.name)
        return datagrams


def status(sock: ListenSocket | HopSocket) -> SocketStatus:
    """Return buffer sizes and the datagrams that the kernel dropped because the receive buffer was full."""
    return SocketStatus(sock.name, *granted_buffers(sock.socket), kernel_drops(sock.socket))


def _open(
    family: socket.AddressFamily, host: str, port: int, *, reuse_port: bool, dual_stack: bool = False
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise LocalError(
            f"cannot listen on UDP {join_host_port(host, port)}: {error.strerror}",
            "is the port in use by another program, or the address not of this host?",
        ) from None
    return sock


def _path_mtu(host: str, is_ipv6: bool) -> int:
    if not _LINUX:
        return _DEFAULT_MTU
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if is_ipv6 else (socket.IPPROTO_IP, _IP_MTU)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing: it makes the kernel look for a route
            return probe.getsockopt(level, option)
        except OSError:
            return _DEFAULT_MTU


def _ignore_empty(error: OSError, name: str) -> None:
    """Say so when a receive failed for another reason than that nothing waits."""
    if not isinstance(error, BlockingIOError):
        log.warning("receive failed", socket=name, error=error.strerror)
