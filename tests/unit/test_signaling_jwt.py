"""JWT bearers: what is taken, and the known attacks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from usher_core.errors import LocalError, RemoteError
from usher_signaling.jwt_keys import JwtRules, JwtVerifier, parse_jwks

NOW = 1_800_000_000.0
ISSUER, AUDIENCE = "https://id.example.org/", "usher"
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW + 60, "sub": "acme"}


def public_jwk(algorithm: str, key: Any = None, **more: Any) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk((key or KEYS[algorithm]).public_key(), as_dict=True)
    return {"kid": algorithm, **made, **more}


def jwks(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": keys or [public_jwk(algorithm) for algorithm in KEYS]})


def verifier(text: str = "", now: float = NOW, **rules: Any) -> JwtVerifier:
    parsed = parse_jwks(text or jwks())
    return JwtVerifier(lambda: parsed, JwtRules(ISSUER, AUDIENCE, **rules), lambda: now)


def token(algorithm: str = "ES256", headers: dict[str, Any] | None = None, **claims: Any) -> str:
    said = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    # Below the checks that the library makes for issuers: attackers make none.
    return jwt.PyJWS().encode(
        json.dumps(said).encode(), KEYS[algorithm], algorithm, {"kid": algorithm, **(headers or {})}
    )


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def refused(text: str, **rules: Any) -> str:
    with pytest.raises(RemoteError) as caught:
        verifier(**rules).tenant(text)
    assert text not in caught.value.message
    return caught.value.reason


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_of_each_algorithm_names_its_tenant(algorithm: str) -> None:
    assert verifier().tenant(token(algorithm)) == "acme"
    assert verifier().tenant(token(algorithm, aud=["other", AUDIENCE])) == "acme"
    assert verifier(tenant_claim="org").tenant(token(algorithm, sub=None, org="org 7|x@y")) == "org 7|x@y"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://evil.example/"}, "issuer"),
        ({"iss": ISSUER.rstrip("/")}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"iss": None}, "missing_claim"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "missing_claim"),
        ({"exp": None}, "missing_claim"),
        ({"exp": str(NOW + 60)}, "time"),
        ({"exp": True}, "time"),
        ({"exp": 1e300}, "time"),
        ({"nbf": "soon"}, "time"),
        ({"nbf": NOW + 31}, "not_yet"),
        ({"iat": NOW + 31}, "not_yet"),
        ({"exp": NOW - 30}, "expired"),
        ({"sub": None}, "tenant"),
        ({"sub": ""}, "tenant"),
        ({"sub": "a" * 65}, "tenant"),
        ({"sub": "a\nb"}, "tenant"),
        ({"sub": 7}, "tenant"),
        ({"sub": ["acme"]}, "tenant"),
    ],
)
def test_wrong_claims_are_refused(claims: dict[str, Any], reason: str) -> None:
    assert refused(token(**claims)) == reason


def test_times_are_within_the_leeway() -> None:
    for within in (token(exp=NOW - 29.9), token(nbf=NOW + 30), token(iat=NOW + 30)):
        assert verifier().tenant(within) == "acme"
    assert refused(token(exp=NOW), leeway=0.0) == "expired"


def test_an_expired_token_counts_only_where_that_is_asked_for() -> None:
    old = token(exp=NOW - 10_000)
    assert verifier().tenant(old, expired_too=True) == "acme"
    with pytest.raises(RemoteError, match="issuer"):
        verifier().tenant(token(exp=NOW - 10_000, iss="x"), expired_too=True)


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", ""])
def test_a_token_without_signature_is_refused(name: str) -> None:
    for signature in ("", part(b"x" * 64)):
        assert refused(f"{part({'alg': name, 'typ': 'JWT'})}.{part(CLAIMS)}.{signature}") in ("algorithm", "malformed")


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_public_key_is_no_hmac_secret(algorithm: str) -> None:
    """The attack on libraries that take the algorithm from the token: HS256 with the public key, in any form."""
    public = KEYS[algorithm].public_key()
    forms = [
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
        json.dumps(public_jwk(algorithm)).encode(),
    ]
    for secret in forms:
        for name in ("HS256", "HS512", algorithm):
            signed = f"{part({'alg': name, 'kid': algorithm})}.{part(CLAIMS)}"
            tag = hmac.digest(secret, signed.encode(), hashlib.sha512 if name == "HS512" else hashlib.sha256)
            assert refused(f"{signed}.{part(tag)}") in ("algorithm", "signature")


def test_a_key_works_with_its_own_algorithm_only() -> None:
    assert refused(token("ES256", {"kid": "RS256"})) == "unknown_key"
    other = ec.generate_private_key(ec.SECP256R1())
    forged = jwt.encode(CLAIMS, other, "ES256", {"kid": "ES256"})
    assert refused(forged) == "signature"


def test_only_allowed_algorithms_count() -> None:
    assert verifier(algorithms=("RS256",)).tenant(token("RS256")) == "acme"
    assert refused(token("ES256"), algorithms=("RS256",)) == "algorithm"
    assert refused(jwt.encode(CLAIMS, KEYS["RS256"], "RS512", {"kid": "RS256"})) == "algorithm"
    assert refused(jwt.encode(CLAIMS, KEYS["RS256"], "PS256", {"kid": "RS256"})) == "algorithm"


def test_keys_that_a_token_brings_or_points_to_are_not_looked_at() -> None:
    own = ec.generate_private_key(ec.SECP256R1())
    for headers in (
        {"jwk": public_jwk("ES256", own)},
        {"jku": "https://evil.example/jwks"},
        {"x5u": "https://evil.example/cert"},
    ):
        assert refused(jwt.encode(CLAIMS, own, "ES256", {"kid": "ES256", **headers})) == "signature"
        assert refused(jwt.encode(CLAIMS, own, "ES256", {"kid": "evil", **headers})) == "unknown_key"


def test_extensions_that_must_be_understood_are_refused() -> None:
    assert refused(token("ES256", {"crit": ["x"], "x": 1})) == "signature"


def test_without_a_key_id_the_only_key_of_the_algorithm_counts() -> None:
    bare = jwt.encode(CLAIMS, KEYS["ES256"], "ES256")
    assert verifier().tenant(bare) == "acme"
    second = public_jwk("ES256", ec.generate_private_key(ec.SECP256R1()), kid="second")
    with pytest.raises(RemoteError, match="no key"):
        verifier(jwks(public_jwk("ES256"), second)).tenant(bare)


@pytest.mark.parametrize(
    "text",
    [
        "a.b.c",
        "..",
        "a.b",
        "a.b.c.d",
        "é.b.c",
        "a b.c.d",
        f"{part([])}.{part({})}.x",
        f"{part({'alg': 'ES256', 'kid': 7})}.{part(CLAIMS)}.{part(b'x' * 64)}",
        f"{part({'alg': ['ES256']})}.{part(CLAIMS)}.{part(b'x' * 64)}",
        f"{part({'alg': 'ES256', 'kid': {}})}.{part(CLAIMS)}.{part(b'x' * 64)}",
        f"{part(b'[' * 3000)}.{part(CLAIMS)}.{part(b'x' * 64)}",
        "a" * 9000 + ".b.c",
    ],
)
def test_what_is_no_token_is_refused(text: str) -> None:
    assert refused(text) in ("malformed", "signature", "algorithm", "unknown_key")


def test_any_changed_character_is_noticed() -> None:
    good = token()
    for at in range(0, len(good), 7):
        if good[at] != ".":
            changed = good[:at] + ("A" if good[at] != "A" else "B") + good[at + 1 :]
            refused(changed)


def test_keys_of_other_uses_are_left_out() -> None:
    others = [
        public_jwk("RS256", kid="a", use="enc"),
        public_jwk("RS256", kid="b", alg="RSA-OAEP"),
        public_jwk("ES256", kid="c", key_ops=["encrypt"]),
        {"kty": "EC", "crv": "P-384", "kid": "d", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X25519", "kid": "e", "x": "AA"},
        {"kty": "new", "kid": "f"},
    ]
    assert [key[:2] for key in parse_jwks(jwks(*others, public_jwk("EdDSA", alg="Ed25519"))).keys] == [
        ("EdDSA", "EdDSA")
    ]
    with pytest.raises(LocalError, match="no key to check"):
        parse_jwks(jwks(*others))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "no JSON object"),
        ("[]", "no JSON object"),
        ('{"keys": {}}', "a list"),
        ('{"keys": []}', "no key to check"),
        ('{"keys": [7]}', "key 1"),
        ('{"keys": [{"kty": 7}]}', "key 1"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "secret or private"),
        ('{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}', "can't be read"),
        ('{"keys": [{"kty": "RSA"}]}', "can't be read"),
    ],
)
def test_a_wrong_file_of_keys_is_an_error(text: str, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint) as caught:
        parse_jwks(text)
    assert "c2VjcmV0" not in str(caught.value)


def test_private_weak_and_ambiguous_keys_are_an_error() -> None:
    private = jwt.get_algorithm_by_name("ES256").to_jwk(KEYS["ES256"], as_dict=True)
    with pytest.raises(LocalError, match="secret or private"):
        parse_jwks(jwks(private))
    with pytest.raises(LocalError, match="fewer than 2048 bits"):
        parse_jwks(jwks(public_jwk("RS256", rsa.generate_private_key(65537, 1024))))
    with pytest.raises(LocalError, match="same kid"):
        parse_jwks(jwks(public_jwk("ES256"), public_jwk("ES256")))
