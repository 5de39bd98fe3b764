"""Sealed texts: call ids and ephemeral secrets that any signaling replica can open without a store (design D17).

A sealed text is `prefix` + base64url without padding of::

    seal key id 1 | nonce 12 | AES-256-GCM of the content | tag 16

with the prefix as associated data, so that one kind can't be passed off as another.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import re
from collections.abc import Iterable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from usher_core.errors import LocalError, RemoteError
from usher_core.keys import KeyState, SealKey, index_by_id, newest_active

NONCE_LENGTH = 12
TAG_LENGTH = 16
MAX_SEALED = 65_536
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")


class Sealer:
    """Seals and opens texts under the seal keys of a key file.

    Args:
        keys: those of our own file.
        others: keys that open only, such as those of other installations; their ids may be those of ours, too.

    Retired keys of either open nothing.

    Raises LocalError when two of our own that are not retired share an id.
    """

    def __init__(self, keys: Iterable[SealKey], others: Iterable[SealKey] = ()) -> None:
        self._keys = index_by_id(keys)
        self._ciphers: dict[int, list[AESGCM]] = {}
        for key in (*self._keys.values(), *(key for key in others if key.state is not KeyState.RETIRED)):
            self._ciphers.setdefault(key.id, []).append(AESGCM(key.key))

    def seal(self, prefix: str, content: bytes, nonce: bytes, now: float) -> str:
        """Return the sealed text of `content`; `nonce` has 12 random bytes, `now` is in Unix seconds.

        Raises LocalError when no seal key is active.
        """
        key = self._active(now)
        sealed = bytes((key.id,)) + nonce
        sealed += self._ciphers[key.id][0].encrypt(nonce, content, prefix.encode("ascii"))
        return prefix + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")

    def nonce_of(self, prefix: str, content: bytes, now: float) -> bytes:
        """Return a nonce that follows from the content alone: so a thing has one text however often it is sealed.

        Nobody without the seal key can tell it from a random one. Two contents never share one in practice: that takes
        2^48 of them under one key. With the next seal key a content gets another text.

        Raises LocalError when no seal key is active.
        """
        key = self._active(now)
        # A key of its own, so that no output here is ever one of AES under the seal key.
        nonce_key = hmac.digest(key.key, b"usher nonce", hashlib.sha256)
        return hmac.digest(nonce_key, prefix.encode("ascii") + content, hashlib.sha256)[:NONCE_LENGTH]

    def open(self, prefix: str, text: str) -> bytes:
        """Return the content of a sealed text. Raises RemoteError `sealed` for anything that we did not seal."""
        body = text.removeprefix(prefix)
        if not text.startswith(prefix) or len(text) > MAX_SEALED or not _BASE64URL.fullmatch(body):
            raise RemoteError("sealed", f"this is no sealed text that starts with {prefix!r}")
        try:
            raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        except binascii.Error:
            raise RemoteError("sealed", "this is no base64url") from None
        # One content has one text: other spellings of the last character are refused.
        if base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii") != body:
            raise RemoteError("sealed", "the spare bits of the last character are not zero")
        if len(raw) < 1 + NONCE_LENGTH + TAG_LENGTH or raw[0] not in self._ciphers:
            raise RemoteError("sealed", "no key of ours sealed this text")
        nonce, box = raw[1 : 1 + NONCE_LENGTH], raw[1 + NONCE_LENGTH :]
        for cipher in self._ciphers[raw[0]]:
            with contextlib.suppress(InvalidTag):
                return cipher.decrypt(nonce, box, prefix.encode("ascii"))
        raise RemoteError("sealed", "no key of ours sealed this text")

    def _active(self, now: float) -> SealKey:
        key = newest_active(self._keys.values(), now)
        if key is None:
            raise LocalError("no seal key is active", "add one with `usher keys new`")
        return key
