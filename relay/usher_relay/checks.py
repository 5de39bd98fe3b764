"""Binding requests as relays judge them: whose ufrag it is, and whether its password made the integrity."""

from __future__ import annotations

from usher_core.errors import RemoteError
from usher_core.keys import IceKeyRing, OpenedUfrag
from usher_core.stun import StunMessage
from usher_relay.counters import Drop

_UNKNOWN_TO_KEYS = frozenset(("ufrag_letter", "ufrag_check"))


def open_check(ring: IceKeyRing, check: StunMessage) -> OpenedUfrag | Drop:
    """Return what the ufrag of a Binding request with USERNAME says, or why the request is dropped.

    Where the ring has no password key for it, its integrity is not tried and `password` is None.
    """
    ufrag = check.server_ufrag
    if ufrag is None:
        return Drop.UFRAG_SHAPE
    try:
        opened = ring.open(ufrag)
    except RemoteError as error:
        return Drop.UFRAG_UNKNOWN if error.reason in _UNKNOWN_TO_KEYS else Drop.UFRAG_SHAPE
    if opened.password is not None and not check.verify_integrity(opened.password):
        return Drop.INTEGRITY
    return opened
