"""Ephemeral keys `ek_…`: sealed, so that any replica can check one without a store.

One stands for its tenant until it expires and carries the session, the metadata and the policy of events that the
tenant's server chose.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from usher_core.errors import RemoteError
from usher_core.event_policy import OPEN, EventPolicy
from usher_core.sealed import Sealer
from usher_signaling.api_keys import SECRET_PREFIX

MAX_SECRET_LENGTH = 12 * 1024
"""Longest text of a secret: it travels in one header, and proxies allow 16 KiB for all of them."""
MAX_OPENED_LENGTH = 1024 * 1024
MAX_METADATA = 16
MAX_METADATA_NAME = 64
MAX_METADATA_VALUE = 512


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """What an ephemeral key says.

    Args:
        tenant: whose calls it may place.
        expires_at: Unix seconds from which it places no more.
        session: the session configuration, as given.
        metadata: what the tenant's server wants its backend to know of each call.
        policy: what its holder may do with events, never more than the API key that made it.
    """

    tenant: str
    expires_at: int
    session: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    policy: EventPolicy = OPEN


def seal_secret(sealer: Sealer, secret: ClientSecret, nonce: bytes, now: float) -> str:
    """Return the text of an ephemeral key.

    Raises RemoteError `session_too_large` when it would not fit into a header.
    """
    content = {
        "tenant": secret.tenant,
        "expires_at": secret.expires_at,
        "session": secret.session,
        "metadata": secret.metadata,
        "policy": secret.policy.as_json(),
    }
    packed = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 9)
    # Sealed and in base64 it grows by 29 bytes and a third.
    if (len(packed) + 29) * 4 // 3 + len(SECRET_PREFIX) > MAX_SECRET_LENGTH:
        raise RemoteError(
            "session_too_large",
            f"The session does not fit into an ephemeral key of {MAX_SECRET_LENGTH} characters: shorten its "
            "instructions and tools, or send them over the data channel (session.update).",
        )
    return sealer.seal(SECRET_PREFIX, packed, nonce, now)


def open_secret(sealer: Sealer, text: str) -> ClientSecret:
    """Return what an ephemeral key says, expired or not. Raises RemoteError `sealed` for one that we did not make."""
    if len(text) > MAX_SECRET_LENGTH:
        raise RemoteError("sealed", "an ephemeral key is shorter")
    unpacked = zlib.decompressobj().decompress(sealer.open(SECRET_PREFIX, text), MAX_OPENED_LENGTH)
    content = json.loads(unpacked)
    try:
        policy = EventPolicy.model_validate(content.get("policy", {}))
    except ValidationError:
        raise RemoteError("sealed", "another version made this ephemeral key") from None
    metadata = content.get("metadata", {})
    return ClientSecret(content["tenant"], content["expires_at"], content["session"], metadata, policy)


def parse_metadata(value: Any) -> dict[str, str]:
    """Check the `metadata` of a request; None is none. The bounds are those of the Realtime API's metadata objects.

    Raises RemoteError `invalid_metadata`.
    """
    if value is None:
        return {}
    fits = isinstance(value, dict) and len(value) <= MAX_METADATA
    if not fits or not all(
        isinstance(text, str) and len(name) <= MAX_METADATA_NAME and len(text) <= MAX_METADATA_VALUE
        for name, text in value.items()
    ):
        raise RemoteError(
            "invalid_metadata",
            f"metadata is an object of at most {MAX_METADATA} texts of up to {MAX_METADATA_VALUE} characters, "
            f"with names of up to {MAX_METADATA_NAME}.",
        )
    return dict(value)
