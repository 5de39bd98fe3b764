"""Where the round trip of a call goes, as `usher call --trace` tells it."""

from typing import Any

import pytest

from usher_cli.call.trace import lines_of, trace_of


def described(*rtts: Any) -> dict[str, Any]:
    ends = ["client", "ingress", "home", "transceiver"]
    hops = [{"from": ends[n], "to": ends[n + 1], "rtt_ms": rtt} for n, rtt in enumerate(rtts)]
    return {"path": {"hops": hops}}


def test_the_clients_own_hop_is_what_the_others_leave() -> None:
    trace = trace_of(42.5, described(None, 41.2, 0.3))
    assert [hop["rtt_ms"] for hop in trace["hops"]] == [1.0, 41.2, 0.3]
    assert (trace["total_ms"], trace["rest_ms"]) == (42.5, None)


def test_hops_that_nobody_tells_share_the_rest() -> None:
    trace = trace_of(42.5, described(None, 41.2, None))
    assert [hop["rtt_ms"] for hop in trace["hops"]] == [None, 41.2, None]
    assert trace["rest_ms"] == 1.3
    assert lines_of(3, trace) == [
        "call 3: round trip 42.5 ms",
        "      client ↔ ingress                   -",
        "      ingress ↔ home               41.2 ms",
        "      home ↔ transceiver                 -",
        "      what is not told takes        1.3 ms",
    ]


def test_where_the_other_hops_took_more_than_the_whole_nothing_is_said_of_the_clients_own() -> None:
    trace = trace_of(40.0, described(None, 41.2, 0.3))
    assert trace["hops"][0]["rtt_ms"] is None
    assert lines_of(1, trace)[1:] == [
        "      client ↔ ingress                   -",
        "      ingress ↔ home               41.2 ms",
        "      home ↔ transceiver            0.3 ms",
        "      the hops were timed at other moments than the whole, and take more here",
    ]


def test_a_way_of_which_no_relay_tells_says_what_is_missing() -> None:
    trace = trace_of(0.7, {"path": {"hops": [{"from": "client", "to": "transceiver", "rtt_ms": None}]}})
    assert lines_of(1, trace)[1:] == [
        "      client ↔ transceiver          0.7 ms",
        "      no relay that the server asks (--relay-admin) carries this call",
    ]


def test_without_a_check_or_hops_it_says_so() -> None:
    assert trace_of(None, described(None, 41.2, 0.3))["hops"][0]["rtt_ms"] is None
    assert lines_of(1, trace_of(None, {})) == [
        "call 1: no check was answered",
        "      the server does not tell the hops: it needs --relay-admin, and you an API key",
    ]


@pytest.mark.parametrize(
    "told", [None, [], {"path": 3}, {"path": {"hops": "x"}}, {"path": {"hops": [1, {"from": 2, "rtt_ms": "far"}]}}]
)
def test_what_a_strange_server_tells_breaks_nothing(told: Any) -> None:
    trace = trace_of(5.0, told if isinstance(told, dict) else {"path": told})
    assert lines_of(1, trace)
    assert all(hop["rtt_ms"] in (None, 5.0) for hop in trace["hops"])
