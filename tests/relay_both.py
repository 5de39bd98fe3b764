"""Two forwarders, the Python one and the native one, that are given the same and must say the same.

`Traffic` makes what a hostile world may send: calls that work, clients that roam or come from elsewhere, replays,
broken and forged datagrams, pods that come and go and answer questions rightly, wrongly, late and twice, keys that
change, time that stands still or leaps. Few addresses and small tables, so that the same flows are met again and again
and every limit and eviction is reached.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import usher_relay_native as native

from tests.relay_rig import DTLS, INDICATION, Session, client, key_file, path_of, rtcp, rtp
from tests.relay_rig import session as new_session
from usher_core import hop
from usher_core.hop import HopDatagram, HopType, Outer, Record, RecordFlag
from usher_core.ids import Route, pack_address
from usher_core.keys import KeyFile, KeyState
from usher_relay.counters import Counters
from usher_relay.endpoint import Endpoint
from usher_relay.engine.native_engine import counters_of, native_keys
from usher_relay.exchange import Exchange
from usher_relay.flow import Flow
from usher_relay.forwarder import Forwarder
from usher_relay.hop_codec import route_bytes, route_of
from usher_relay.state import Limits, LiveRoute, RelayKeys
from usher_relay.trunk.peer_table import PeerAddresses
from usher_relay.trunk.peers import PeerWays

BATCH = 64
LISTENERS = (1, 2, 7)
HOP_KEYS = (bytes(range(16)), bytes(range(50, 66)))


class Both:
    """Feeds both and compares every output, every counter and, when asked, every flow."""

    def __init__(self, limits: Limits, keys: KeyFile, *, with_store: bool = False, bundles: bool = False) -> None:
        ring = RelayKeys.of(keys)
        self.python = Forwarder(limits, LISTENERS, ring, with_store=with_store, bundles=bundles)
        self.native = native.Path(limits, list(LISTENERS), native_keys(ring, keys), bundles, with_store)
        self.datagrams = 0

    def set_routes(self, routes: Sequence[tuple[Route, Endpoint, int]]) -> None:
        self.python.set_routes(LiveRoute(route_bytes(route), address, size) for route, address, size in routes)
        self.native.set_routes([(route_bytes(route), *packed(address), size) for route, address, size in routes])

    def set_keys(self, keys: KeyFile) -> None:
        ring = RelayKeys.of(keys)
        self.python.set_keys(ring)
        self.native.set_keys(native_keys(ring, keys))

    def tick(self, now: float, unix: float) -> None:
        self.python.tick(now, unix)
        self.native.tick(now, unix)
        self.compare_counters()

    def from_clients(self, now: float, unix: float, packets: Sequence[tuple[bytes, int, bytes]]) -> list[bytes]:
        """(path key, number of the local address, datagram); returns the hop datagrams."""
        # The sockets cut what is longer than one byte too long.
        cut = [(path, local, datagram[:2_001]) for path, local, datagram in packets]
        expected = self.python.from_clients(
            now, unix, [(path, local or None, datagram) for path, local, datagram in cut]
        )
        seen = self.native.from_clients(now, unix, cut)
        assert [(datagram, packed(address)) for datagram, address in expected] == seen
        self.datagrams += len(packets)
        self.compare_counters()
        return [datagram for datagram, _ in seen]

    def set_peers(self, peers: Mapping[int, PeerAddresses]) -> None:
        self.python.set_peers(
            {
                cluster.to_bytes(2): PeerWays(
                    frozenset(peer.addresses), tuple(peer.addresses[index] for index in peer.places)
                )
                for cluster, peer in peers.items()
            }
        )
        self.native.set_peers(
            [
                (cluster, [packed(address) for address in peer.addresses], list(peer.places))
                for cluster, peer in peers.items()
            ]
        )

    def take_for_peers(self) -> list[tuple[bytes, Endpoint]]:
        """What went over trunks since the last call, with its destinations."""
        sends = [(datagram, address) for datagram, address, _ in self.python.take_for_peers()]
        assert [(datagram, packed(address)) for datagram, address in sends] == self.native.take_for_peers()
        return sends

    def from_peers(self, now: float, unix: float, datagrams: Sequence[tuple[bytes, Endpoint]]) -> None:
        expected = self.python.from_peers(now, unix, datagrams)
        seen = self.native.from_peers(now, unix, [(datagram, packed(source)) for datagram, source in datagrams])
        assert [(path, datagram, local or 0) for path, datagram, local in expected] == seen
        self.datagrams += len(datagrams)
        self.compare_counters()

    def from_ingress(
        self, now: float, unix: float, datagrams: Sequence[tuple[bytes, Endpoint]]
    ) -> list[tuple[bytes, Endpoint]]:
        """Returns what goes to transceivers."""
        expected = self.python.from_ingress(now, unix, datagrams)
        replies = self.python.take_for_ingress()
        seen = self.native.from_ingress(now, unix, [(datagram, packed(source)) for datagram, source in datagrams])
        assert [(datagram, packed(address)) for datagram, address in expected] == seen[0]
        assert [(datagram, packed(address)) for datagram, address in replies] == seen[1]
        self.datagrams += len(datagrams)
        self.compare_counters()
        return expected

    def from_transceivers(
        self, now: float, unix: float, datagrams: Sequence[tuple[bytes, Endpoint]]
    ) -> list[tuple[bytes, Endpoint]]:
        """Returns what goes on to ingress relays."""
        expected = self.python.from_transceivers(now, unix, datagrams)
        seen = self.native.from_transceivers(now, unix, [(datagram, packed(source)) for datagram, source in datagrams])
        assert [(path, datagram, local or 0) for path, datagram, local in expected.to_clients] == seen[0]
        assert [(datagram, packed(address)) for datagram, address in expected.to_transceivers] == seen[1]
        onward = self.python.take_for_ingress()
        assert [(datagram, packed(address)) for datagram, address in onward] == seen[2]
        self.datagrams += len(datagrams)
        self.compare_counters()
        return onward

    @property
    def exchange(self) -> Exchange | None:
        return self.python.state.exchange

    def from_store(self, now: float, unix: float, answers: Sequence[tuple[bytes, bytes | None]]) -> None:
        expected = self.python.from_store(now, unix, answers)
        seen = self.native.from_store(now, unix, answers)
        assert [(datagram, packed(address)) for datagram, address in expected] == seen
        self.compare_counters()

    def take_questions(self) -> list[bytes]:
        assert self.exchange is not None
        asked, named = self.exchange.take_questions(), self.exchange.take_named()
        assert (self.native.take_questions(), self.native.take_named()) == (asked, named)
        return asked

    def load(self, mappings: Sequence[tuple[bytes, bytes]], now: float) -> None:
        assert self.exchange is not None
        self.exchange.load(mappings, now)
        self.native.load(mappings, now)

    def compare_counters(self) -> None:
        assert difference(self.python.counters, counters_of(self.native.counters())) == {}

    def compare_flows(self, now: float) -> None:
        flows = self.python.state.flows
        expected = {key: self._view(flow, now) for key, flow in flows.by_key.items()}
        seen = {flow[0]: flow[1:] for flow in self.native.flows(now, 1 << 20)}
        assert expected == seen

    @property
    def counters(self) -> Counters:
        return self.python.counters

    def _view(self, flow: Flow, now: float) -> tuple[object, ...]:
        if flow.ended:
            state = "ended"
        elif flow.probation_until:
            state = "probation"
        else:
            state = "quiet" if self.python.state.flows.is_quiet(flow, now) else "live"
        ages = (None if then == float("-inf") else now - then for then in (flow.verified_at, flow.alive_at))
        return flow.route, state, *ages, flow.ssrc or None


class Traffic:
    """Makes traffic out of a seed, and lets time pass."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        draw = self.random.choice
        self.calm = seed % 4 == 0
        """Whether this is one session that behaves: it gets more paths than it may keep."""
        self.limits = Limits(
            max_flows=40 if self.calm else draw((10, 16, 40)),
            probation_per_ufrag=draw((16, 18)),
            packets_per_client=draw((100, 2_000)),
            packets_per_address=draw((60, 50_000)),
            checks_per_client=draw((60, 200)),
            checks_per_ufrag=draw((60, 1_000)),
            tentative_per_client=draw((50, 200)),
            tentative_per_second=draw((60, 10_000)),
            who_has_limit=draw((0, 3, 64, 64)),
            questions_per_second=draw((10, 40, 1_000)),
        )
        self.now, self.unix = 1_000.0, 1_800_000_000.0
        pods = [Route(1, 17), Route(1, 18), Route(1, 19), Route(1, 18, 3), Route(1, 4_000_000_000)]
        self.places: dict[Route, Endpoint] = {
            pod: (f"10.1.0.{number}", 7_200) for number, pod in enumerate(pods, start=1)
        }
        self.crowd: dict[Route, Endpoint] = {
            Route(2, number): ("10.2.0.1", 7_200 + number) for number in range(30 if seed % 5 == 1 else 0)
        }
        """More transceivers, which are only asked and answer: a question to many costs more."""
        self.address_of = self.places | self.crowd
        self.sessions = [new_session(draw(pods), number) for number in range(1 if self.calm else 6)]
        hosts = ("192.0.2.1", "192.0.2.2", "2001:db8::1")
        ports = range(5_000, 5_000 + (8 if self.calm else draw((8, 8, 60))))
        self.clients = [client(port, host, draw((1, 2, 7, 9))) for host in hosts for port in ports]
        self.live = list(pods)
        self.hop_key = 0
        self.with_store = seed % 3 == 0
        self.both = Both(self.limits, self._keys(), with_store=self.with_store, bundles=seed % 2 == 0)
        self._set_routes()
        self.both.tick(self.now, self.unix)
        self._recent: list[bytes] = []
        self._asked: list[HopDatagram] = []
        self._asked_store: list[bytes] = []

    def run(self, steps: int) -> Both:
        """Do so many steps; raises AssertionError where the two differ."""
        for step in range(steps):
            self._step()
            if step % 16 == 0:
                self.both.compare_flows(self.now)
        self.both.compare_flows(self.now)
        return self.both

    def _step(self) -> None:
        what = self.random.random()
        if what < 0.5:
            self._clients_send()
        elif what < 0.77:
            self._transceivers_answer()
        elif what < 0.85:
            if self.with_store and self.random.random() < 0.7:
                self._store_answers()
            else:
                self._transceivers_say_here()
        elif what < 0.97:
            self._time_passes()
        elif what < 0.99:
            self.live = [pod for pod in self.places if self.random.random() < 0.8]
            self._set_routes()
        else:
            self.hop_key ^= 1
            self.both.set_keys(self._keys())
            self.both.tick(self.now, self.unix)

    def _set_routes(self) -> None:
        sizes = [self.random.choice((300, 700, 1_472, 65_507)) for _ in self.live]
        routes = [(pod, self.places[pod], size) for pod, size in zip(self.live, sizes, strict=True)]
        self.both.set_routes([*routes, *((pod, place, 1_472) for pod, place in self.crowd.items())])

    def _keys(self) -> KeyFile:
        """Two hop keys: an active one, and one that is still accepted."""
        (first,) = key_file().hop
        states = [KeyState.ACTIVE if number == self.hop_key else KeyState.ACCEPTED for number in (0, 1)]
        hops = [
            first.model_copy(update={"id": 3 + number, "key": HOP_KEYS[number], "state": states[number]})
            for number in (0, 1)
        ]
        return key_file().model_copy(update={"hop": tuple(hops)})

    def _time_passes(self) -> None:
        step = self.random.choice((0.001, 0.003, 0.02, 0.04, 0.25, 1.0, 2.5, 5.0, 7.0, 31.0, 91.0))
        self.now += step
        self.unix += step
        self.both.tick(self.now, self.unix)

    def _clients_send(self) -> None:
        if self.random.random() < 0.1:
            self._one_client_floods()
        count = self.random.choice((1, 3, 12, BATCH))
        packets = [(self.random.choice(self.clients), *self._packet()) for _ in range(count)]
        sent = self.both.from_clients(self.now, self.unix, packets)
        self._recent = sent[-4:] or self._recent
        asked = [hop.parse(datagram) for datagram in sent if datagram[1] == HopType.WHO_HAS]
        self._asked = [*self._asked, *asked][-40:]

    def _one_client_floods(self) -> None:
        """Of one kind more than any rate allows."""
        path, (local, datagram) = self.random.choice(self.clients), self._packet()
        for _ in range(4):
            self.both.from_clients(self.now, self.unix, [(path, local, datagram)] * BATCH)

    def _packet(self) -> tuple[int, bytes]:
        """The number of a local address, and a datagram."""
        draw = self.random.choice
        at: Session = draw(self.sessions)
        if self.calm and self.random.random() < 0.8:
            return 0, draw((at.check(), rtp(7)))
        make: Callable[[], bytes] = draw(
            (
                lambda: at.check(self.random.randrange(1_000)),
                lambda: at.check(self.random.randrange(1_000), size=draw((400, 800, 1_200, 1_600))),
                lambda: at.check(password=draw(self.sessions).password),
                lambda: at.check(ufrag=self._mangled_text(at.ufrag)),
                lambda: rtp(draw((7, 8, 9)), draw((12, 60, 160, 800, 1_300, 2_001))),
                lambda: rtp(draw((7, 8, 9))),
                lambda: rtcp(draw((7, 8, 9))),
                lambda: DTLS,
                lambda: DTLS + bytes(draw((600, 1_340, 1_950))),
                lambda: INDICATION,
                lambda: bytes((self.random.randrange(256),)) + self.random.randbytes(draw((0, 3, 40))),
                lambda: b"",
            )
        )
        datagram = make()
        if self.random.random() < 0.1:
            datagram = self._mangled(datagram)
        return draw((0, 0, 1, 2)), datagram

    def _transceivers_answer(self) -> None:
        datagrams = [self._answer() for _ in range(self.random.choice((1, 2, 8)))]
        self.both.from_transceivers(self.now, self.unix, datagrams)

    def _answer(self) -> tuple[bytes, Endpoint]:
        draw, chance = self.random.choice, self.random.random
        known = list(self.both.python.state.flows.by_key.values())
        if known and chance() < 0.7:  # mostly what a transceiver says is true
            flow: Flow = draw(known)
            pod, paths = route_of(flow.route), [flow.key]
        else:
            pod, paths = draw(self.sessions).route, self.clients
        source = self.address_of[pod] if chance() < 0.95 else draw(list(self.places.values()))
        if self._recent and chance() < 0.05:
            return draw(self._recent), source  # our own, come back
        kind = HopType.DATA if chance() < 0.8 else draw(list(HopType))
        head = Outer(kind, chance() < 0.97, pod.cluster, pod.pod, pod.worker, 3, int(self.unix * 1000))
        if chance() < 0.1:
            head = replace(head, time_ms=head.time_ms + draw((-61_000, -59_000, 5, 60_000, 60_001)))
        if chance() < 0.05:
            head = replace(head, hops_left=draw((0, 2)), flags=draw((0, 1)), return_slot=draw((0, 9)))
        number = self.hop_key if chance() < 0.9 else draw((0, 1, 2))
        records = tuple(self._record(draw(paths)) for _ in range(1 if chance() < 0.7 else draw((2, 5))))
        datagram = hop.encode(replace(head, key_id=3 + number), records, HOP_KEYS[number % 2])
        return self._mangled(datagram) if chance() < 0.05 else datagram, source

    def _store_answers(self) -> None:
        """It says what it likes: twice, late, of somebody else, or nothing; and now and then something is loaded."""
        draw, chance = self.random.choice, self.random.random
        self._asked_store = [*self._asked_store, *self.both.take_questions()][-40:]
        places = [route_bytes(pod) for pod in self.places]
        answers: list[tuple[bytes, bytes | None]] = []
        for _ in range(draw((1, 4, 20, BATCH))):
            known = self._asked_store and chance() < 0.9
            path = draw(self._asked_store if known else self.clients)
            answers.append((path, draw((None, *places, bytes(7)))))
        self.both.from_store(self.now, self.unix, answers)
        if chance() < 0.1:
            self.both.load([(draw(self.clients), draw(places)) for _ in range(draw((1, 50)))], self.now)

    def _transceivers_say_here(self) -> None:
        heres = [self._here() for _ in range(self.random.choice((1, 3, 12)))]
        if self.random.random() < 0.2:
            heres += heres
        self.both.from_transceivers(self.now, self.unix, heres)

    def _here(self) -> tuple[bytes, Endpoint]:
        """The answer to a question of these seconds, or one that only looks like it."""
        draw, chance = self.random.choice, self.random.random
        if self._asked and chance() < 0.9:
            question = draw(self._asked[-8:] if chance() < 0.7 else self._asked)
            pod = Route(question.outer.cluster, question.outer.pod, question.outer.worker)
            path, ssrc = question.records[0].path, question.records[0].payload
        else:
            pod, path, ssrc = draw(list(self.places)), path_of(draw(self.clients)), bytes(4)
        if chance() < 0.3:
            ssrc = draw((0, 0, 7, 8, 9)).to_bytes(4)
        if chance() < 0.05:
            ssrc = ssrc[:3]
        source = self.address_of[pod] if chance() < 0.95 else draw(list(self.places.values()))
        head = Outer(HopType.HERE, True, pod.cluster, pod.pod, pod.worker, 3 + self.hop_key, int(self.unix * 1000))
        records = (Record(path, ssrc),) * (1 if chance() < 0.95 else 2)
        datagram = hop.encode(head, records, HOP_KEYS[self.hop_key])
        return self._mangled(datagram) if chance() < 0.03 else datagram, source

    def _record(self, path: bytes) -> Record:
        draw = self.random.choice
        flags = draw((0, RecordFlag.ALIVE, RecordFlag.ALIVE, RecordFlag.ALIVE, RecordFlag.SPLIT, 16))
        return Record(path_of(path), bytes(draw((0, 1, 60, 160))), flags)

    def _mangled(self, datagram: bytes) -> bytes:
        if not datagram:
            return datagram
        place = self.random.randrange(len(datagram))
        match self.random.randrange(3):
            case 0:
                return datagram[:place]
            case 1:
                return datagram + self.random.randbytes(self.random.choice((1, 4)))
            case _:
                changed = datagram[place] ^ (1 << self.random.randrange(8))
                return datagram[:place] + bytes((changed,)) + datagram[place + 1 :]

    def _mangled_text(self, text: str) -> str:
        place = self.random.randrange(len(text))
        return text[:place] + self.random.choice("ABab09+/=:- ") + text[place + 1 :]


def packed(address: Endpoint) -> tuple[bytes, int]:
    return pack_address(address[0]), address[1]


def difference(expected: Counters, seen: Counters) -> dict[str, tuple[object, object]]:
    """What two sets of counters do not agree in."""
    flat = [_flat(counters) for counters in (expected, seen)]
    return {name: (value, flat[1][name]) for name, value in flat[0].items() if value != flat[1][name]}


def _flat(counters: Counters) -> dict[str, object]:
    return {
        **{str(reason): count for reason, count in counters.drops.items()},
        **{str(event): count for event, count in counters.flow_events.items()},
        "uplink": counters.uplink,
        "downlink": counters.downlink,
        "tentative": counters.tentative,
        "split": counters.split,
        "questions": counters.questions,
        "found_by_address": counters.found_by_address,
        "found_by_ssrc": counters.found_by_ssrc,
        "store": (counters.store_asked, counters.store_skipped, counters.store_loaded),
        "found_in_store": (counters.store_found, counters.store_unnamed),
        "waiting_bytes": counters.waiting_bytes,
        "offset": counters.hop_time_offset_ms,
        "offset_max": counters.hop_time_offset_max_ms,
    }
