"""One mapping as Redis holds it: client address and listener → route (docs/wire.md section 9).

    name    usher:flow: LISTENER : PORT : ADDRESS        hex, 4 + 4 + 32 digits
    value   version 1 | key id 1 | expiry 4 | route 7 | MAC 16

The MAC is HMAC-SHA-256, cut to 16 bytes, over a label, the path key and all of the value before it. So whoever writes
to Redis can neither make a mapping, nor give one client's to another, nor keep one alive; all that is left is to put
back an older value of the same client before its expiry, and then the transceiver says that it does not know him.

No I/O, no clock: `unix` is Unix seconds.
"""

from __future__ import annotations

import hmac
import struct
from binascii import unhexlify

from usher_core.errors import LocalError, RemoteError
from usher_core.keys import KeyFile, StoreKey, index_by_id, newest_active

PREFIX = b"usher:flow:"
VERSION = 1
LIFE = 60
"""Seconds for which a mapping counts after it was last written: two of its refreshes."""
CLOCKS_DIFFER = 60
"""Seconds by which the writer's clock may be ahead; as for hop datagrams."""
MAC_LENGTH = 16
_HEAD = struct.Struct("!BBI")
_ROUTE_LENGTH = 7
VALUE_LENGTH = _HEAD.size + _ROUTE_LENGTH + MAC_LENGTH
_LABEL = b"usher mapping\0"
_NAME_LENGTH = len(PREFIX) + 4 + 1 + 4 + 1 + 32


class Mappings:
    """Makes and opens mappings with the store keys of a key file. Raises LocalError when it has none."""

    def __init__(self, file: KeyFile) -> None:
        self._keys: dict[int, StoreKey] = index_by_id(file.store)
        if not self._keys:
            raise LocalError("Redis needs a store key in the relay's key file", "make files with `usher keys new`")

    def seal(self, path_key: bytes, route: bytes, unix: float) -> bytes | None:
        """Return the value for a client's `route` (7 bytes), or None while no store key is active."""
        key = newest_active(self._keys.values(), unix)
        if key is None:
            return None
        head = _HEAD.pack(VERSION, key.id, int(unix) + LIFE) + route
        return head + _mac(key, path_key, head)

    def open(self, path_key: bytes, value: bytes, unix: float) -> bytes:
        """Return the route of a client's value.

        Raises RemoteError: `mapping_length`, `mapping_version`, `mapping_key` (we do not hold it), `mapping_mac`,
        `mapping_expired`, `mapping_far` (its expiry is further ahead than any relay writes).
        """
        if len(value) != VALUE_LENGTH:
            raise RemoteError("mapping_length", f"{VALUE_LENGTH} bytes are expected, not {len(value)}")
        version, key_id, expiry = _HEAD.unpack_from(value)
        if version != VERSION:
            raise RemoteError("mapping_version", f"version {VERSION} is expected, not {version}")
        key = self._keys.get(key_id)
        if key is None:
            raise RemoteError("mapping_key", f"no store key has the id {key_id}")
        head, mac = value[:-MAC_LENGTH], value[-MAC_LENGTH:]
        if not hmac.compare_digest(_mac(key, path_key, head), mac):
            raise RemoteError("mapping_mac", "it was not made by a relay of this fleet for this client")
        if expiry <= unix:
            raise RemoteError("mapping_expired", "its time is over")
        if expiry > unix + LIFE + CLOCKS_DIFFER:
            raise RemoteError("mapping_far", "its time ends too far ahead: clocks differ")
        return head[_HEAD.size :]


def name_of(path_key: bytes) -> bytes:
    """Return the name under which Redis holds a client's mapping."""
    text = path_key.hex().encode()
    return b"%s%s:%s:%s" % (PREFIX, text[:4], text[4:8], text[8:])


def path_key_of(name: bytes) -> bytes | None:
    """Return the path key that a name stands for, or None when it is no name of ours."""
    if len(name) != _NAME_LENGTH or not name.startswith(PREFIX):
        return None
    try:
        path_key = unhexlify(name[len(PREFIX) :].replace(b":", b""))
    except ValueError:
        return None
    # What has one more spelling (upper case, colons elsewhere) would be one more entry of the same client.
    return path_key if name_of(path_key) == name else None


def names_of_listener(listener: int) -> bytes:
    """Return the pattern of all names of a listener."""
    return b"%s%04x:*" % (PREFIX, listener)


def _mac(key: StoreKey, path_key: bytes, head: bytes) -> bytes:
    return hmac.digest(key.key, _LABEL + path_key + head, "sha256")[:MAC_LENGTH]
