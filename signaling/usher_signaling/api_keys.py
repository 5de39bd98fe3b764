"""API keys: which tenant a key belongs to, and what the tenant may.

The file has one key a line. Blank lines and lines that start with `#` do not count::

    name:sha256:HEX        the SHA-256 of a key, as `usher keys api` prints it
    name:key               a key in plain text, of 16 characters or more
    key                    the same, of the tenant `default`

After it, limits of the tenant may stand: `rate=5` (requests a second) and `calls=20` (at once), or `none` for no limit;
and a policy of events for this key alone: `policy=browser`, or `allow=`, `deny=` and `private=` with names between
commas (`usher_core.event_policy`).

Why plain SHA-256, without salt, pepper or stretching: those protect secrets that can be guessed. A key of 256 random
bits can't be, and two keys never are alike; a slow hash would only make every request slow. So only keys that
`usher keys api` has made, or others as random, belong into this form.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from usher_core.errors import LocalError, RemoteError
from usher_core.event_policy import CLIENT_EVENTS, OPEN, PRESETS, PRIVATE_FIELDS, EventPolicy, parse_event_policy_text

DEFAULT_TENANT = "default"
SECRET_PREFIX = "ek_"
KEY_PREFIX = "usk_"
"""How keys that we make begin, so that scanners for leaked secrets can know them."""
MAX_KEYS = 100_000
MAX_KEY_LENGTH = 512
MIN_KEY_LENGTH = 16
"""Of a key in the file: a shorter one can be guessed, or is what is left of a file of another form, as `[]`."""
HASH = "sha256"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[!-9;-~]+")  # printable ASCII without the colon, which ends a name
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_RATE = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")
_CALLS = re.compile(r"[0-9]{1,7}")
_POLICY_OPTIONS = ("policy", "allow", "deny", "private")


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What a tenant may. None: no limit.

    Args:
        rate: requests a second.
        calls: calls at once.
    """

    rate: float | None = None
    calls: int | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Whose key it is, and what those who hold it may do with the events of a call."""

    tenant: str
    policy: EventPolicy = OPEN


class ApiKeys:
    """Keys by the HMAC of their SHA-256 under a key that is drawn at the start.

    So the time that a look-up takes says nothing about a key, and no key is kept in memory. Several keys may name
    one tenant: that is how a key is replaced.

    Args:
        keys: (what is known of a key, SHA-256 of the key).
        limits: what stands in the file beside keys, by tenant: values by the names `rate` and `calls`.
    """

    def __init__(
        self,
        keys: Iterable[tuple[ApiKey, bytes]] = (),
        limits: Mapping[str, Mapping[str, float | int | None]] | None = None,
    ) -> None:
        self._blind = secrets.token_bytes(32)
        self._keys = {self._blinded(digest): key for key, digest in keys}
        self._limits = limits or {}

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._keys)

    def find(self, key: str) -> ApiKey | None:
        """Return what is known of a key, or None."""
        return self._keys.get(self._blinded(digest_of(key)))

    def limits(self, tenant: str, default: TenantLimits) -> TenantLimits:
        """Return the limits of a tenant: its own where the file has some, else the default ones."""
        own = self._limits.get(tenant)
        if own is None:
            return default
        rate, calls = own.get("rate", default.rate), own.get("calls", default.calls)
        return TenantLimits(rate, None if calls is None else int(calls))

    def _blinded(self, digest: bytes) -> bytes:
        return hmac.digest(self._blind, digest, hashlib.sha256)


def digest_of(key: str) -> bytes:
    """The SHA-256 of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def new_api_key() -> str:
    """Return a key of 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hashed_line(name: str, key: str) -> str:
    """Return the line that stores a key without having it. Raises LocalError for a wrong name."""
    _check_name(name, "--name")
    return f"{name}:{HASH}:{digest_of(key).hex()}"


def parse_api_keys(text: str) -> ApiKeys:
    """Parse the file. Raises LocalError that names the line and never quotes it."""
    keys: dict[bytes, ApiKey] = {}
    limits: dict[str, dict[str, float | int | None]] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        where = f"line {number} of the API keys"
        entry, *options = line.split()
        name, digest = _parse_entry(entry, where)
        words = [option for option in options if option.partition("=")[0] in _POLICY_OPTIONS]
        key = ApiKey(name, _parse_policy(words, where))
        if (known := keys.setdefault(digest, key)) != key:
            raise LocalError(f"{where}: this key already has another {'name' if known.tenant != name else 'policy'}")
        if len(keys) > MAX_KEYS:
            raise LocalError(f"there are more than {MAX_KEYS} API keys")
        for option in (option for option in options if option not in words):
            limit, value = _parse_option(option, where)
            if limits.setdefault(name, {}).setdefault(limit, value) != value:
                raise LocalError(f"{where}: another line gives this name another {limit}=")
    if not keys:
        raise LocalError("the file of API keys has no key in it", "write one `name:key` a line")
    return ApiKeys(((key, digest) for digest, key in keys.items()), limits)


def check_api_key(key: str, where: str) -> None:
    """Check that a key can travel in a header. Raises LocalError that does not quote it."""
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY_LENGTH:
        raise LocalError(f"{where}: a key has 1 to {MAX_KEY_LENGTH} printable ASCII characters and no colon")
    if key.startswith(SECRET_PREFIX):
        raise LocalError(f"{where}: {SECRET_PREFIX} starts ephemeral keys; choose another beginning")


def _parse_entry(entry: str, where: str) -> tuple[str, bytes]:
    """The name, and the SHA-256 of the key."""
    name, colon, key = entry.partition(":")
    if not colon:
        name, key = DEFAULT_TENANT, entry
    elif name == HASH:
        raise LocalError(f"{where}: a name is expected before {HASH}:", f"write name:{HASH}:HEX")
    _check_name(name, where)
    kind, colon, digest = key.partition(":")
    if colon and kind == HASH:
        if not _DIGEST.fullmatch(digest):
            raise LocalError(f"{where}: {HASH}: is followed by 64 hexadecimal digits", "`usher keys api` makes a line")
        return name, bytes.fromhex(digest)
    check_api_key(key, where)
    if len(key) < MIN_KEY_LENGTH:
        raise LocalError(
            f"{where}: a key in plain text has {MIN_KEY_LENGTH} characters or more", "`usher keys api` makes one"
        )
    return name, digest_of(key)


def _parse_option(option: str, where: str) -> tuple[str, float | int | None]:
    limit, _, value = option.partition("=")
    if limit in ("rate", "calls") and value == "none":
        return limit, None
    if limit == "rate" and _RATE.fullmatch(value) and float(value) > 0:
        return limit, float(value)
    if limit == "calls" and _CALLS.fullmatch(value) and int(value) > 0:
        return limit, int(value)
    raise LocalError(
        f"{where}: after the key only rate=NUMBER and calls=NUMBER may stand, above 0, or none; and policy=, allow=, "
        "deny= and private="
    )


def _parse_policy(words: list[str], where: str) -> EventPolicy:
    try:
        return parse_event_policy_text(" ".join(word.removeprefix("policy=") for word in words))
    except RemoteError:
        # Its message quotes a name, and a line of this file is never quoted.
        raise LocalError(
            f"{where}: its policy of events is expected to be policy={'|'.join(PRESETS)}, or names between commas: "
            f"allow= and deny= of {', '.join(CLIENT_EVENTS)}, private= of {', '.join(PRIVATE_FIELDS)}"
        ) from None


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise LocalError(f"{where}: a name has up to 64 of A-Z a-z 0-9 . _ -")
