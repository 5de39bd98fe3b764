"""The last DTLS flight, sent again sooner than OpenSSL would (docs/wire.md section 5; RFC 6347 section 4.2.4).

OpenSSL waits 1 s before it repeats a flight and has no setter that pyOpenSSL exposes; with a first datagram lost that
second is heard. The bytes of the flight are kept here and sent again as they are: the same record numbers, so a peer
that has them drops them (RFC 6347 section 4.1.2.6).

Rules:
* After 100, 200 and 400 ms without progress the flight is sent again; then OpenSSL's own timer is left to it.
* A peer that repeats its ClientHello has not seen the flight: it is sent again at once, at most every 30 ms, at most
  8 times.
* A new flight replaces the old one. The first packet that proves the handshake done ends it.
"""

from __future__ import annotations

DELAYS_S = (0.1, 0.2, 0.4)
SOLICITED_GAP_S = 0.03
MAX_SOLICITED = 8


class Flight:
    """The flight that the peer has not answered yet, if any."""

    def __init__(self) -> None:
        self._datagrams: tuple[bytes, ...] = ()
        self._sent_at = 0.0
        self._repeats = 0
        self._solicited = 0

    @property
    def is_waiting(self) -> bool:
        """Whether there is one."""
        return bool(self._datagrams)

    def sent(self, now: float, datagrams: tuple[bytes, ...]) -> None:
        """Remember a flight that has just been sent."""
        self._datagrams = datagrams
        self._sent_at = now
        self._repeats = 0
        self._solicited = 0

    def done(self) -> None:
        """Forget the flight: the peer has gone on."""
        self._datagrams = ()

    def due(self, now: float) -> tuple[bytes, ...]:
        """Return what is to be sent again now because of silence; mostly nothing."""
        if not self._datagrams or self._repeats >= len(DELAYS_S):
            return ()
        if now - self._sent_at < DELAYS_S[self._repeats]:
            return ()
        self._repeats += 1
        self._sent_at = now
        return self._datagrams

    def solicited(self, now: float) -> tuple[bytes, ...]:
        """Return what is to be sent again because the peer repeated itself."""
        if not self._datagrams or self._solicited >= MAX_SOLICITED or now - self._sent_at < SOLICITED_GAP_S:
            return ()
        self._solicited += 1
        self._sent_at = now
        return self._datagrams
