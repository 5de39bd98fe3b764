"""Who is calling: an API key, an ephemeral key, a JWT, or this machine.

Rules:
* An API key may do everything with its tenant's calls.
* An ephemeral key places calls until it expires. It may end and restart its tenant's calls also afterwards: a call
  outlives the key that placed it, and a call id can't be guessed.
* A JWT of the issuer that the settings name may do what an ephemeral key may.
* Without keys (loopback only) every caller is the tenant `local`. An ephemeral key of ours counts even then, so that
  its session is used; any other Authorization is not looked at.
* Each caller has a policy of events: that of its API key, or the one sealed into its ephemeral key. Ephemeral keys and
  JWTs, which pages hold, are bound by the one of the settings as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from usher_core.errors import RemoteError
from usher_core.event_policy import OPEN, EventPolicy
from usher_core.sealed import Sealer
from usher_signaling.api_keys import SECRET_PREFIX, ApiKeys
from usher_signaling.client_secrets import ClientSecret, open_secret
from usher_signaling.errors import ApiError
from usher_signaling.jwt_keys import JwtVerifier

LOCAL_TENANT = "local"


class CallerKind(StrEnum):
    """By what a caller was recognised."""

    API_KEY = "api_key"
    CLIENT_SECRET = "client_secret"
    JWT = "jwt"
    KEYLESS = "keyless"


@dataclass(frozen=True, slots=True)
class EphemeralKey:
    """An ephemeral key as it was sent. `expires_at` is in Unix seconds."""

    text: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller who may go on.

    Args:
        tenant: whose calls they are.
        kind: by what the caller was recognised.
        session: the one sealed into an ephemeral key.
        metadata: the same.
        secret: the ephemeral key itself, by which `--secrets-once` knows it again.
        policy: what the caller may do with events.
    """

    tenant: str
    kind: CallerKind
    session: dict[str, Any] = field(default_factory=dict, repr=False)
    metadata: dict[str, str] = field(default_factory=dict, repr=False)
    secret: EphemeralKey | None = field(default=None, repr=False)
    policy: EventPolicy = OPEN

    @property
    def is_client(self) -> bool:
        """Whether it is by an ephemeral key or a JWT: those are for pages, which no tenant's server vouches for."""
        return self.kind in (CallerKind.CLIENT_SECRET, CallerKind.JWT)

    def require_api_key(self) -> None:
        """Refuse an ephemeral key and a JWT. Raises ApiError 403."""
        if self.is_client:
            raise ApiError(403, "api_key_required", "An ephemeral key or a JWT may not do this: use an API key.")


class Authenticator:
    """Recognises callers by their Authorization header.

    Args:
        keys: the API keys now, or None where none are asked for.
        sealer: the sealer now.
        clock: Unix seconds.
        jwt: checks JWTs, None where none are taken.
        client_policy: binds all ephemeral keys and JWTs.
    """

    def __init__(
        self,
        keys: Callable[[], ApiKeys] | None,
        sealer: Callable[[], Sealer],
        clock: Callable[[], float],
        jwt: JwtVerifier | None = None,
        client_policy: EventPolicy = OPEN,
    ) -> None:
        self._keys = keys
        self._client_policy = client_policy
        self._jwt = jwt
        self._sealer = sealer
        self._clock = clock

    def authenticate(self, authorization: str | None, *, expired_too: bool = False) -> Caller:
        """Return the caller. `expired_too` admits an ephemeral key or JWT that has expired. Raises ApiError 401."""
        token = _bearer(authorization)
        secret = self._secret(token)
        if secret is not None:
            if secret.expires_at <= self._clock() and not expired_too:
                raise _unauthorised("client_secret_expired", "This ephemeral key has expired. Ask for a new one.")
            assert token is not None
            key = EphemeralKey(token, secret.expires_at)
            policy = secret.policy.narrowed(self._client_policy)
            return Caller(secret.tenant, CallerKind.CLIENT_SECRET, secret.session, secret.metadata, key, policy)
        if self._keys is None:
            return Caller(LOCAL_TENANT, CallerKind.KEYLESS)
        if token is None:
            raise _unauthorised(
                "invalid_api_key", "You sent no API key. Put one into the header: Authorization: Bearer YOUR_KEY."
            )
        known = self._keys().find(token)
        if known is not None:
            return Caller(known.tenant, CallerKind.API_KEY, policy=known.policy)
        if self._jwt is not None and token.count(".") == 2 and not token.startswith(SECRET_PREFIX):
            return Caller(_jwt_tenant(self._jwt, token, expired_too), CallerKind.JWT, policy=self._client_policy)
        raise _unauthorised("invalid_api_key", "This API key is not known here. Check it for missing characters.")

    def _secret(self, token: str | None) -> ClientSecret | None:
        if token is None or not token.startswith(SECRET_PREFIX):
            return None
        try:
            return open_secret(self._sealer(), token)
        except RemoteError:
            return None


def secret_used() -> ApiError:
    """401 for an ephemeral key that has placed its one call (`--secrets-once`)."""
    return _unauthorised("client_secret_used", "This ephemeral key has placed its one call. Ask for a new one.")


def _jwt_tenant(verifier: JwtVerifier, token: str, expired_too: bool) -> str:
    try:
        return verifier.tenant(token, expired_too=expired_too)
    except RemoteError as error:
        if error.reason == "expired":
            raise _unauthorised("token_expired", "This JWT has expired. Ask for a new one.") from None
        raise _unauthorised("invalid_token", f"This JWT is not accepted: {error.message}.") from None


def _bearer(authorization: str | None) -> str | None:
    """The token of a Bearer header (RFC 6750 section 2.1), None when there is none."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _unauthorised(code: str, message: str) -> ApiError:
    return ApiError(401, code, message, headers={"WWW-Authenticate": 'Bearer realm="usher"'})
