"""The key set of a namespace: generations of keys, and the files that programs get of them (docs/wire.md section 1).

A generation has one key of each kind, and all of them rotate together. Its life:

* `given`: programs accept it, nobody uses it. Ends when all have said that they hold it.
* `active`: programs use it. There is exactly one.
* `old`: programs accept it. It is removed when the last call that used it has ended.
"""

from __future__ import annotations

import json
import string
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from usher_core.errors import LocalError, describe
from usher_core.hop import HOP_KEY_LENGTH
from usher_core.ids import MAX_CLUSTER
from usher_core.keys import (
    SEAL_KEY_LENGTH,
    STORE_KEY_LENGTH,
    HopKey,
    IceKey,
    KeyBytes,
    KeyFile,
    KeyState,
    SealKey,
    StoreKey,
)
from usher_core.ufrag import PASSWORD_KEY_LENGTH, UFRAG_KEY_LENGTH

MAX_GENERATIONS = 8
"""A program holds at most so many keys of each kind; a rotation waits for room."""
MAX_CLUSTERS = 1024
"""Cluster ids that one key may serve, as in a key file."""
CLOCK_SKEW_S = 60
"""Keys count from this long before they were made: hop datagrams tolerate clocks that far apart, so keys do too."""
LETTERS = string.ascii_uppercase + string.ascii_lowercase

_LENGTHS = {
    "ufrag_key": UFRAG_KEY_LENGTH,
    "password_key": PASSWORD_KEY_LENGTH,
    "hop_key": HOP_KEY_LENGTH,
    "store_key": STORE_KEY_LENGTH,
    "seal_key": SEAL_KEY_LENGTH,
}
GENERATION_BYTES = 1 + sum(_LENGTHS.values())
"""Random bytes that a generation is made of."""

ClusterIds = tuple[Annotated[int, Field(ge=1, le=MAX_CLUSTER)], ...]


class Phase(StrEnum):
    """Life of a generation."""

    GIVEN = "given"
    ACTIVE = "active"
    OLD = "old"


class Generation(BaseModel):
    """One key of each kind. Times are Unix seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    letter: str = Field(pattern=r"^[A-Za-z]$")
    number: int = Field(ge=0, le=255, description="id of the hop, store and seal key")
    phase: Phase
    made_at: int = Field(ge=0)
    since: int = Field(ge=0, description="when this phase began")
    seal_from: int = Field(ge=0, description="when signaling seals with it; it can't report what it holds")
    gone_at: int | None = Field(default=None, ge=0, description="removed then; None: programs may still use it")
    ufrag_key: KeyBytes = Field(min_length=UFRAG_KEY_LENGTH, max_length=UFRAG_KEY_LENGTH, repr=False)
    password_key: KeyBytes = Field(min_length=PASSWORD_KEY_LENGTH, max_length=PASSWORD_KEY_LENGTH, repr=False)
    hop_key: KeyBytes = Field(min_length=HOP_KEY_LENGTH, max_length=HOP_KEY_LENGTH, repr=False)
    store_key: KeyBytes = Field(min_length=STORE_KEY_LENGTH, max_length=STORE_KEY_LENGTH, repr=False)
    seal_key: KeyBytes = Field(min_length=SEAL_KEY_LENGTH, max_length=SEAL_KEY_LENGTH, repr=False)


class KeySet(BaseModel):
    """All keys of a namespace.

    `clusters` are the cluster ids that relays open ufrags of; `served` those of them that all relays know by now, so
    that transceivers may make ufrags. `demand` is the last wish for a rotation that was heard. `revision` grows with
    every change: what is derived from an older set never replaces what is derived from a newer one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    version: Literal[1] = 1
    revision: int = Field(ge=1)
    clusters: ClusterIds = Field(min_length=1, max_length=MAX_CLUSTERS)
    served: ClusterIds = Field(min_length=1, max_length=MAX_CLUSTERS)
    demand: str = Field(default="", max_length=1024)
    generations: tuple[Generation, ...] = Field(min_length=1, max_length=MAX_GENERATIONS)

    @model_validator(mode="after")
    def _is_consistent(self) -> KeySet:
        phases = [generation.phase for generation in self.generations]
        if phases.count(Phase.ACTIVE) != 1 or phases.count(Phase.GIVEN) > 1:
            raise ValueError("exactly one generation is active, and at most one given")
        if len({generation.letter for generation in self.generations}) < len(self.generations):
            raise ValueError("each generation has its own letter")
        if len({generation.number for generation in self.generations}) < len(self.generations):
            raise ValueError("each generation has its own number")
        if not set(self.served) <= set(self.clusters):
            raise ValueError("clusters holds all of served")
        return self

    @property
    def active(self) -> Generation:
        """The generation in use."""
        return next(generation for generation in self.generations if generation.phase is Phase.ACTIVE)

    @property
    def given(self) -> Generation | None:
        """The generation that waits until all programs hold it."""
        return next((generation for generation in self.generations if generation.phase is Phase.GIVEN), None)

    @property
    def old(self) -> tuple[Generation, ...]:
        """The generations that calls may still need."""
        return tuple(generation for generation in self.generations if generation.phase is Phase.OLD)

    def changed(self, **fields: object) -> KeySet:
        """Return the next revision of this set, with other fields. Raises ValidationError when they don't fit."""
        values = {name: getattr(self, name) for name in KeySet.model_fields}
        return KeySet.model_validate({**values, **fields, "revision": self.revision + 1})


def parse_key_set(text: str) -> KeySet:
    """Parse a stored key set. Raises LocalError that names the field at fault and never quotes key material."""
    try:
        return KeySet.model_validate(json.loads(text))
    except (ValidationError, RecursionError) as error:
        raise LocalError(describe(error, secrets=True)) from None
    except ValueError:
        raise LocalError("it is no JSON") from None


def first_key_set(clusters: tuple[int, ...], now: float, random: bytes) -> KeySet:
    """Return a new set with one active generation. `random`: GENERATION_BYTES random bytes.

    The first letter is drawn, so that two installs seldom try each other's keys.
    """
    letter = LETTERS[random[0] % len(LETTERS)]
    active = _generation(letter, 1, Phase.ACTIVE, now, random[1:])
    return KeySet(revision=1, clusters=clusters, served=clusters, generations=(active,))


def next_generation(keys: KeySet, now: float, random: bytes) -> Generation:
    """Return a generation to give out, with the next free letter and number. `random`: GENERATION_BYTES of it."""
    newest = keys.generations[-1]
    letters = {generation.letter for generation in keys.generations}
    numbers = {generation.number for generation in keys.generations}
    start = LETTERS.index(newest.letter) + 1
    letter = next(letter for letter in LETTERS[start:] + LETTERS[:start] if letter not in letters)
    number = next(n % 256 for n in range(newest.number + 1, newest.number + 256) if n % 256 not in numbers)
    return _generation(letter, number, Phase.GIVEN, now, random[1:])


def _generation(letter: str, number: int, phase: Phase, now: float, random: bytes) -> Generation:
    parts, start = {}, 0
    for name, length in _LENGTHS.items():
        parts[name] = random[start : start + length]
        start += length
    from_when = max(0, int(now) - CLOCK_SKEW_S)
    times = {"made_at": int(now), "since": int(now), "seal_from": from_when}
    return Generation.model_validate({"letter": letter, "number": number, "phase": phase, **times, **parts})


def relay_file(keys: KeySet) -> KeyFile:
    """Return what relays may know: it opens ufrags, authenticates hop datagrams and what is kept in Redis."""
    store = tuple(
        StoreKey(id=each.number, key=each.store_key, state=_state(each), not_before=_start(each))
        for each in keys.generations
    )
    return KeyFile(version=1, ice=_ice(keys, keys.clusters), hop=_hop(keys), store=store)


def transceiver_file(keys: KeySet) -> KeyFile:
    """Return what transceivers may know: it makes ufrags and authenticates hop datagrams."""
    return KeyFile(version=1, ice=_ice(keys, keys.served), hop=_hop(keys))


def signaling_file(keys: KeySet) -> KeyFile:
    """Return what signaling may know: it seals call ids and ephemeral secrets.

    Its replicas can't be asked what they hold, so time decides: of the active ones the newest whose time has come.
    """
    seal = tuple(
        SealKey(
            id=each.number,
            key=each.seal_key,
            state=KeyState.ACCEPTED if each.phase is Phase.GIVEN else KeyState.ACTIVE,
            not_before=each.seal_from,
        )
        for each in keys.generations
    )
    return KeyFile(version=1, seal=seal)


def _ice(keys: KeySet, clusters: tuple[int, ...]) -> tuple[IceKey, ...]:
    return tuple(
        IceKey(
            letter=each.letter,
            clusters=clusters,
            ufrag_key=each.ufrag_key,
            password_key=each.password_key,
            state=_state(each),
            not_before=_start(each),
        )
        for each in keys.generations
    )


def _hop(keys: KeySet) -> tuple[HopKey, ...]:
    return tuple(
        HopKey(id=each.number, key=each.hop_key, state=_state(each), not_before=_start(each))
        for each in keys.generations
    )


def _state(generation: Generation) -> KeyState:
    return KeyState.ACTIVE if generation.phase is Phase.ACTIVE else KeyState.ACCEPTED


def _start(generation: Generation) -> int:
    return max(0, generation.made_at - CLOCK_SKEW_S)
