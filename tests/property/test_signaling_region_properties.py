"""Properties of regions: nobody is believed who should not be, nothing is named twice, nothing leaves what is named."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from usher_core.internal_api import AdvertisedAddress
from usher_signaling.regions import EVERYBODY_ELSE, RegionalAddress, Regions, is_region, tried_last

PROXIES = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("2001:db8::/32"))
names = st.sampled_from(["", "eu", "us", "ap", "sa"])
fallbacks = st.lists(st.sampled_from(["eu", "us", "ap", EVERYBODY_ELSE]), unique=True).map(tuple)
items = st.lists(names).map(lambda regions: list(enumerate(regions)))


@given(peer=st.none() | st.text(max_size=45) | st.ip_addresses().map(str), values=st.lists(st.text(max_size=70)))
def test_any_peer_and_header_give_a_region_and_strangers_give_ours(peer: str | None, values: list[str]) -> None:
    found = Regions("home", "X-Region", PROXIES).of_request(peer, values)
    assert is_region(found)
    if found != "home":
        assert values == [found]
        assert any(ipaddress.ip_address(peer or "") in network for network in PROXIES)


@given(region=names, fallback=fallbacks, all_items=items)
def test_groups_hold_every_item_that_may_be_chosen_once_and_the_own_region_first(
    region: str, fallback: tuple[str, ...], all_items: list[tuple[int, str]]
) -> None:
    groups = Regions(fallback=fallback).order(region, all_items, lambda item: item[1])
    found = [item for group in groups for item in group]
    assert all(groups)
    assert len(found) == len(set(found))
    may = {item for item in all_items if EVERYBODY_ELSE in fallback or (item[1] and item[1] in (region, *fallback))}
    assert set(found) == may
    own = [item for item in all_items if item[1] == region]
    if region and own:
        assert groups[0] == own


@given(all_groups=st.lists(st.lists(st.integers(), unique=True)), tried=st.sets(st.integers()))
def test_tried_groups_change_places_and_nothing_else(all_groups: list[list[int]], tried: set[int]) -> None:
    assert sorted(tried_last(all_groups, tried)) == sorted(all_groups)


@given(region=names, fallback=fallbacks, regions=st.lists(names, max_size=16))
def test_advertised_is_one_region_and_what_has_none(region: str, fallback: tuple[str, ...], regions: list[str]) -> None:
    addresses = [
        RegionalAddress(AdvertisedAddress(listener=number, host="192.0.2.1", port=1), name)
        for number, name in enumerate(regions)
    ]
    found = Regions(fallback=fallback).addresses(region, addresses)
    assert len(found) == len(set(found))
    named = {entry.region for entry in found if entry.region}
    if region in regions and region:
        assert named == {region}
    # Only `*` mixes regions: it does not say which of the others is nearer.
    assert len(named) <= 1 or EVERYBODY_ELSE in fallback
    assert [entry for entry in addresses if not entry.region] == [entry for entry in found if not entry.region]
    if "" in regions:
        assert named <= {region}
