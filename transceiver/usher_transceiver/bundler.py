"""Hop datagrams out of answers: what leaves together for one relay shares as few as it can, without I/O.

Most of what sending costs is the system call, and a relay sends 50 answers a second to each of a hundred clients.

Rules:
* Within a batch (one tick of the audio, or what one wake-up of the socket has read) DATA waits for more of its kind
  with the same relay and return slot, whatever clients it is for. A datagram leaves as soon as it is full, all others
  at the end of the batch: nothing waits for what is not there yet. Outside of a batch everything leaves at once.
* A bundle has at most `MAX_BUNDLE` bytes. One record that is longer goes by itself.
* Records of one relay keep their order. What is not DATA leaves at once, but behind all that waits: an *alive* must
  not come after the UNKNOWN-FLOW that gave its path up.
* The time and the MAC are made when a datagram leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from usher_core import hop
from usher_core.hop import LAST_HOP, OUTER_LENGTH, OVER_A_TRUNK, RECORD_LENGTH, HopType, Outer, Record
from usher_core.ids import Route
from usher_transceiver.paths import SocketAddress, Via

MAX_BUNDLE = 1232
"""Bytes of a UDP payload that every hop carries, for no link takes less than 1280 (RFC 8200 section 5). Larger ones
would have to know each hop's MTU, and save little: a ninth of a system call per packet is left (decision 16)."""
MAX_OPEN = 64
"""Relays and return slots whose bundles wait at a time; beyond, all leave early."""

SendHop = Callable[[bytes, SocketAddress], None]


class ActiveKey(Protocol):
    """What authenticates the datagrams that we send."""

    @property
    def active(self) -> tuple[int, bytes]:
        """Id and key."""


class _Bundle:
    __slots__ = ("records", "size")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.size = OUTER_LENGTH


class Bundler:
    """Makes the hop datagrams of this process.

    Args:
        route: ours.
        keys: ours.
        send: sends a hop datagram to a relay.
        wall: Unix seconds.
    """

    def __init__(self, route: Route, keys: ActiveKey, send: SendHop, wall: Callable[[], float]) -> None:
        self._route = route
        self._keys = keys
        self._send = send
        self._wall = wall
        self._in_batch = False
        self._open: dict[Via, _Bundle] = {}
        self.datagrams = 0
        self.records = 0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Let what is sent within share datagrams; at the end all of it has left."""
        self._in_batch = True
        try:
            yield
        finally:
            self._in_batch = False
            self._flush()

    def send_data(self, record: Record, via: Via) -> None:
        """Send a record of DATA, in a batch together with others."""
        if not self._in_batch:
            self._transmit(HopType.DATA, (record,), via)
            return
        bundle = self._open.get(via)
        if bundle is None:
            if len(self._open) >= MAX_OPEN:
                self._flush()
            bundle = self._open[via] = _Bundle()
        size = RECORD_LENGTH + len(record.payload)
        if bundle.size + size > MAX_BUNDLE and bundle.records:
            self._transmit(HopType.DATA, tuple(bundle.records), via)
            bundle = self._open[via] = _Bundle()
        bundle.records.append(record)
        bundle.size += size

    def send_other(self, kind: HopType, record: Record, via: Via) -> None:
        """Send a record of another type."""
        self._flush()
        self._transmit(kind, (record,), via)

    def _flush(self) -> None:
        # Emptied first: nothing may leave twice, whatever sending raises.
        waiting, self._open = self._open, {}
        for via, bundle in waiting.items():
            self._transmit(HopType.DATA, tuple(bundle.records), via)

    def _transmit(self, kind: HopType, records: tuple[Record, ...], via: Via) -> None:
        key_id, key = self._keys.active
        route = self._route
        outer = Outer(
            kind,
            True,
            route.cluster,
            route.pod,
            route.worker,
            key_id,
            int(self._wall() * 1000),
            hops_left=OVER_A_TRUNK if via.return_slot else LAST_HOP,
            return_slot=via.return_slot,
        )
        self.datagrams += 1
        self.records += len(records)
        self._send(hop.encode(outer, records, key), via.relay)
