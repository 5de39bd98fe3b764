"""The regions file, region tokens, and the order in which places are tried for an offer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.datastructures import Headers

from usher_core.errors import LocalError
from usher_signaling.peer_regions.itinerary import HERE, itinerary
from usher_signaling.peer_regions.origin import Origin, parse_region_tokens, read_origin
from usher_signaling.peer_regions.table import parse_regions_file
from usher_signaling.regions import Regions

TOKEN, NEXT_TOKEN = "a" * 40, "b" * 40


def table(*names: str, own: str = "us") -> Any:
    regions = [
        {"name": name, "url": f"https://{name}.example/", "clusters": [number + 1]} for number, name in enumerate(names)
    ]
    return parse_regions_file(json.dumps({"version": 1, "regions": regions}), own)


@pytest.mark.parametrize(
    ("fallback", "region", "expected"),
    [
        (("*",), "us", [HERE, "eu", "asia"]),
        (("*",), "eu", ["eu", HERE, "asia"]),
        (("*",), "mars", [HERE, "eu", "asia"]),
        (("asia", "*"), "eu", ["eu", "asia", HERE]),
        (("asia", "us", "eu"), "us", [HERE, "asia", "eu"]),
        (("*", "eu"), "us", [HERE, "asia", "eu"]),
        (("eu",), "asia", ["asia", "eu"]),
        (("us",), "eu", ["eu", HERE]),
        (("us-2", "us-3"), "us", [HERE]),
        ((), "eu", ["eu"]),
        ((), "us", [HERE]),
    ],
)
def test_the_clients_region_is_first_and_fallbacks_follow(
    fallback: tuple[str, ...], region: str, expected: list[str]
) -> None:
    rules, peers = Regions("us", fallback=fallback), table("us", "eu", "asia")
    assert itinerary(rules, peers, region, here_first=False) == expected
    first = [HERE] * (HERE in expected)
    assert itinerary(rules, peers, region, here_first=True) == [*first, *(each for each in expected if each != HERE)]


def test_few_other_regions_are_tried_and_we_always_where_we_may() -> None:
    peers = table("us", *(f"r{number}" for number in range(10)))
    assert itinerary(Regions("us"), peers, "r7", here_first=False) == ["r7", HERE, "r0", "r1"]
    rules = Regions("us", fallback=("r1", "r2", "r3", "r4", "us"))
    assert itinerary(rules, peers, "r7", here_first=False) == ["r7", "r1", "r2", HERE]


@pytest.mark.parametrize(("names", "told"), [(("us", "eu"), "us, eu"), ((), "empty")])
def test_a_region_that_its_own_file_does_not_name_is_refused(names: tuple[str, ...], told: str) -> None:
    with pytest.raises(LocalError, match=rf"--region 'uss' is not in the regions file \({told}\)"):
        table(*names, own="uss")


def test_a_regions_file_is_the_same_for_all_and_each_leaves_itself_out() -> None:
    both = ("us", "eu")
    assert (table(*both).names, table(*both, own="eu").names) == (("eu",), ("us",))
    eu = table(*both).find("eu")
    assert (eu.url, table(*both).owner(2)) == ("https://eu.example", eu)
    assert (table(*both).owner(1), table(*both).owner(9), table(*both).find("us")) == (None, None, None)


@pytest.mark.parametrize(
    ("regions", "fault"),
    [
        ([{"name": "eu", "url": "https://eu.example", "clusters": [1]}] * 2, "a region stands twice"),
        (
            [{"name": name, "url": "https://eu.example", "clusters": [1]} for name in ("eu", "asia")],
            "a cluster id stands twice",
        ),
        ([{"name": "e u", "url": "https://eu.example"}], "no region"),
        ([{"name": "eu", "url": "https://eu.example/v1"}], "no base URL"),
        ([{"name": "eu", "url": "https://user:word@eu.example"}], "neither user nor fragment"),
        ([{"name": "eu", "url": "ftp://eu.example"}], "no base URL"),
        ([{"name": "eu", "url": "http://[::g]"}], "'::g' does not appear to be an IPv4 or IPv6 address"),
        *(([{"name": "eu", "url": f"https://eu.example:{port}"}], "the port in") for port in ("0", "99999", "abc")),
        *(
            ([{"name": "eu", "url": f"https://{host}"}], "the host in")
            for host in ("a..b", "a" * 64, "xn--zz--", "ex ample", "a\\b", "999.1.1.1", "é.example")
        ),
        ([{"name": "eu", "url": "https://eu.example", "clusters": [0]}], "greater than or equal to 1"),
        ([{"name": "eu", "url": "https://eu.example", "cluster": 1}], r"regions\.0\.cluster: unknown field"),
        ([{"name": f"r{number}", "url": "https://eu.example"} for number in range(65)], "at most 64"),
    ],
)
def test_a_wrong_regions_file_is_refused_by_its_fault(regions: list[dict[str, Any]], fault: str) -> None:
    with pytest.raises(LocalError, match=fault):
        _ = parse_regions_file(json.dumps({"version": 1, "regions": regions}), "us")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "regions": []}', "[" * 100_000, "1" * 5_000])
def test_what_is_no_regions_file_is_a_local_error(text: str) -> None:
    with pytest.raises(LocalError):
        _ = parse_regions_file(text, "us")


def test_the_first_token_is_sent_and_all_are_taken() -> None:
    tokens = parse_region_tokens(f"\n {TOKEN} \n{NEXT_TOKEN}\n")
    assert tokens.sent == TOKEN
    assert [tokens.admit(each) for each in (TOKEN, NEXT_TOKEN, TOKEN[1:], "", "é", "ł")] == [True, True, *[False] * 4]


@pytest.mark.parametrize("text", ["", "\n", "short", f"{'a' * 20} {'b' * 20}", "é" * 40, f"{TOKEN}\n" * 9, "a" * 513])
def test_a_token_file_that_is_none_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(LocalError, match="region token file") as caught:
        _ = parse_region_tokens(text)
    assert not text.strip() or text.strip() not in str(caught.value)


@pytest.mark.parametrize(
    "origin",
    [Origin("eu"), Origin("eu-west-1", "request_0-9"), Origin("eu", "request_0-9", 1.25), Origin("eu", None, 60)],
)
def test_what_a_peer_writes_is_what_a_peer_reads(origin: Origin) -> None:
    assert (
        read_origin(parse_region_tokens(NEXT_TOKEN), Headers(origin.headers(parse_region_tokens(NEXT_TOKEN)))) == origin
    )
