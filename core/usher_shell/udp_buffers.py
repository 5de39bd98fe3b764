"""Buffers of UDP sockets: asked for, and checked against what the kernel allows."""

from __future__ import annotations

import socket
import sys

import structlog

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
