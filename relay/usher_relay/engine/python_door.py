"""Where a store of mappings is connected to the Python engine: the exchange of its data thread, and a way to wake."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from usher_relay.exchange import Exchange

Answers: TypeAlias = Sequence[tuple[bytes, bytes | None]]
Mappings: TypeAlias = Sequence[tuple[bytes, bytes]]


class PythonDoor:
    """See `interface.StoreDoor`. `answer` and `load` hand things to the data thread."""

    def __init__(self, exchange: Exchange, answer: Callable[[Answers], None], load: Callable[[Mappings], None]) -> None:
        self.answer = answer
        self.load = load
        self._exchange = exchange
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        """See `interface.StoreDoor`."""
        return self._receiver.fileno()

    def take_questions(self) -> list[bytes]:
        """See `interface.StoreDoor`."""
        with suppress(BlockingIOError):
            self._receiver.recv(4096)
        return self._exchange.take_questions()

    def take_named(self) -> list[tuple[bytes, bytes]]:
        """See `interface.StoreDoor`."""
        return self._exchange.take_named()

    def wake(self) -> None:
        """Tell that clients are asked for, if they are. For the data thread."""
        if self._exchange.has_news:
            self._exchange.has_news = False
            with suppress(BlockingIOError):  # then enough wake-ups wait already
                self._sender.send(b"\0")

    def close(self) -> None:
        """Close both ends."""
        self._receiver.close()
        self._sender.close()
