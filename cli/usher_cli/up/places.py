"""The addresses of a fleet: those of the settings until a program has bound them, then the bound ones.

A program that is started again gets the same address as before, so whoever knows it need not learn another.
"""

from __future__ import annotations

from collections import defaultdict

from usher_cli.up.members import Member
from usher_cli.up.settings import UpSettings
from usher_core.ids import join_host_port, split_host_port

ANY_PORT = "127.0.0.1:0"
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Places:
    """Addresses by region, counted from 1, or by the name of a post."""

    def __init__(self, settings: UpSettings) -> None:
        entered = range(1, settings.ingress + 1)
        self._udp: defaultdict[int, str] = defaultdict(lambda: ANY_PORT, {n: settings.udp_of(n) for n in entered})
        self._http = {region: settings.http_of(region) for region in entered}
        self._admins: dict[str, str] = {}
        self._trunks: dict[int, dict[str, str]] = {}
        self._links: dict[str, str] = {}

    def learn(self, member: Member) -> None:
        """Take in what a program has bound. Raises LocalError when it does not say so."""
        match member.facts.get("program"):
            case "relay":
                self._udp[member.region] = member.facts["listeners"][str(member.region)]
                self._admins[member.name] = member.fact("admin")
                if "trunk" in member.facts:
                    self._trunks.setdefault(member.region, {})[member.name] = member.fact("trunk")
            case "signaling":
                self._http[member.region] = member.fact("http").removeprefix("http://")
            case "wan":
                self._links.update({there: here for here, there in member.facts["links"].items()})

    def udp(self, region: int) -> str:
        """`HOST:PORT` where clients enter."""
        return self._udp[region]

    def http(self, region: int) -> str:
        """`HOST:PORT` of the HTTP API."""
        return self._http[region]

    def url(self, region: int) -> str:
        """What a person on this machine opens."""
        return f"http://{_from_here(self._http[region])}"

    def admin(self, name: str) -> str:
        """`HOST:PORT` of the admin pages of a relay."""
        return self._admins.get(name, ANY_PORT).removeprefix("http://")

    def admins(self) -> list[str]:
        """Base URLs of the admin pages of all relays."""
        return list(self._admins.values())

    def trunk(self, region: int, name: str) -> str:
        """`IP:PORT` of the trunk of a relay."""
        return self._trunks.get(region, {}).get(name, ANY_PORT)

    def far(self, region: int) -> str:
        """`IP:PORT` where a caller of another region enters here."""
        near = _from_here(self._udp[region])
        return self._links.get(near, near)

    def peers(self, region: int) -> dict[int, list[str]]:
        """Where relays of a region send for each other cluster: the trunks of its relays, or the way to them."""
        return {
            cluster: [self._links.get(trunk, trunk) for trunk in trunks.values()]
            for cluster, trunks in sorted(self._trunks.items())
            if cluster != region
        }

    def links(self, entered: int) -> list[str]:
        """`HERE=THERE` of all ways between regions: to trunks, and to the first `entered` ingress points."""
        far = [_from_here(self._udp[region]) for region in range(1, entered + 1)]
        ends = [*(trunk for trunks in self._trunks.values() for trunk in trunks.values()), *far]
        return [f"{self._links.get(there, ANY_PORT)}={there}" for there in ends]


def _from_here(address: str) -> str:
    """Return an address as this machine reaches it: no wildcard."""
    host, port = split_host_port(address)
    return join_host_port(_LOOPBACK.get(host, host), port)
