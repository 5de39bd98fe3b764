"""Properties of signaling's pure parts: placement, sealed ids, entity tags, merging of sessions."""

from __future__ import annotations

import json
import string
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from usher_core.errors import RemoteError
from usher_core.ids import Route
from usher_core.internal_api import Load
from usher_core.json_values import merge
from usher_core.keys import SealKey
from usher_core.sealed import Sealer
from usher_shell.loopback_names import is_loopback_authority
from usher_signaling.call_ids import CallId, open_call_id, seal_call_id
from usher_signaling.client_secrets import ClientSecret, open_secret, seal_secret
from usher_signaling.entity_tags import entity_tag, parse_if_match
from usher_signaling.errors import ApiError
from usher_signaling.loopback import is_loopback_origin
from usher_signaling.peer_regions.itinerary import HERE, itinerary
from usher_signaling.peer_regions.origin import parse_region_tokens, read_origin
from usher_signaling.peer_regions.table import parse_regions_file
from usher_signaling.placement import Placement
from usher_signaling.regions import Regions

SEALER = Sealer([SealKey(id=7, key=bytes(range(32)))])
NONCE = bytes(12)
PEER_TOKEN = "region-token-of-the-properties-0123"
BURSTS = settings(max_examples=settings().max_examples // 4)  # each example places 500 calls
routes = st.builds(Route, st.integers(1, 0xFFFF), st.integers(0, 0xFFFF_FFFF), st.integers(0, 0xFF))
session_ids = st.binary(min_size=8, max_size=8).map(bytes.hex)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
sessions = st.dictionaries(st.text(max_size=8), json_values, max_size=4)


class Fleet:
    """Transceivers that count what is placed, and a placement that hears of it late."""

    def __init__(self, count: int, placements: int, seed: int, max_sessions: int = 1000) -> None:
        self.placed = {Route(1, pod): 0 for pod in range(count)}
        self.max_sessions = max_sessions
        self.replicas = [Placement(600, Random(seed + number)) for number in range(placements)]
        for replica in self.replicas:
            for route in self.placed:
                replica.report(route, self.load(route), 0.0)

    def load(self, route: Route) -> Load:
        count = self.placed[route]
        return Load(sessions=count, max_sessions=self.max_sessions, accepts=count < self.max_sessions)

    def place(self, replica: Placement, now: float, *, answered: bool = True) -> Route | None:
        route = replica.choose([self.placed], now)
        if route is None:
            return None
        replica.begin(route)
        self.placed[route] += 1
        if answered:
            replica.end(route, now)
        return route


@BURSTS
@given(seed=st.integers(0, 2**32), answered=st.booleans())
def test_a_burst_of_500_over_20_transceivers_ends_within_a_fifth_of_even(seed: int, *, answered: bool) -> None:
    """No load is reported during the burst: only what was placed here is known."""
    fleet = Fleet(20, 1, seed)
    for number in range(500):
        fleet.place(fleet.replicas[0], number / 1000, answered=answered)
    assert min(fleet.placed.values()) >= 20
    assert max(fleet.placed.values()) <= 30


@BURSTS
@given(seed=st.integers(0, 2**32))
def test_four_replicas_that_do_not_know_of_each_other_stay_within_two_fifths(seed: int) -> None:
    fleet = Fleet(20, 4, seed)
    for number in range(500):
        fleet.place(fleet.replicas[number % 4], number / 1000)
    assert min(fleet.placed.values()) >= 15
    assert max(fleet.placed.values()) <= 35


@given(seed=st.integers(0, 2**32), capacities=st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_every_place_is_filled_and_none_twice(seed: int, capacities: list[int]) -> None:
    """The transceiver's word decides: nobody is placed beyond it, and nobody is turned away while there is room."""
    placement = Placement(600, Random(seed))
    free = {Route(1, pod): capacity for pod, capacity in enumerate(capacities)}
    now = 0.0
    for route in free:
        placement.report(route, Load(sessions=0, max_sessions=9, accepts=True), now)
    for _ in range(sum(capacities)):
        tried: set[Route] = set()
        while True:
            chosen = placement.choose([free], now, tried)
            assert chosen is not None, "there is room, but it was not found"
            tried.add(chosen)
            if free[chosen] > 0:
                free[chosen] -= 1
                break
            placement.refused(chosen, now, draining=False)
    assert set(free.values()) == {0}


@given(route=routes, session=session_ids, tenant=st.text(min_size=1, max_size=64))
def test_a_call_id_opens_to_what_was_sealed(route: Route, session: str, tenant: str) -> None:
    call = CallId(route, session, tenant)
    text = seal_call_id(SEALER, call, 0)
    assert open_call_id(SEALER, text, tenant) == call
    assert text == seal_call_id(SEALER, call, 1), "a call has one id"
    assert len(text) == 74
    assert set(text) <= set(string.ascii_letters + string.digits + "_-")


@given(tenant=st.text(min_size=1, max_size=64), other=st.text(min_size=1, max_size=64))
def test_a_call_id_opens_for_its_own_tenant_only(tenant: str, other: str) -> None:
    text = seal_call_id(SEALER, CallId(Route(1, 1), "00" * 8, tenant), 0)
    if other != tenant:
        with pytest.raises(RemoteError):
            open_call_id(SEALER, text, other)


@given(data=st.data())
def test_any_change_to_a_call_id_makes_it_unknown(data: st.DataObject) -> None:
    text = seal_call_id(SEALER, CallId(Route(1, 1), "00" * 8, "acme"), 0)
    place = data.draw(st.integers(0, len(text)))
    change = data.draw(st.sampled_from(("replace", "insert", "delete", "cut")))
    character = data.draw(st.characters())
    changed = {
        "replace": text[:place] + character + text[place + 1 :],
        "insert": text[:place] + character + text[place:],
        "delete": text[:place] + text[place + 1 :],
        "cut": text[:place],
    }[change]
    if changed != text:
        with pytest.raises(RemoteError):
            open_call_id(SEALER, changed, "acme")


@given(session=sessions, expires_at=st.integers(0, 2**40))
def test_a_secret_opens_to_what_was_sealed(session: dict[str, object], expires_at: int) -> None:
    secret = ClientSecret("acme", expires_at, session)
    assert open_secret(SEALER, seal_secret(SEALER, secret, NONCE, 0)) == secret


def test_a_call_id_is_no_secret_and_a_secret_no_call_id() -> None:
    call = seal_call_id(SEALER, CallId(Route(1, 1), "00" * 8, "acme"), 0)
    secret = seal_secret(SEALER, ClientSecret("acme", 1), NONCE, 0)
    with pytest.raises(RemoteError):
        open_secret(SEALER, "ek_" + call.removeprefix("rtc_"))
    with pytest.raises(RemoteError):
        open_call_id(SEALER, "rtc_" + secret.removeprefix("ek_"), "acme")


@given(base=sessions, over=sessions)
def test_what_a_key_has_fixed_wins_in_a_merged_session(base: dict[str, object], over: dict[str, object]) -> None:
    merged = merge(base, over)
    assert set(merged) == set(base) | set(over)
    for name, value in over.items():
        if not isinstance(value, dict):
            assert merged[name] == value
    assert merge(merged, over) == merged


@given(ufrag=st.text(string.ascii_letters + string.digits + "+/", min_size=4, max_size=32), other=st.text(max_size=40))
def test_an_entity_tag_matches_itself_in_any_list(ufrag: str, other: str) -> None:
    tag = entity_tag(ufrag)
    assert parse_if_match(tag).matches(tag)
    assert parse_if_match(f'"x", {tag} ,W/"y"').matches(tag)
    assert not parse_if_match(f"W/{tag}").matches(tag)
    if other != ufrag:
        assert not parse_if_match(tag).matches(entity_tag(other))


@given(text=st.text(max_size=60))
def test_any_if_match_is_read_or_refused(text: str) -> None:
    try:
        parse_if_match(text)
    except RemoteError as error:
        assert error.reason == "if_match"


@given(text=st.text(max_size=60) | st.from_regex(r"https?://[a-z0-9.\[\]:@-]{0,20}", fullmatch=True))
def test_any_host_and_origin_is_judged_without_an_error(text: str) -> None:
    assert is_loopback_origin(text) in (True, False)
    assert is_loopback_authority(text) in (True, False)


@given(
    tokens=st.lists(st.sampled_from([PEER_TOKEN, PEER_TOKEN[1:], "", "\xff" * 40]), max_size=2),
    said=st.dictionaries(
        st.sampled_from(["usher-region", "usher-request-id", "usher-deadline-ms"]),
        st.text(st.characters(max_codepoint=0xFF), max_size=80) | st.sampled_from(["eu", "request-1", "250"]),
    ),
)
def test_nothing_is_believed_of_a_request_without_the_one_right_token(tokens: list[str], said: dict[str, str]) -> None:
    raw = [("usher-region-token", token) for token in tokens] + list(said.items())
    headers = Headers(raw=[(name.encode(), value.encode("latin-1")) for name, value in raw])
    try:
        origin = read_origin(parse_region_tokens(PEER_TOKEN), headers)
    except ApiError as error:
        assert tokens
        assert (error.status == 400) is (tokens == [PEER_TOKEN])
        return
    assert (origin is None) is (tokens == [])
    if origin is not None:
        assert tokens == [PEER_TOKEN]
        assert origin.region == said["usher-region"]
        assert origin.request_id == said.get("usher-request-id")
        assert origin.within is None or 0 < origin.within <= 60


@given(
    fallback=st.lists(st.sampled_from(["*", "us", "eu", "asia", "mars"]), unique=True),
    region=st.sampled_from(["us", "eu", "asia", "mars"]),
    here_first=st.booleans(),
)
def test_an_offer_goes_once_to_each_place_and_only_where_it_may(
    fallback: list[str], region: str, here_first: bool
) -> None:
    peers = [{"name": name, "url": f"https://{name}.example"} for name in ("us", "eu", "asia")]
    table = parse_regions_file(json.dumps({"version": 1, "regions": peers}), "us")
    places = itinerary(Regions("us", fallback=tuple(fallback)), table, region, here_first=here_first)
    assert len(set(places)) == len(places) > 0
    assert set(places) <= {HERE, "eu", "asia"}
    named = {HERE if name in ("us", "mars") else name for name in (region, *fallback) if name != "*"}
    assert named <= set(places)
    assert "*" in fallback or set(places) == named
    if not (here_first and HERE in places):
        assert places[0] == (region if region in ("eu", "asia") else HERE)
