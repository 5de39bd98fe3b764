"""The hops of one call and what each takes, out of what relays tell of themselves. No I/O.

Rules:
* Where the call enters is the relay that has a flow of its listener to its transceiver. Of several replicas that share
  calls any one will do: they stand in one place.
* If that one knows the transceiver, it sends there itself. Else it sends to a relay of the transceiver's cluster, its
  home: the round trip is that of the probes to where clients are sent, the nearest one.
* Where no relay that is asked has the call, it may have entered in another region. Its relays probe ours, and ours
  theirs where trunks lead both ways: then ours know the round trip, too.
* What the client's own hop takes nobody but the client can tell: its checks measure the whole way.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from usher_core.errors import RemoteError
from usher_core.internal_api import SessionPath

MAX_RTT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop. Ends are `client`, `ingress`, `home`, `relay` and `transceiver`; `rtt_ms` is None where not known."""

    start: str
    end: str
    rtt_ms: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as the API tells it."""
        return {"from": self.start, "to": self.end, "rtt_ms": self.rtt_ms}


@dataclass(frozen=True, slots=True)
class RelayWays:
    """What one relay tells of one call's way: round trips in ms, None where not known.

    Args:
        has_call: a client of the call's listener has a flow to its transceiver.
        has_route: it sends to the transceiver itself.
        route_ms: round trip to the transceiver.
        trunk_ms: round trip to the nearest relay of the transceiver's cluster.
        entry_ms: round trip to the nearest relay of the region where the client enters, if that is another one.
    """

    has_call: bool
    has_route: bool
    route_ms: float | None
    trunk_ms: float | None
    entry_ms: float | None


def read_ways(path: SessionPath, flows: str, routes: str, entry: Collection[int] = ()) -> RelayWays:
    """Read the pages `/flows` and `/routes` of a relay. Raises RemoteError when they are none.

    `entry`: clusters of the region where the client enters, if that is another one.
    """
    route = f"{path.cluster}/{path.pod}/{path.worker}"
    try:
        known = json.loads(routes)
        own = [entry for entry in known["routes"] if entry["route"] == route]
        peers = [peer for peer in known.get("peers", ()) if peer["up"]]
        ways = [peer for peer in peers if peer["cluster"] == path.cluster]
        used = [peer for peer in ways if peer.get("used")] or ways
        carried = [flow for flow in json.loads(flows)["flows"] if flow["route"] == route]
        return RelayWays(
            has_call=any(flow["listener"] == path.listener for flow in carried),
            has_route=bool(own),
            route_ms=_least(own),
            trunk_ms=_least(used),
            entry_ms=_least([peer for peer in peers if peer["cluster"] in entry]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RemoteError("no_relay", "its pages are not those of a relay") from None


def hops_of(ways: Sequence[RelayWays]) -> list[Hop]:
    """Return the hops of a call from its client to its transceiver."""
    entered = [each for each in ways if each.has_call]
    homes = [each.route_ms for each in ways if each.has_route and each.route_ms is not None]
    if entered:
        relay = next((each for each in entered if each.has_route), entered[0])
        if relay.has_route:
            return [Hop("client", "relay"), Hop("relay", "transceiver", relay.route_ms)]
        trunk = relay.trunk_ms
    else:
        trunk = min((each.entry_ms for each in ways if each.has_route and each.entry_ms is not None), default=None)
        if trunk is None:
            return [Hop("client", "transceiver")]
    return [
        Hop("client", "ingress"),
        Hop("ingress", "home", trunk),
        Hop("home", "transceiver", min(homes, default=None)),
    ]


def _least(entries: Sequence[dict[str, Any]]) -> float | None:
    return min((value for each in entries if (value := _milliseconds(each.get("rtt_ms"))) is not None), default=None)


def _milliseconds(value: Any) -> float | None:
    """Return a round trip; what no clock can have measured is not known."""
    return float(value) if isinstance(value, int | float) and 0 <= value <= MAX_RTT_MS else None
