"""Answers that share hop datagrams: what is joined comes apart again as it was, in order, and for the right relay."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from usher_core import hop
from usher_core.hop import OUTER_LENGTH, RECORD_LENGTH, HopDatagram, HopType, Record
from usher_core.ids import ClientPath, Route
from usher_transceiver.bundler import MAX_BUNDLE, MAX_OPEN, Bundler
from usher_transceiver.paths import SocketAddress, Via

ROUTE = Route(7, 4_000_000_000, 3)
KEY = bytes(range(16))
WALL = 1_764_000_000.5
PATHS = st.builds(
    ClientPath, st.binary(min_size=16, max_size=16), st.integers(0, 0xFFFF), st.sampled_from([0, 1, 0xFFFF])
)
PAYLOADS = st.one_of(
    st.integers(0, 200).map(lambda size: b"speech"[:size].ljust(size, b"\x80")),
    # Handshakes, and what is just too long, or just not, to share a datagram or to fit one.
    st.integers(MAX_BUNDLE // 2 - 60, MAX_BUNDLE + 60).map(bytes),
)
RECORDS = st.builds(Record, PATHS, PAYLOADS, st.sampled_from([0, 2]), st.just(0))
VIAS = st.builds(
    Via,
    st.sampled_from([("10.0.0.1", 4000), ("10.0.0.1", 4001), ("10.0.0.2", 4000), ("fd00::1", 4000, 0, 0)]),
    st.sampled_from([0, 0, 0, 5]),
)


@dataclass(frozen=True)
class Send:
    record: Record
    via: Via
    kind: HopType = HopType.DATA


SENDS = st.lists(
    st.builds(Send, RECORDS, VIAS, st.sampled_from([HopType.DATA] * 9 + [HopType.UNKNOWN_FLOW])), max_size=60
)


class Keys:
    active = (9, KEY)


class Wire:
    """A bundler, and what left it."""

    def __init__(self) -> None:
        self.left: list[tuple[HopDatagram, Via]] = []
        self.sizes: list[int] = []
        self.bundler = Bundler(ROUTE, Keys(), self._send, lambda: WALL)

    def _send(self, datagram: bytes, to: SocketAddress) -> None:
        parsed = hop.parse(datagram)
        assert hop.verify(parsed, KEY)
        outer = parsed.outer
        assert (outer.to_client, outer.cluster, outer.pod, outer.worker) == (True, 7, 4_000_000_000, 3)
        assert (outer.key_id, outer.time_ms) == (9, int(WALL * 1000) % hop.TIME_MODULUS)
        # A slot means that the relay hands it on to another one.
        assert outer.hops_left == (2 if outer.return_slot else 1)
        self.sizes.append(len(datagram))
        self.left.append((parsed, Via(to, outer.return_slot)))

    def give(self, sends: list[Send]) -> None:
        for send in sends:
            if send.kind is HopType.DATA:
                self.bundler.send_data(send.record, send.via)
            else:
                self.bundler.send_other(send.kind, send.record, send.via)

    def of(self, via: Via) -> list[tuple[HopType, Record]]:
        return [(datagram.outer.type, record) for datagram, to in self.left if to == via for record in datagram.records]


@given(st.lists(SENDS, min_size=1, max_size=3))
def test_every_relay_gets_its_records_once_in_order_and_all_by_the_end_of_the_batch(batches: list[list[Send]]) -> None:
    wire = Wire()
    given_so_far: list[Send] = []
    for sends in batches:
        with wire.bundler.batch():
            wire.give(sends)
        given_so_far += sends
        for via in {send.via for send in given_so_far}:
            assert wire.of(via) == [(send.kind, send.record) for send in given_so_far if send.via == via]
    assert wire.bundler.records == len(given_so_far)
    assert wire.bundler.datagrams == len(wire.left)


@given(SENDS)
def test_a_bundle_fits_every_hop_and_no_two_could_have_been_one(sends: list[Send]) -> None:
    wire = Wire()
    with wire.bundler.batch():
        wire.give([Send(send.record, send.via) for send in sends])
    for size, (datagram, _) in zip(wire.sizes, wire.left, strict=True):
        assert size <= MAX_BUNDLE or len(datagram.records) == 1
    for via in {send.via for send in sends}:
        records = [datagram.records for datagram, to in wire.left if to == via]
        for earlier, later in itertools.pairwise(records):
            together = (*earlier, later[0])
            assert OUTER_LENGTH + sum(RECORD_LENGTH + len(record.payload) for record in together) > MAX_BUNDLE


@given(SENDS)
def test_outside_of_a_batch_everything_leaves_at_once_and_alone(sends: list[Send]) -> None:
    wire = Wire()
    for number, send in enumerate(sends, start=1):
        wire.give([send])
        assert len(wire.left) == number
        assert wire.left[-1][0].records == (send.record,)


@given(SENDS)
def test_whatever_is_no_data_leaves_behind_all_that_was_sent_before_it(sends: list[Send]) -> None:
    wire = Wire()
    sent = 0
    with wire.bundler.batch():
        for send in sends:
            wire.give([send])
            sent += 1
            if send.kind is not HopType.DATA:
                assert sum(len(datagram.records) for datagram, _ in wire.left) == sent
                assert wire.left[-1][0].outer.type is send.kind


def test_more_relays_than_are_kept_open_lose_nothing() -> None:
    wire = Wire()
    path = ClientPath(bytes(16), 1, 1)
    sends = [
        Send(Record(path, bytes((turn,))), Via((f"10.0.{n}.1", 1))) for turn in (1, 2) for n in range(MAX_OPEN + 1)
    ]
    with wire.bundler.batch():
        wire.give(sends)
        assert wire.left
    for send in sends:
        assert [record.payload for _, record in wire.of(send.via)] == [b"\1", b"\2"]


def test_a_batch_that_fails_still_sends_what_it_had() -> None:
    wire = Wire()
    send = Send(Record(ClientPath(bytes(16), 1, 1), b"speech"), Via(("10.0.0.1", 4000)))
    try:
        with wire.bundler.batch():
            wire.give([send])
            raise ZeroDivisionError
    except ZeroDivisionError:
        assert wire.of(send.via) == [(HopType.DATA, send.record)]
    wire.give([send])
    assert len(wire.left) == 2
