"""A trunk's key is changed under calls, as docs/wire.md says, and nothing is lost; with both engines."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.relay_rig import ADDRESSES, HOP_KEY, POD_A, client, rtp, session
from tests.trunk_rig import HOME_ADDRESS, HOME_CLUSTER, INGRESS_ADDRESS, INGRESS_CLUSTER, trunk_keys
from usher_core import hop
from usher_core.hop import RecordFlag
from usher_core.keys import HopKey, KeyFile, KeyState
from usher_relay.endpoint import Endpoint
from usher_relay.state import Limits
from usher_relay.trunk.peer_table import PeerAddresses
from usher_relay.trunk.rendezvous import PLACES

pytestmark = pytest.mark.needs("native engine")

OLD, NEW = 10, 11
CLIENT = client(4000)
PHASES = (
    {NEW: KeyState.ACCEPTED},
    {NEW: KeyState.ACTIVE},
    {OLD: KeyState.RETIRED},
)
"""What is changed at either end, in any order; the next phase begins when both have it."""


def key_file(scope: int, states: dict[int, KeyState]) -> KeyFile:
    of_trunk = tuple(
        HopKey(id=number, scope=scope, key=bytes([number] * 16), state=state, not_before=number)
        for number, state in states.items()
    )
    plain = trunk_keys(scope)
    return plain.model_copy(update={"hop": (plain.hop[0], *of_trunk)})


class Calls:
    """A client of an ingress relay, its home relay, and the transceiver; time goes on a little with each packet."""

    def __init__(self) -> None:
        from tests.relay_both import Both  # it needs the native engine

        self.states = {end: {OLD: KeyState.ACTIVE} for end in ("ingress", "home")}
        self.scopes = {"ingress": HOME_CLUSTER, "home": INGRESS_CLUSTER}
        self.now, self.unix, self.number = 1_000.0, 1_800_000_000.0, 0
        self.ends = {end: Both(Limits(), key_file(self.scopes[end], self.states[end])) for end in self.scopes}
        self.ends["ingress"].set_peers({HOME_CLUSTER: PeerAddresses((("198.51.100.7", 3479),), (0,) * PLACES)})
        self.ends["home"].set_routes([(POD_A, ADDRESSES[POD_A], 1_472)])
        self.tick()

    def tick(self) -> None:
        self.now += 0.02
        self.unix += 0.02
        for both in self.ends.values():
            both.tick(self.now, self.unix)

    def change(self, end: str, states: dict[int, KeyState]) -> None:
        self.states[end] |= states
        self.ends[end].set_keys(key_file(self.scopes[end], self.states[end]))
        self.tick()

    def enter(self, datagram: bytes) -> list[bytes]:
        self.ends["ingress"].from_clients(self.now, self.unix, [(CLIENT, 0, datagram)])
        return [made for made, _ in self.ends["ingress"].take_for_peers()]

    def cross_and_answer(self, over_trunk: list[bytes]) -> list[bytes]:
        came: list[tuple[bytes, Endpoint]] = [(datagram, INGRESS_ADDRESS) for datagram in over_trunk]
        (asked,) = self.ends["home"].from_ingress(self.now, self.unix, came)
        parsed = hop.parse(asked[0])
        outer = replace(parsed.outer, to_client=True, hops_left=2, time_ms=int(self.unix * 1000))
        answer = hop.encode(outer, (parsed.records[0]._replace(flags=RecordFlag.ALIVE),), HOP_KEY)
        back = self.ends["home"].from_transceivers(self.now, self.unix, [(answer, ADDRESSES[POD_A])])
        return [datagram for datagram, _ in back]

    def leave(self, back: list[bytes]) -> None:
        before = self.ends["ingress"].counters.downlink.forwarded
        self.ends["ingress"].from_peers(self.now, self.unix, [(datagram, HOME_ADDRESS) for datagram in back])
        assert self.ends["ingress"].counters.downlink.forwarded == before + 1

    def speak(self) -> None:
        self.tick()
        self.leave(self.cross_and_answer(self.enter(rtp(7))))

    def key_in_use(self) -> tuple[int, int]:
        """By which key a packet leaves, and by which its answer."""
        (up,) = self.enter(rtp(7))
        (down,) = self.cross_and_answer([up])
        self.leave([down])
        return up[11], down[11]


@pytest.mark.parametrize(
    "orders", tuple(itertools.product((("ingress", "home"), ("home", "ingress")), repeat=len(PHASES)))
)
def test_no_packet_is_lost_in_whichever_order_both_ends_follow(orders: tuple[tuple[str, str], ...]) -> None:
    calls = Calls()
    calls.leave(calls.cross_and_answer(calls.enter(session(POD_A).check())))
    for phase, order in zip(PHASES, orders, strict=True):
        for end in order:
            going, coming = calls.enter(rtp(7)), calls.cross_and_answer(calls.enter(rtp(7)))
            calls.change(end, phase)
            # What was on its way arrives, unless its key was given up by all: that waits until nobody uses it.
            calls.leave(coming)
            calls.leave(calls.cross_and_answer(going))
            for _ in range(3):
                calls.speak()
    assert calls.key_in_use() == (NEW, NEW)
    for both in calls.ends.values():
        assert {reason: count for reason, count in both.counters.drops.items() if count} == {}
