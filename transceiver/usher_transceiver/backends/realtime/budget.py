"""What servers have sent and nobody has heard yet, bounded over all calls of the process, without I/O.

Each call has bounds of its own (connection.py, playout.py), which allow what one may need at times and not all at once.
Rules:
* All calls together hold `MAX_BYTES`. Beyond, a holder with more than `OWN_BYTES` gets no more: its server is not read
  until there is room, and TCP slows it down.
* A holder may always have `OWN_BYTES`, so that no other call can silence it.
* A call is two holders: what was read of its WebSocket (paced.py), and what was taken from there to be played
  (bridge.py). In one share, a large message that was read would keep itself from being taken.
"""

from __future__ import annotations

from usher_transceiver.backends.realtime.counters import RealtimeCounters

MAX_BYTES = 256 << 20
"""A minute and a half of audio of each of 60 calls, which is more than a model is ahead of what it says."""
OWN_BYTES = 1 << 20
"""22 s of audio."""


class Share:
    """What one holder has of it. `counters` are those of the process."""

    def __init__(self, counters: RealtimeCounters) -> None:
        self._counters = counters
        self._size = 0
        self._held_back = False

    def set(self, size: int) -> None:
        """Say how many bytes are held now."""
        self._counters.held_bytes += size - self._size
        self._size = size

    def has_room(self) -> bool:
        """Tell whether more may come, and count when it begins that it may not."""
        is_full = self._size > OWN_BYTES and self._counters.held_bytes > MAX_BYTES
        self._counters.held_back += is_full and not self._held_back
        self._held_back = is_full
        return not is_full
