"""Binding requests as clients make them, for tests of the ICE agent and of what stands around it."""

from __future__ import annotations

import itertools

from usher_core import stun
from usher_core.ids import ClientPath, pack_address
from usher_core.stun import Attribute, StunClass, StunMessage
from usher_transceiver.ice import Generation
from usher_transceiver.paths import Via

RELAY_A = Via(("10.0.0.1", 3478))
RELAY_B = Via(("10.0.0.2", 3478))
_IDS = itertools.count(1)


def path(port: int = 1000, host: str = "198.51.100.7", listener: int = 1) -> ClientPath:
    return ClientPath(pack_address(host), port, listener)


def generation(number: int = 0, *remotes: bytes) -> Generation:
    return Generation(b"ours%019d" % number, b"password-%023d" % number, remotes or (b"theirs",))


def new_id() -> bytes:
    return next(_IDS).to_bytes(12)


def check_bytes(
    of: Generation,
    *,
    nominate: bool = False,
    remote: bytes | None = None,
    password: bytes | None = None,
    transaction: bytes | None = None,
    extra: tuple[tuple[int, bytes], ...] = (),
    role: Attribute = Attribute.ICE_CONTROLLING,
) -> bytes:
    attributes: list[tuple[int, bytes]] = [
        (Attribute.PRIORITY, bytes((110, 0, 1, 255))),
        (role, bytes(8)),
        (Attribute.USERNAME, of.ufrag + b":" + (remote or of.remote_ufrags[0])),
        *extra,
    ]
    if nominate:
        attributes.append((Attribute.USE_CANDIDATE, b""))
    return stun.build(StunClass.REQUEST, transaction or new_id(), attributes, password or of.password)


def check(of: Generation, **options: object) -> StunMessage:
    return stun.parse(check_bytes(of, **options))  # type: ignore[arg-type]
