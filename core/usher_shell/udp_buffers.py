"""Buffers of UDP sockets: asked for, and checked against what the kernel allows."""

from __future__ import annotations

import socket
import struct
import sys

import structlog

# linux/sock_diag.h; the socket module has no names for them.
_SO_MEMINFO = 55
_MEMINFO = struct.Struct("=9I")
_MEMINFO_DROPS_AT = 8

log = structlog.get_logger()


def set_buffers(sock: socket.socket, name: str, receive: int, send: int) -> None:
    """Ask for buffers of so many bytes; the log says when the kernel grants less, and how to allow more."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send)
    asked = {"rmem_max": receive, "wmem_max": send}
    for (limit, wanted), granted in zip(asked.items(), granted_buffers(sock), strict=True):
        if granted < wanted:
            log.warning(
                "the kernel grants a smaller socket buffer than asked for; bursts may be lost",
                socket=name,
                asked=wanted,
                granted=granted,
                fix=f"sysctl -w net.core.{limit}={wanted}",
            )


def granted_buffers(sock: socket.socket) -> tuple[int, int]:
    """Return (receive, send) buffer bytes for data."""
    # Linux answers with the double of what counts for data: the other half is for its own records (socket(7)).
    share = 2 if sys.platform == "linux" else 1
    return (
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // share,
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // share,
    )


def kernel_drops(sock: socket.socket) -> int | None:
    """Return how many datagrams the kernel dropped because the receive buffer was full; None where it doesn't say."""
    if sys.platform != "linux":
        return None
    try:
        return int(_MEMINFO.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[_MEMINFO_DROPS_AT])
    except (OSError, struct.error):
        return None
