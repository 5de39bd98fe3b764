"""Where a call belongs, and who stands in when that place has no room. No I/O: a request's facts in, an order out.

Rules:
* The region of a request is what a trusted proxy says in its header, else our own. A header is believed only when the
  connection comes from one of the proxies, and only when it stands there once: two may be a client's and a proxy's.
* First comes the region of the request, then the fallbacks in their order. `*` among them is everybody else; without
  it, calls never leave the regions that are named.
* A request without a region goes by the fallbacks alone.
* A region that has cost a request two tries lets the others go first: it may be out as a whole.
* Advertised are the addresses of the request's region and behind them the ones without a region, which are near to
  everybody; where there is neither, those of the first region in that order that has any (docs/decisions/0008).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from usher_core.internal_api import AdvertisedAddress

EVERYBODY_ELSE = "*"
REGION_TRIES = 2

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
ItemT = TypeVar("ItemT")

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class RegionalAddress:
    """A public relay address and the region that it is near to; "" for one that is near to everybody (anycast)."""

    address: AdvertisedAddress
    region: str = ""


@dataclass(frozen=True, slots=True)
class Regions:
    """The rules of one installation.

    Args:
        own: our region, "" for none.
        header: name of the header in which proxies tell a region, "" for none.
        proxies: who is believed.
        fallback: other regions in order; may hold `*` once.
    """

    own: str = ""
    header: str = ""
    proxies: tuple[Network, ...] = ()
    fallback: tuple[str, ...] = (EVERYBODY_ELSE,)

    def of_request(self, peer: str | None, values: Sequence[str]) -> str:
        """Return the region of a request that came from `peer` with these values of the header."""
        if len(values) == 1 and is_region(values[0]) and self._believes(peer):
            return values[0]
        return self.own

    def order(self, region: str, items: Iterable[ItemT], region_of: Callable[[ItemT], str]) -> list[list[ItemT]]:
        """Return the items in groups, the first choice for a request of `region` first. No group is empty."""
        ranks = {name: rank for rank, name in reversed(list(enumerate((region or None, *self.fallback))))}
        others = ranks.pop(EVERYBODY_ELSE, None)
        groups: dict[int, list[ItemT]] = {}
        for item in items:
            rank = ranks.get(region_of(item), others)
            if rank is not None:
                groups.setdefault(rank, []).append(item)
        return [groups[rank] for rank in sorted(groups)]

    def addresses(self, region: str, addresses: Sequence[RegionalAddress]) -> tuple[RegionalAddress, ...]:
        """Return what to advertise to a client of `region`, the best first."""
        near = [entry for entry in addresses if entry.region and entry.region == region]
        near += [entry for entry in addresses if not entry.region]
        elsewhere = self.order(region, addresses, lambda entry: entry.region)
        return tuple(near or (elsewhere[0] if elsewhere else ()))

    def _believes(self, peer: str | None) -> bool:
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:  # no address: a Unix socket
            return False
        # A socket for both families shows IPv4 peers as mapped ones.
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.proxies)


def is_region(name: str) -> bool:
    """Tell whether a text can be a region: 1 to 64 letters, digits and `.`, `_`, `-`, as in `eu-west-1`."""
    return _NAME.fullmatch(name) is not None


def check_region(name: str) -> str:
    """Return the name of a region. Raises ValueError that says what was expected."""
    if not is_region(name):
        raise ValueError(f"{name!r} is no region: 1 to 64 letters, digits and . _ - are, as in eu-west-1")
    return name


def tried_last(groups: Sequence[list[ItemT]], tried: Collection[ItemT]) -> list[list[ItemT]]:
    """Put the groups that have cost a request `REGION_TRIES` tries behind the others."""
    return sorted(groups, key=lambda group: sum(item in tried for item in group) >= REGION_TRIES)
