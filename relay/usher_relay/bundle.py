"""Hop datagrams out of records: what one batch holds for one transceiver leaves in as few as fit the way there.

Rules:
* A hop datagram has one route. Records keep the order of their packets, so a full datagram is never reopened.
* It is as long as the way to its transceiver carries in one piece, and no longer than a transceiver reads.
* The MAC is made last, over the outer part and each record header with the first 16 bytes of its payload.

No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from siphashc import siphash

from usher_core.hop import MAC_PAYLOAD_LENGTH, OUTER_LENGTH, RECORD_LENGTH
from usher_relay.endpoint import Endpoint
from usher_relay.hop_codec import Stamp, pack_mac
from usher_relay.state import LiveRoute

MAX_BUNDLE: Final = 8_900
"""Bytes of the longest hop datagram of several records. Jumbo frames carry no more, and loopback's 64 KiB would only
hold up the first packet of a batch."""

Gram: TypeAlias = tuple[LiveRoute, bytes, bytes]
"""One record to send: (route, its header of 25 bytes, payload)."""
HopSend: TypeAlias = tuple[bytes, Endpoint]
"""(hop datagram, the transceiver's address)."""


def each_alone(grams: Iterable[Gram], stamp: Stamp) -> list[HopSend]:
    """Return a hop datagram for each record."""
    key, tail, tail_without_mac = stamp
    sends = []
    # `encode_data` spelled out: a call that takes the header apart and joins it again costs the engine 2 % more CPU.
    for route, header, payload in grams:
        covered = b"".join((route.prefix, tail_without_mac, header, payload[:MAC_PAYLOAD_LENGTH]))
        mac = pack_mac(siphash(key, covered))
        sends.append((b"".join((route.prefix, tail, mac, header, payload)), route.address))
    return sends


def bundle(grams: Iterable[Gram], stamp: Stamp) -> list[HopSend]:
    """Return hop datagrams with as many records as fit; those of one route in the order of their records."""
    key, tail, tail_without_mac = stamp
    made: list[tuple[LiveRoute, list[bytes], list[bytes]]] = []
    # By route: the bytes that still fit, what the MAC covers, and what is sent.
    open_by_route: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
    left_by_route: dict[bytes, int] = {}
    for route, header, payload in grams:
        name = route.route
        left = left_by_route.get(name, -1) - RECORD_LENGTH - len(payload)
        if left >= 0:
            covered, pieces = open_by_route[name]
            covered += header, payload[:MAC_PAYLOAD_LENGTH]
            pieces += header, payload
        else:
            left = min(route.hop_size, MAX_BUNDLE) - OUTER_LENGTH - RECORD_LENGTH - len(payload)
            covered, pieces = [header, payload[:MAC_PAYLOAD_LENGTH]], [header, payload]
            open_by_route[name] = covered, pieces
            made.append((route, covered, pieces))
        left_by_route[name] = left
    sends = []
    for route, covered, pieces in made:
        prefix = route.prefix
        mac = pack_mac(siphash(key, b"".join((prefix, tail_without_mac, *covered))))
        sends.append((b"".join((prefix, tail, mac, *pieces)), route.address))
    return sends
