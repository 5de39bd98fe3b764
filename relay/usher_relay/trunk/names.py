"""Which addresses the names in the peers file stand for. No name waits for another.

* Each is asked for every 30 s, and at once when the file changes; the last good answer stays in use.
* A name server may hang: a look-up holds one of 16 slots for 0.25 s at most, goes on without it, and its answer counts
  when it comes. A name is not asked for again meanwhile, so at most 512 look-ups, as many as a file has names, go on.
* Names that had an answer come first, those whose last one did not come last, each in an order that varies.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import structlog

from usher_core.peers import MAX_ENDPOINTS, MAX_PEERS

log = structlog.get_logger()

ASK_EVERY_S: Final = 30.0
SLOTS: Final = 16
HOLDS_A_SLOT_S: Final = 0.25
ANSWERS_WITHIN_S: Final = 5.0
"""After that a warning says that the name has no answer."""
MAX_LOOK_UPS: Final = MAX_PEERS * MAX_ENDPOINTS
MAX_ADDRESSES: Final = 4


@dataclass(slots=True)
class _Name:
    """A name in the file. `is_lost`: the last answer held no address, or does not come."""

    addresses: tuple[str, ...] = ()
    ask_at: float = 0.0
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class _LookUp:
    answer: Future[tuple[str, ...]]
    since: float


class PeerNames:
    """The names of the peers file. No clock: `now` is monotonic seconds.

    Args:
        begin: begins to look a name up, without waiting; gives its addresses, none when it has none now.
    """

    def __init__(self, begin: Callable[[str], Future[tuple[str, ...]]] | None = None) -> None:
        self._begin = begin or look_up
        self._names: dict[str, _Name] = {}
        self._look_ups: dict[str, _LookUp] = {}

    def addresses(self, name: str) -> tuple[str, ...]:
        """Return the last good answer, at most 4 IP addresses; none before the first."""
        found = self._names.get(name)
        return () if found is None else found.addresses

    def set_names(self, names: Collection[str], now: float) -> None:
        """Say which names there are; all of them are asked for anew."""
        self._names = {name: self._names.get(name) or _Name() for name in names}
        for name in self._names.values():
            name.ask_at = now

    def look(self, now: float) -> bool:
        """Take the answers that came and begin the look-ups that are due; tell whether an address is another now."""
        is_new = self._take_answers(now)
        self._ask(now)
        return is_new

    def _take_answers(self, now: float) -> bool:
        is_new = False
        for name, look_up in list(self._look_ups.items()):
            known = self._names.get(name)
            if look_up.answer.done():
                del self._look_ups[name]
                found = look_up.answer.result()[:MAX_ADDRESSES]
                if known is not None and found:
                    is_new |= found != known.addresses
                    known.addresses, known.is_lost = found, False
                    continue
            elif now - look_up.since < ANSWERS_WITHIN_S:
                continue
            if known is not None and not known.is_lost:
                known.is_lost = True
                log.warning("a peer's name has no address now", name=name, using=known.addresses)
        return is_new

    def _ask(self, now: float) -> None:
        held = sum(now - look_up.since < HOLDS_A_SLOT_S for look_up in self._look_ups.values())
        room = min(SLOTS - held, MAX_LOOK_UPS - len(self._look_ups))
        due = [name for name, known in self._names.items() if known.ask_at <= now and name not in self._look_ups]
        if room <= 0 or not due:
            return
        random.shuffle(due)
        due.sort(key=lambda name: (self._names[name].is_lost, not self._names[name].addresses))
        for name in due[:room]:
            self._names[name].ask_at = now + ASK_EVERY_S
            self._look_ups[name] = _LookUp(self._begin(name), now)


def look_up(name: str) -> Future[tuple[str, ...]]:
    """Look a name up with the resolver of the system. The answer is empty where it has no address now."""
    answer: Future[tuple[str, ...]] = Future()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):
            answer.set_result(())
        else:
            # Sorted, so that the order in which a resolver rotates them changes nothing.
            answer.set_result(tuple(sorted({str(address[0]) for *_, address in found})))

    try:
        # A thread of its own and no executor: one that hangs holds up no other, nor the end of the program.
        threading.Thread(target=ask, name="look-up", daemon=True).start()
    except RuntimeError:  # no more threads are to be had
        answer.set_result(())
    return answer
