"""The key file (version 1) and the key ring a program makes of it (docs/wire.md section 1).

Each program has its own file with only what it may know: a relay `ice`, `hop` and `store`, a transceiver the `ice`
keys of its cluster and its `hop` key, signaling only `seal`.

States: `active` makes and opens, `accepted` only opens (before it becomes active, and after), `retired` does neither.
Of several active keys the one with the latest `not_before` that has passed is used to make.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from usher_core.errors import LocalError, RemoteError, describe
from usher_core.hop import HOP_KEY_LENGTH, HopDatagram, verify
from usher_core.ids import MAX_CLUSTER, Route
from usher_core.ufrag import (
    PASSWORD_KEY_LENGTH,
    UFRAG_KEY_LENGTH,
    UfragCipher,
    ice_password,
    split_ufrag,
)

MAX_KEYS_PER_LETTER = 8
SEAL_KEY_LENGTH = 32
STORE_KEY_LENGTH = 32


class KeyState(StrEnum):
    """Life of a key."""

    ACTIVE = "active"
    ACCEPTED = "accepted"
    RETIRED = "retired"


def _decode(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError("a key is written in base64")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise ValueError("a key is written in base64") from None


KeyBytes = Annotated[
    bytes,
    BeforeValidator(_decode),
    PlainSerializer(lambda value: base64.b64encode(value).decode("ascii"), return_type=str),
]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    state: KeyState = KeyState.ACTIVE
    not_before: int = Field(default=0, ge=0, description="Unix seconds before which this key makes nothing new")


EntryT = TypeVar("EntryT", bound=_Entry)


class IceKey(_Entry):
    """Opens (and makes) ufrags and derives ICE passwords."""

    letter: str = Field(pattern=r"^[A-Za-z]$")
    clusters: tuple[Annotated[int, Field(ge=1, le=MAX_CLUSTER)], ...] = Field(min_length=1, max_length=1024)
    ufrag_key: KeyBytes = Field(min_length=UFRAG_KEY_LENGTH, max_length=UFRAG_KEY_LENGTH, repr=False)
    password_key: KeyBytes | None = Field(
        default=None,
        repr=False,
        min_length=PASSWORD_KEY_LENGTH,
        max_length=PASSWORD_KEY_LENGTH,
        description="absent at an ingress-only relay: the home relay verifies",
    )


class HopKey(_Entry):
    """Authenticates hop datagrams; `scope` is `local`, or the cluster id of a peer on a trunk."""

    id: int = Field(ge=0, le=255)
    scope: Literal["local"] | Annotated[int, Field(ge=1, le=MAX_CLUSTER)] = "local"
    key: KeyBytes = Field(min_length=HOP_KEY_LENGTH, max_length=HOP_KEY_LENGTH, repr=False)


class StoreKey(_Entry):
    """Authenticates mappings kept in Redis."""

    id: int = Field(ge=0, le=255)
    key: KeyBytes = Field(min_length=STORE_KEY_LENGTH, max_length=STORE_KEY_LENGTH, repr=False)


class SealKey(_Entry):
    """Seals call ids and ephemeral secrets."""

    id: int = Field(ge=0, le=255)
    key: KeyBytes = Field(min_length=SEAL_KEY_LENGTH, max_length=SEAL_KEY_LENGTH, repr=False)


NumberedT = TypeVar("NumberedT", HopKey, StoreKey, SealKey)


class KeyFile(BaseModel):
    """The key file, version 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    version: Literal[1]
    ice: tuple[IceKey, ...] = ()
    hop: tuple[HopKey, ...] = ()
    store: tuple[StoreKey, ...] = ()
    seal: tuple[SealKey, ...] = ()


def parse_key_file(text: str) -> KeyFile:
    """Parse the JSON of a key file. Raises LocalError that names the field at fault and never quotes key material."""
    try:
        return KeyFile.model_validate(json.loads(text))
    except json.JSONDecodeError as error:
        raise LocalError(f"the key file is no JSON: {error.msg} at line {error.lineno}") from None
    except (ValidationError, RecursionError) as error:
        fault = describe(error, secrets=True)
        raise LocalError(f"the key file is wrong: {fault}", "make one with `usher keys new`") from None
    except ValueError:
        raise LocalError("the key file is no JSON: a number in it has more than 4300 digits") from None


def merge_key_files(files: Iterable[KeyFile]) -> KeyFile:
    """Return one key file with the keys of all; what stands in an earlier one is tried first."""
    ice: list[IceKey] = []
    hop: list[HopKey] = []
    store: list[StoreKey] = []
    seal: list[SealKey] = []
    for file in files:
        ice += file.ice
        hop += file.hop
        store += file.store
        seal += file.seal
    return KeyFile(version=1, ice=tuple(ice), hop=tuple(hop), store=tuple(store), seal=tuple(seal))


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key that a program holds, without the key: whoever rotates keys waits until all programs report the new one.

    `id` is the letter of an ice key. `clusters` are the cluster ids of an ice key, and of a trunk's hop key the cluster
    at its other end; empty for others.
    """

    list: Literal["ice", "hop", "store"]
    id: str
    state: str
    clusters: tuple[int, ...] = ()


def ice_key_name(cluster: int, letter: str) -> str:
    """Return the name of what opens a cluster's ufrags of a letter, as `7001:u`: alone, a letter may be another's."""
    return f"{cluster}:{letter}"


def held_keys(file: KeyFile) -> tuple[HeldKey, ...]:
    """Return what to report of the ice, hop and store keys in a key file."""
    ice = (HeldKey("ice", key.letter, key.state, key.clusters) for key in file.ice)
    hop = (HeldKey("hop", str(key.id), key.state, _other_end(key)) for key in file.hop)
    store = (HeldKey("store", str(key.id), key.state) for key in file.store)
    return (*ice, *hop, *store)


def _other_end(key: HopKey) -> tuple[int, ...]:
    return () if key.scope == "local" else (key.scope,)


@dataclass(frozen=True, slots=True)
class OpenedUfrag:
    """A ufrag that one of our keys made. `password` is None at a relay that has no password key for it."""

    route: Route
    password: bytes | None


class IceKeyRing:
    """The ICE keys of a key file, ready for use.

    Raises LocalError when more than 8 keys share a letter: each of them costs a try per packet.
    """

    def __init__(self, keys: Iterable[IceKey]) -> None:
        self._by_letter: dict[str, list[tuple[IceKey, UfragCipher]]] = {}
        for key in keys:
            if key.state is KeyState.RETIRED:
                continue
            under = self._by_letter.setdefault(key.letter, [])
            under.append((key, UfragCipher(key.letter, key.ufrag_key)))
            if len(under) > MAX_KEYS_PER_LETTER:
                raise LocalError(f"more than {MAX_KEYS_PER_LETTER} ice keys have the letter {key.letter!r}")

    def open(self, ufrag: bytes) -> OpenedUfrag:
        """Return route and password of a ufrag.

        Raises RemoteError: what `split_ufrag` raises, `ufrag_letter` (no such key), `ufrag_check` (no key of that
        letter opens it, or the key is not of that cluster).
        """
        letter, block = split_ufrag(ufrag)
        candidates = self._by_letter.get(letter)
        if candidates is None:
            raise RemoteError("ufrag_letter", "no key has this letter")
        for key, cipher in candidates:
            route = cipher.open(block)
            if route is not None and route.cluster in key.clusters:
                password = None if key.password_key is None else ice_password(key.password_key, ufrag)
                return OpenedUfrag(route, password)
        raise RemoteError("ufrag_check", "no key of ours made this ufrag")

    def make(self, route: Route, random: bytes, now: float) -> tuple[str, str]:
        """Return (ufrag, password) for a new generation at `route`.

        Args:
            route: the owner.
            random: 5 random bytes, redrawn by the caller while they name a live session.
            now: Unix seconds.

        Raises LocalError when no active key of that cluster with a password key may be used yet.
        """
        usable = [
            (key, cipher)
            for under in self._by_letter.values()
            for key, cipher in under
            if key.state is KeyState.ACTIVE
            and key.not_before <= now
            and route.cluster in key.clusters
            and key.password_key is not None
        ]
        if not usable:
            raise LocalError(f"no active ice key serves cluster {route.cluster}", "add one with `usher keys new`")
        key, cipher = max(usable, key=lambda pair: pair[0].not_before)
        ufrag = cipher.seal(route, random)
        assert key.password_key is not None
        return ufrag, ice_password(key.password_key, ufrag.encode("ascii")).decode("ascii")


class HopKeyRing:
    """The hop keys of one scope. Raises LocalError when two share an id."""

    def __init__(self, keys: Iterable[HopKey], scope: Literal["local"] | int = "local") -> None:
        self._keys = index_by_id(key for key in keys if key.scope == scope)

    def active(self, now: float) -> tuple[int, bytes]:
        """Return (id, key) to authenticate with at `now` (Unix seconds). Raises LocalError when there is none."""
        key = newest_active(self._keys.values(), now)
        if key is None:
            raise LocalError("no hop key is active", "add one with `usher keys new`")
        return key.id, key.key

    def verify(self, datagram: HopDatagram) -> bool:
        """Tell whether a key of this ring made the datagram's MAC."""
        key = self._keys.get(datagram.outer.key_id)
        return key is not None and verify(datagram, key.key)


def newest_active(keys: Iterable[EntryT], now: float) -> EntryT | None:
    """Return the active key with the latest `not_before` that has passed, or None."""
    usable = [key for key in keys if key.state is KeyState.ACTIVE and key.not_before <= now]
    return max(usable, key=lambda key: key.not_before, default=None)


def newest_usable(keys: Collection[EntryT], now: float) -> EntryT:
    """Return `newest_active`, or the first where there is none. `keys` holds at least one, and no retired ones."""
    # The other end opens what an accepted key made, and that is better than to forward nothing.
    return newest_active(keys, now) or next(iter(keys))


def index_by_id(keys: Iterable[NumberedT]) -> dict[int, NumberedT]:
    """Return the keys that are not retired by their id. Raises LocalError when two share an id."""
    index: dict[int, NumberedT] = {}
    for key in keys:
        if key.state is KeyState.RETIRED:
            continue
        if key.id in index:
            raise LocalError(f"two keys have the id {key.id}", "give each live key its own id")
        index[key.id] = key
    return index
