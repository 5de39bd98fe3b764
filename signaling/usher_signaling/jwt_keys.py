"""JWT bearers (RFC 7519) of an identity provider: checked by the public keys of a JWKS file (RFC 7517).

Rules (RFC 8725, best current practices):
* Algorithms are ours to name: RS256, ES256, EdDSA, and of these only what the settings allow. No `none`, no HMAC.
* A key works with the one algorithm that it is made for, whatever the token's header says (section 3.1).
* The key is one of the file: headers that bring or point to a key (`jwk`, `jku`, `x5u`, `x5c`) are not looked at.
* `iss`, `aud` and `exp` have to be there and right; `nbf` and `iat`, if there, too, within the leeway.
* The tenant stands in a claim, and is a name as API keys have it. One name is one tenant, however a caller came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from usher_core.errors import LocalError, RemoteError

ALGORITHMS = ("RS256", "ES256", "EdDSA")
MAX_TOKEN_LENGTH = 8 * 1024
MAX_KEYS = 100
MIN_RSA_BITS = 2048

_ALGORITHM_OF = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
"""By `kty` and `crv`: the one algorithm that a key is used with."""
_NEW_NAME = {"EdDSA": "Ed25519"}  # RFC 9864 renames it, and issuers may say so of a key already
_TENANT = re.compile(r"[ -~]{1,64}")  # what the internal API carries, and a log shows as it is
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")  # RFC 7515 section 7.1


@dataclass(frozen=True, slots=True)
class JwtRules:
    """What a token has to say.

    Args:
        issuer: the value of `iss`.
        audience: what has to be in `aud`.
        algorithms: allowed ones, of `ALGORITHMS`.
        leeway: seconds that clocks may differ.
        tenant_claim: where the tenant's name stands.
    """

    issuer: str
    audience: str
    algorithms: tuple[str, ...] = ALGORITHMS
    leeway: float = 30.0
    tenant_claim: str = "sub"


@dataclass(frozen=True, slots=True)
class Jwks:
    """The public keys of an issuer: (key id or None, algorithm, key)."""

    keys: tuple[tuple[str | None, str, Any], ...]

    def find(self, key_id: str | None, algorithm: str) -> Any:
        """Return the key of a token. Raises RemoteError `unknown_key`.

        A token without a key id is taken where only one key is for its algorithm.
        """
        fitting = [key for known, made_for, key in self.keys if made_for == algorithm and key_id in (None, known)]
        if len(fitting) != 1:
            raise RemoteError("unknown_key", "the token is signed by no key that is known here")
        return fitting[0]


class JwtVerifier:
    """Tells the tenant of a token.

    Args:
        keys: the issuer's keys now.
        rules: what a token has to say.
        clock: Unix seconds.
    """

    def __init__(self, keys: Callable[[], Jwks], rules: JwtRules, clock: Callable[[], float]) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock

    def tenant(self, token: str, *, expired_too: bool = False) -> str:
        """Return whose token it is. `expired_too` admits one that has expired.

        Raises RemoteError: `expired`, or another reason for a token that never was good. The message is for the
        caller and tells nothing that a caller does not know.
        """
        rules, now = self._rules, self._clock()
        claims = self._claims(token)
        if now + rules.leeway < max(_time(claims, "nbf", 0), _time(claims, "iat", 0)):
            raise RemoteError("not_yet", "the token is not valid yet (nbf, iat)")
        tenant = claims.get(rules.tenant_claim)
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            raise RemoteError("tenant", f"the claim {rules.tenant_claim} is to be 1 to 64 printable ASCII characters")
        if _time(claims, "exp") + rules.leeway <= now and not expired_too:
            raise RemoteError("expired", "the token has expired")
        return tenant

    def _claims(self, token: str) -> dict[str, Any]:
        """The claims of a token with a good signature, issuer and audience; its times are not looked at."""
        if len(token) > MAX_TOKEN_LENGTH or not _TOKEN.fullmatch(token):
            raise RemoteError("malformed", f"a token has three parts and at most {MAX_TOKEN_LENGTH} characters")
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in self._rules.algorithms:
                raise RemoteError("algorithm", f"the token's alg is to be one of {', '.join(self._rules.algorithms)}")
            key = self._keys().find(key_id, algorithm)
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=self._rules.issuer,
                audience=self._rules.audience,
                # The program has one clock, so the times are compared here and not in the library.
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_sub": False,
                },
            )
        except jwt.InvalidIssuerError:
            raise RemoteError("issuer", "the token is of another issuer") from None
        except jwt.InvalidAudienceError:
            raise RemoteError("audience", "the token is for another audience") from None
        except jwt.MissingRequiredClaimError as error:
            raise RemoteError("missing_claim", f"the token has no {error.claim}") from None
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise RemoteError("signature", "the token can't be read, or its signature does not hold") from None
        return claims


def parse_jwks(text: str) -> Jwks:
    """Parse a JWKS file. Keys for encryption and of kinds that are not used here are left out.

    Raises LocalError, also for secret or private keys: those have no place in this file.
    """
    try:
        entries = json.loads(text)["keys"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise LocalError("the JWKS file is no JSON object with keys (RFC 7517 section 5)") from None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise LocalError(f"the JWKS file has a list of at most {MAX_KEYS} keys")
    keys = [key for number, entry in enumerate(entries, start=1) if (key := _parse_key(entry, number)) is not None]
    if not keys:
        raise LocalError(
            "the JWKS file has no key to check a signature with", f"keys for {', '.join(ALGORITHMS)} count"
        )
    names = [(key_id, algorithm) for key_id, algorithm, _ in keys if key_id is not None]
    if len(names) != len(set(names)):
        raise LocalError("two keys of the JWKS file have the same kid")
    return Jwks(tuple(keys))


def _parse_key(entry: Any, number: int) -> tuple[str | None, str, Any] | None:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name, ""), str) for name in ("kty", "crv", "kid")):
        raise LocalError(f"key {number} of the JWKS file is no JSON object with texts for kty, crv and kid")
    if entry.get("kty") == "oct" or "d" in entry:
        raise LocalError(f"key {number} of the JWKS file is secret or private", "write only public keys into it")
    algorithm = _ALGORITHM_OF.get((entry.get("kty", ""), entry.get("crv")))
    verifies = entry.get("use", "sig") == "sig" and "verify" in entry.get("key_ops", ("verify",))
    # Left out: keys for encryption, and those bound to what we do not use, such as RS512 or the curve P-384.
    if algorithm is None or not verifies or entry.get("alg", algorithm) not in (algorithm, _NEW_NAME.get(algorithm)):
        return None
    try:
        key = jwt.PyJWK(entry, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        raise LocalError(f"key {number} of the JWKS file can't be read") from None
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise LocalError(f"key {number} of the JWKS file has fewer than {MIN_RSA_BITS} bits")
    return entry.get("kid"), algorithm, key


def _time(claims: dict[str, Any], name: str, default: float | None = None) -> float:
    """A NumericDate (RFC 7519 section 2)."""
    value = claims.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise RemoteError("time", f"the claim {name} is to be a time in seconds")
    return value
