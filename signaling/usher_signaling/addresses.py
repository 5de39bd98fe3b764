"""Which relay addresses an answer may name, by the transceiver that it comes from."""

from __future__ import annotations

from typing import Protocol

from usher_core.ids import Route
from usher_signaling.regions import RegionalAddress


class AddressBook(Protocol):
    """The public relay addresses, in order of preference."""

    advice: str
    """What whoever runs this server can do where there is none for a call."""

    def all(self) -> tuple[RegionalAddress, ...]:
        """Return all that are known."""
        ...

    def of(self, route: Route) -> tuple[RegionalAddress, ...]:
        """Return those whose relays serve the transceiver of a route; equal ones are the same object."""
        ...


class FixedAddresses:
    """See AddressBook. The same for all transceivers, from the settings."""

    advice = "whoever runs this server adds one with `--advertise`"

    def __init__(self, addresses: tuple[RegionalAddress, ...]) -> None:
        self._addresses = addresses

    def all(self) -> tuple[RegionalAddress, ...]:
        """See AddressBook."""
        return self._addresses

    def of(self, route: Route) -> tuple[RegionalAddress, ...]:
        """See AddressBook."""
        return self._addresses
