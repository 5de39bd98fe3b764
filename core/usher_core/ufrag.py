"""The ICE username fragment that routes the first packet, and the password derived from it (design D1, D2).

A ufrag has 23 ice-chars: one key letter and 22 characters of base64 (alphabet A-Za-z0-9+/, no padding) over one
AES-128 block. The block, in network order::

    cluster 2 | pod 4 | worker 1 | random 5 | check 4 (zero)

Rules:
* The last base64 character has 4 spare bits. They are zero; any other spelling is refused (`ufrag_spelling`), so
  that one session has one ufrag.
* The check value decides which of the keys under one letter made it; a ufrag that no key opens is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from usher_core.errors import LocalError, RemoteError
from usher_core.ids import Route

UFRAG_LENGTH = 23
RANDOM_LENGTH = 5
UFRAG_KEY_LENGTH = 16
PASSWORD_KEY_LENGTH = 32

_BLOCK = struct.Struct("!HIB5s4s")
_CHECK = bytes(4)
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


class UfragCipher:
    """Writes and opens ufrags under one key.

    Args:
        letter: the key letter, A-Z or a-z.
        key: 16 bytes of AES-128.

    ECB is right here: it is one block, and the same plaintext never occurs twice while its session lives.
    """

    def __init__(self, letter: str, key: bytes) -> None:
        if letter not in _LETTERS:
            raise LocalError(f"{letter!r} is no key letter", "use one of A-Z or a-z")
        if len(key) != UFRAG_KEY_LENGTH:
            raise LocalError(f"a ufrag key has {UFRAG_KEY_LENGTH} bytes, not {len(key)}")
        self.letter = letter
        # The name is historic; one block under ECB is the plain block cipher, which is what is wanted.
        cipher = Cipher(algorithms.AES128(key), modes.ECB())  # noqa: S305
        self._encryptor = cipher.encryptor()
        self._decryptor = cipher.decryptor()

    def seal(self, route: Route, random: bytes) -> str:
        """Return the ufrag of `route` with 5 random bytes."""
        if len(random) != RANDOM_LENGTH:
            raise LocalError(f"a ufrag takes {RANDOM_LENGTH} random bytes, not {len(random)}")
        block = self._encryptor.update(_BLOCK.pack(route.cluster, route.pod, route.worker, random, _CHECK))
        return self.letter + base64.b64encode(block)[:22].decode("ascii")

    def open(self, block: bytes) -> Route | None:
        """Return the route in an encrypted block of 16 bytes, or None when this key did not make it."""
        cluster, pod, worker, _, check = _BLOCK.unpack(self._decryptor.update(block))
        if check != _CHECK or cluster == 0:
            return None
        return Route(cluster, pod, worker)


def split_ufrag(ufrag: bytes) -> tuple[str, bytes]:
    """Return the key letter and the encrypted block of a ufrag.

    Raises RemoteError: `ufrag_length`, `ufrag_charset` or `ufrag_spelling` (not the canonical base64 text).
    """
    if len(ufrag) != UFRAG_LENGTH:
        raise RemoteError("ufrag_length", f"a ufrag of ours has {UFRAG_LENGTH} characters, this one {len(ufrag)}")
    letter = chr(ufrag[0])
    if letter not in _LETTERS:
        raise RemoteError("ufrag_charset", "a ufrag of ours starts with a letter")
    try:
        block = base64.b64decode(ufrag[1:] + b"==", validate=True)
    except (binascii.Error, ValueError):
        raise RemoteError("ufrag_charset", "a ufrag of ours is base64 without padding") from None
    if len(block) != _BLOCK.size or base64.b64encode(block)[:22] != ufrag[1:]:
        raise RemoteError("ufrag_spelling", "the spare bits of the last character are zero in a ufrag of ours")
    return letter, block


def ice_password(password_key: bytes, ufrag: bytes) -> bytes:
    """Return the 32 ice-chars of the password: base64 of the first 24 bytes of HMAC-SHA-256(password key, ufrag)."""
    return base64.b64encode(hmac.digest(password_key, ufrag, hashlib.sha256)[:24])
