"""Which programs of the fleet run now, as the route file and the state file tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from usher_core.errors import LocalError
from usher_core.routes import Transceiver


@dataclass(frozen=True, slots=True)
class Member:
    """A program that announced itself: name of its post, process id, announce line, number of its region."""

    name: str
    pid: int
    facts: Mapping[str, Any]
    region: int = 1

    def fact(self, key: str) -> str:
        """Return a text of the announce line. Raises LocalError when it is missing."""
        value = self.facts.get(key)
        if not isinstance(value, str):
            raise LocalError(f"{self.name} announced itself without {key!r}")
        return value


class Members:
    """The members by the name of their post.

    Args:
        region_names: by number, for the route file and the state file; none where there is one region.
    """

    def __init__(self, region_names: Mapping[int, str] | None = None) -> None:
        self._by_name: dict[str, Member] = {}
        self._region_names = region_names or {}

    def add(self, member: Member) -> None:
        self._by_name[member.name] = member

    def remove(self, name: str) -> None:
        self._by_name.pop(name, None)

    def of(self, program: str) -> list[Member]:
        """Return the members that run `program`, by the order of their names' numbers."""
        found = [member for member in self._by_name.values() if member.facts.get("program") == program]
        return sorted(found, key=lambda member: (member.region, len(member.name), member.name))

    def transceivers(self) -> list[Transceiver]:
        """Return the entries of the route file. The cluster of a region has its number."""
        return [
            Transceiver(
                cluster=member.region,
                pod=member.facts["pod"],
                udp=member.fact("udp"),
                http=member.fact("http"),
                region=self._region_names.get(member.region, ""),
            )
            for member in self.of("transceiver")
        ]

    def state(self, http: str, udp: str, keys: str) -> dict[str, Any]:
        """Return the object of the state file.

        `http` and each `admin` are base URLs, `udp` is `IP:PORT`, `keys` the directory of the key files.
        """
        return {
            "http": http,
            "udp": udp,
            "keys": keys,
            "relays": [self._entry(relay, "admin") for relay in self.of("relay")],
            "transceivers": [
                {**self._entry(member, "http"), "pod_id": member.facts["pod"]} for member in self.of("transceiver")
            ],
            "signaling": [self._entry(member, "http") for member in self.of("signaling")],
        }

    def _entry(self, member: Member, admin: str) -> dict[str, Any]:
        """Return what the state file has of every program; `admin` is the fact with its base URL."""
        region = {"region": self._region_names[member.region]} if member.region in self._region_names else {}
        return {"pid": member.pid, "admin": member.fact(admin), **region}
