"""Records of one batch share hop datagrams: nothing lost, nothing reordered, nothing too long."""

from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from usher_core import hop
from usher_core.ids import Route
from usher_relay.bundle import MAX_BUNDLE, Gram, bundle, each_alone
from usher_relay.hop_codec import LENGTHS, make_stamp, record_header, route_bytes
from usher_relay.state import LiveRoute

KEY = bytes(range(16))
STAMP = make_stamp(3, KEY, 1_800_000_000_000)
PATH_KEY = bytes(18) + b"\x01\x02"


def routes(*sizes: int) -> list[LiveRoute]:
    return [
        LiveRoute(route_bytes(Route(1, 17 + number, 0)), ("10.0.0.1", 7_200 + number), size)
        for number, size in enumerate(sizes)
    ]


def gram(route: LiveRoute, payload: bytes) -> Gram:
    return route, LENGTHS[len(payload)] + record_header(PATH_KEY, 0), payload


@given(
    sizes=st.lists(st.integers(200, 20_000), min_size=1, max_size=4),
    packets=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120)), max_size=64),
)
def test_every_record_leaves_in_its_turn_in_no_more_datagrams_than_it_takes(
    sizes: list[int], packets: list[tuple[int, int]]
) -> None:
    known = routes(*sizes)
    grams = [
        gram(known[which % len(known)], bytes((number,)) + bytes(length))
        for number, (which, length) in enumerate(packets)
    ]
    by_address = defaultdict(list)
    for datagram, address in bundle(grams, STAMP):
        parsed = hop.parse(datagram)
        assert hop.verify(parsed, KEY)
        by_address[address].append((len(datagram), [record.payload for record in parsed.records]))
    for route in known:
        room = min(route.hop_size, MAX_BUNDLE)
        sent = by_address.pop(route.address, [])
        assert [payload for _, payloads in sent for payload in payloads] == [
            payload for to, _, payload in grams if to is route
        ]
        assert all(length <= room or len(payloads) == 1 for length, payloads in sent)
        for (length, _), (_, following) in pairwise(sent):
            assert length + hop.RECORD_LENGTH + len(following[0]) > room, "it would have fitted"
    assert not by_address


def test_alone_each_record_has_a_datagram_of_the_same_bytes_that_a_bundle_of_one_has() -> None:
    (route,) = routes(1_472)
    grams = [gram(route, bytes((number,)) * 30) for number in range(3)]
    assert each_alone(grams, STAMP) == [bundle([one], STAMP)[0] for one in grams]
