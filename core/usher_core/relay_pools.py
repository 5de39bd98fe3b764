"""What signaling reads from a RelayPool: its public addresses, and for which transceiver pods they are.

The operator finds the addresses and writes them into the status; so an answer names them without anybody copying them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from usher_core.errors import RemoteError, describe
from usher_core.internal_api import AdvertisedAddress
from usher_core.label_selectors import matches
from usher_core.pod_routes import RoutablePod

MAX_ADDRESSES = 64


@dataclass(frozen=True, slots=True)
class RelayPoolAddresses:
    """The addresses of a RelayPool; `namespaces` and `selector` say which pods its relays serve."""

    namespace: str
    name: str
    region: str
    addresses: tuple[AdvertisedAddress, ...]
    namespaces: tuple[str, ...]
    selector: Mapping[str, Any]

    def serves(self, pod: RoutablePod) -> bool:
        """Tell whether these relays carry the packets of a pod."""
        return pod.namespace in self.namespaces and matches(self.selector, pod.labels)


def parse_relay_pool(body: Mapping[str, Any]) -> RelayPoolAddresses | None:
    """Return the addresses of a RelayPool; None while it has none, or is being deleted.

    Raises RemoteError (reason `address`, `selector` or `shape`) when it makes no sense.
    """
    try:
        metadata, spec = body["metadata"], body.get("spec") or {}
        found = (body.get("status") or {}).get("addresses") or ()
        if not found or "deletionTimestamp" in metadata:
            return None
        transceivers = spec.get("transceivers") or {}
        selector = transceivers.get("selector") or {}
        matches(selector, {})
        return RelayPoolAddresses(
            namespace=metadata["namespace"],
            name=metadata["name"],
            region=str(spec.get("region") or ""),
            addresses=tuple(
                AdvertisedAddress(listener=entry["listener"], host=entry["ip"], port=entry["port"])
                for entry in found[:MAX_ADDRESSES]
            ),
            namespaces=tuple(transceivers.get("namespaces") or ()) or (metadata["namespace"],),
            selector=selector,
        )
    except ValidationError as error:
        raise RemoteError("address", describe(error)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise RemoteError("shape", f"this is no RelayPool: {type(error).__name__} {error}") from None
