"""Regions: whose word counts, who comes first, and what is advertised."""

from __future__ import annotations

import ipaddress

import pytest

from usher_core.internal_api import AdvertisedAddress
from usher_signaling.models import choose_backend, list_models
from usher_signaling.regions import RegionalAddress, Regions, is_region, tried_last

PROXIES = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))
WITH_PROXY = Regions(own="home", header="X-Region", proxies=PROXIES)
ITEMS = [("a", "eu"), ("b", "us"), ("c", "ap"), ("d", ""), ("e", "eu")]


@pytest.mark.parametrize(
    ("peer", "values", "region"),
    [
        ("10.1.2.3", ["eu"], "eu"),
        ("fd00::1", ["eu"], "eu"),
        ("::ffff:10.1.2.3", ["eu"], "eu"),
        ("10.1.2.3", [], "home"),
        ("10.1.2.3", [""], "home"),
        ("10.1.2.3", ["eu", "us"], "home"),  # one may be the client's own
        ("10.1.2.3", ["eu, us"], "home"),
        ("10.1.2.3", ["eu\r\nx"], "home"),
        ("10.1.2.3", ["é"], "home"),
        ("10.1.2.3", ["x" * 65], "home"),
        ("192.0.2.1", ["eu"], "home"),
        ("::ffff:192.0.2.1", ["eu"], "home"),
        ("fe80::1%eth0", ["eu"], "home"),
        ("not an address", ["eu"], "home"),
        (None, ["eu"], "home"),
    ],
)
def test_a_header_counts_only_from_a_trusted_proxy_and_only_once(
    peer: str | None, values: list[str], region: str
) -> None:
    assert WITH_PROXY.of_request(peer, values) == region


def test_without_proxies_nobody_is_believed() -> None:
    assert Regions(own="home", header="X-Region").of_request("127.0.0.1", ["eu"]) == "home"


@pytest.mark.parametrize(
    ("region", "fallback", "expected"),
    [
        ("eu", ("*",), ["ae", "bcd"]),
        ("eu", ("us", "*"), ["ae", "b", "cd"]),
        ("eu", ("*", "us"), ["ae", "cd", "b"]),  # us last, as told
        ("eu", ("us",), ["ae", "b"]),
        ("eu", (), ["ae"]),
        ("eu", ("us", "eu", "*"), ["ae", "b", "cd"]),
        ("", ("*",), ["abcde"]),
        ("", ("us", "*"), ["b", "acde"]),
        ("", (), []),
        ("moon", ("*",), ["abcde"]),
        ("moon", ("us",), ["b"]),
        ("moon", (), []),
    ],
)
def test_the_own_region_comes_first_then_the_fallbacks_in_their_order(
    region: str, fallback: tuple[str, ...], expected: list[str]
) -> None:
    groups = Regions(fallback=fallback).order(region, ITEMS, lambda item: item[1])
    assert ["".join(name for name, _ in group) for group in groups] == expected


def test_a_region_that_has_cost_two_tries_lets_the_others_go_first() -> None:
    groups = [["a", "b", "c"], ["d"], ["e"]]
    assert tried_last(groups, {"a"}) == groups
    assert tried_last(groups, {"a", "b"}) == [["d"], ["e"], ["a", "b", "c"]]
    assert tried_last(groups, {"a", "b", "d"}) == [["d"], ["e"], ["a", "b", "c"]]


def address(listener: int, region: str = "") -> RegionalAddress:
    return RegionalAddress(AdvertisedAddress(listener=listener, host="192.0.2.1", port=listener), region)


@pytest.mark.parametrize(
    ("region", "fallback", "expected"),
    [
        ("eu", ("*",), [2, 4, 1]),
        ("us", ("*",), [3, 1]),
        ("ap", ("us", "*"), [1]),
        ("ap", (), [1]),
        ("", ("*",), [1]),
    ],
)
def test_the_nearest_addresses_are_advertised_and_behind_them_those_near_to_everybody(
    region: str, fallback: tuple[str, ...], expected: list[int]
) -> None:
    addresses = [address(1), address(2, "eu"), address(3, "us"), address(4, "eu")]
    found = Regions(fallback=fallback).addresses(region, addresses)
    assert [entry.address.listener for entry in found] == expected


@pytest.mark.parametrize(
    ("region", "fallback", "expected"),
    [
        ("eu", ("us",), [2, 4]),
        ("ap", ("us", "*"), [3]),
        ("ap", ("sa", "eu"), [2, 4]),
        ("ap", ("*",), [2, 3, 4]),
        ("ap", (), []),
        ("", ("us", "*"), [3]),
        ("", ("*",), [2, 3, 4]),
    ],
)
def test_with_no_address_near_the_first_fallback_that_has_any_is_advertised(
    region: str, fallback: tuple[str, ...], expected: list[int]
) -> None:
    addresses = [address(2, "eu"), address(3, "us"), address(4, "eu")]
    found = Regions(fallback=fallback).addresses(region, addresses)
    assert [entry.address.listener for entry in found] == expected


def test_addresses_without_a_region_keep_their_order() -> None:
    addresses = (address(2), address(1))
    assert Regions().addresses("", addresses) == addresses
    assert Regions().addresses("eu", addresses) == addresses


@pytest.mark.parametrize("name", ["eu", "eu-west-1", "a.b_c", "1", "x" * 64])
def test_names_of_regions(name: str) -> None:
    assert is_region(name)


@pytest.mark.parametrize("name", ["", "*", "-eu", "eu-", "eu west", "eu;x", "eu\n", "ü", "x" * 65])
def test_what_is_no_name_of_a_region(name: str) -> None:
    assert not is_region(name)


@pytest.mark.parametrize(
    ("session", "backend"),
    [
        ({}, "echo"),
        ({"model": "parrot"}, "parrot"),
        ({"model": "gpt-realtime"}, "echo"),
        ({"model": "PARROT"}, "echo"),
        ({"model": ["parrot"]}, "echo"),
        ({"model": None}, "echo"),
    ],
)
def test_only_a_name_that_is_allowed_chooses_a_backend(session: dict[str, object], backend: str) -> None:
    assert choose_backend(session, ("parrot", "other"), "echo") == backend
    assert choose_backend(session, (), "echo") == "echo"


def test_a_caller_is_told_every_name_once() -> None:
    assert list_models((), None) == []
    assert list_models((), "echo") == ["echo"]
    assert list_models(("parrot", "echo"), "echo") == ["parrot", "echo"]
