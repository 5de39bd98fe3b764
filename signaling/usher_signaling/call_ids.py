"""Call ids: sealed, so that any replica finds a call's owner without a store and nobody else can (design D17).

`rtc_` + sealed(cluster 2 | pod 4 | worker 1 | session id 8 | tenant 8), network order. The tenant is the first 8 bytes
of SHA-256 of its name: enough to keep tenants apart, and all ids have one length.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from usher_core.errors import RemoteError
from usher_core.ids import Route
from usher_core.sealed import Sealer

PREFIX = "rtc_"
_CONTENT = struct.Struct("!HIB8s8s")


@dataclass(frozen=True, slots=True)
class CallId:
    """Where a call is. `session_id` is 16 hex digits."""

    route: Route
    session_id: str
    tenant: str


def seal_call_id(sealer: Sealer, call: CallId, now: float) -> str:
    """Return the id that clients see, the same one each time while a seal key lasts. `now` is in Unix seconds."""
    route = call.route
    session = bytes.fromhex(call.session_id)
    content = _CONTENT.pack(route.cluster, route.pod, route.worker, session, _tenant_hash(call.tenant))
    return sealer.seal(PREFIX, content, sealer.nonce_of(PREFIX, content, now), now)


def open_call_id(sealer: Sealer, text: str, tenant: str) -> CallId:
    """Return where the call is.

    Raises RemoteError `call_id` when we did not make the id, or made it for another tenant. Nothing tells
    the two apart: not the error, and not a question to a transceiver, since none is asked.
    """
    try:
        content = sealer.open(PREFIX, text)
    except RemoteError:
        raise RemoteError("call_id", "this is no call id of ours") from None
    cluster, pod, worker, session, owner = _CONTENT.unpack(content)
    if not hmac.compare_digest(owner, _tenant_hash(tenant)):
        raise RemoteError("call_id", "this is no call id of ours")
    return CallId(Route(cluster, pod, worker), session.hex(), tenant)


def _tenant_hash(tenant: str) -> bytes:
    return hashlib.sha256(tenant.encode()).digest()[:8]
