"""API keys: which tenant a key belongs to.

The file has one key a line: `name:key`, or `key` alone. Blank lines and lines that start with `#` do not count.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable

from usher_core.errors import LocalError

DEFAULT_TENANT = "default"
SECRET_PREFIX = "ek_"
MAX_KEYS = 100_000
MAX_KEY_LENGTH = 512

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[!-9;-~]+")  # printable ASCII without the colon, which ends a name


class ApiKeys:
    """Keys by their HMAC under a key that is drawn at the start.

    So the time that a look-up takes says nothing about a key, and no key is kept in memory. Several keys may name
    one tenant: that is how a key is replaced.
    """

    def __init__(self, keys: Iterable[tuple[str, str]] = ()) -> None:
        self._blind = secrets.token_bytes(32)
        self._tenants = {self._digest(key): tenant for tenant, key in keys}

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._tenants)

    def tenant(self, key: str) -> str | None:
        """Return whose key it is, or None."""
        return self._tenants.get(self._digest(key))

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._blind, key.encode("utf-8", "surrogateescape"), hashlib.sha256)


def parse_api_keys(text: str) -> ApiKeys:
    """Parse the file. Raises LocalError that names the line and never quotes it."""
    pairs: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, key = line.partition(":")
        if not colon:
            name, key = DEFAULT_TENANT, line
        if not _NAME.fullmatch(name):
            raise LocalError(f"line {number} of the API keys: a name has up to 64 of A-Z a-z 0-9 . _ -")
        check_api_key(key, f"line {number} of the API keys")
        if pairs.setdefault(key, name) != name:
            raise LocalError(f"line {number} of the API keys: this key already has another name")
        if len(pairs) > MAX_KEYS:
            raise LocalError(f"there are more than {MAX_KEYS} API keys")
    if not pairs:
        raise LocalError("the file of API keys has no key in it", "write one `name:key` a line")
    return ApiKeys((name, key) for key, name in pairs.items())


def check_api_key(key: str, where: str) -> None:
    """Check that a key can travel in a header. Raises LocalError that does not quote it."""
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY_LENGTH:
        raise LocalError(f"{where}: a key has 1 to {MAX_KEY_LENGTH} printable ASCII characters and no colon")
    if key.startswith(SECRET_PREFIX):
        raise LocalError(f"{where}: {SECRET_PREFIX} starts ephemeral keys; choose another beginning")
