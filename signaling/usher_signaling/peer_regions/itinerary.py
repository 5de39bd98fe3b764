"""Where an offer is tried, in order. No I/O: a request's region and the settings in, an order out.

Rules:
* First comes the region of the client, then the fallbacks in their order; `*` among them is everybody else: we first,
  then the other regions in the order of their file.
* A region that is no peer's is ours to serve: our own, and names that our own transceivers or relay addresses have.
* `here_first`: we come first while we are in the order at all. A call then takes the way through our relays' trunk
  rather than one more request between regions.
* At most `MAX_OTHERS_TRIED` other regions are tried for one offer.
"""

from __future__ import annotations

from collections.abc import Iterator

from usher_signaling.peer_regions.table import RegionTable
from usher_signaling.regions import EVERYBODY_ELSE, Regions

HERE = ""
MAX_OTHERS_TRIED = 3


def itinerary(regions: Regions, peers: RegionTable, region: str, *, here_first: bool) -> list[str]:
    """Return names of peers, and HERE once at most, in the order in which a client of `region` tries them."""
    order = list(dict.fromkeys(_places(regions, peers, region)))
    if here_first and HERE in order:
        order.remove(HERE)
        order.insert(0, HERE)
    others = [place for place in order if place != HERE][:MAX_OTHERS_TRIED]
    return [place for place in order if place == HERE or place in others]


def _places(regions: Regions, peers: RegionTable, region: str) -> Iterator[str]:
    for name in (region, *regions.fallback):
        if name == EVERYBODY_ELSE:
            yield HERE
            named = {region, *regions.fallback}
            yield from (peer for peer in peers.names if peer not in named)
        else:
            yield HERE if peers.find(name) is None else name
