"""What the data path and a store of mappings hand each other (docs/wire.md sections 4 and 9).

Rules:
* The data thread asks for addresses and names flows to keep; the control thread takes both, and answers.
* Everything is bounded: what finds no room is not asked for, or is named again with its flow's next refresh.
* Only confirmed flows are kept, never one on probation; and only the transceiver's *alive* refreshes them.
* Mappings loaded at the start answer without a question, each once, and for a minute only.

Both ends touch only the ends of queues, which needs no lock. No I/O, no clock: `now` is monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import floor
from typing import TypeVar

from usher_relay.counters import Counters

REFRESH = 30.0
"""Seconds between two times that a living flow is named."""
QUESTIONS = 1_024
NAMED = 65_536
LOADED_FOR = 60.0

ItemT = TypeVar("ItemT")


class Exchange:
    """One data thread's side. `capacity` is the most mappings that may be loaded."""

    def __init__(self, capacity: int, counters: Counters) -> None:
        self._capacity = capacity
        self._counters = counters
        self._questions: deque[bytes] = deque()
        self._named: deque[tuple[bytes, bytes]] = deque()
        self._loaded: dict[bytes, bytes] = {}
        self._loaded_until = 0.0
        self.has_news = False
        """Whether there were questions since this was last set to False."""

    # For the data thread.

    def ask(self, path_key: bytes) -> bool:
        """Ask the store whose an address is; False when too many questions wait."""
        if len(self._questions) >= QUESTIONS:
            self._counters.store_skipped += 1
            return False
        self._questions.append(path_key)
        self._counters.store_asked += 1
        self.has_news = True
        return True

    def name(self, path_key: bytes, route: bytes) -> None:
        """Have a confirmed flow kept."""
        if len(self._named) >= NAMED:
            self._counters.store_unnamed += 1
        else:
            self._named.append((path_key, route))

    def load(self, mappings: Iterable[tuple[bytes, bytes]], now: float) -> None:
        """Take mappings that count until they are used, for a while."""
        self._loaded_until = now + LOADED_FOR
        for path_key, route in mappings:
            if len(self._loaded) >= self._capacity:
                return
            self._loaded[path_key] = route

    def loaded(self, path_key: bytes) -> bytes | None:
        """Return the route that was loaded for an address, and forget it."""
        return self._loaded.pop(path_key, None) if self._loaded else None

    def expire(self, now: float) -> None:
        """Forget what was loaded long ago."""
        if self._loaded and now >= self._loaded_until:
            self._loaded = {}

    # For the control thread.

    def take_questions(self) -> list[bytes]:
        """Return the addresses that are asked for."""
        return _drain(self._questions, QUESTIONS)

    def take_named(self) -> list[tuple[bytes, bytes]]:
        """Return (path key, route) of the flows to keep, the newest last."""
        return _drain(self._named, NAMED)


def refresh_is_due(path_key: bytes, before: float, now: float) -> bool:
    """Tell whether a flow that was alive at `before` and is so now is to be named again.

    Time is cut into pieces of REFRESH, for each client port at other moments, so that flows need not note when they
    were named, and those that were made together are not named together for ever.
    """
    phase = path_key[3] % REFRESH
    return floor((before + phase) / REFRESH) != floor((now + phase) / REFRESH)


def _drain(queue: deque[ItemT], at_most: int) -> list[ItemT]:
    taken: list[ItemT] = []
    while queue and len(taken) < at_most:
        taken.append(queue.popleft())
    return taken
