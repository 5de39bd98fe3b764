"""What shall happen to the keys of a namespace next: made, handed out, switched, removed (design D3).

Each look takes one step and writes either the key set or what is derived from it, never both. All that is handed out
stands in the stored key set first, and every write is a compare-and-swap: so a crash between two actions, and a second
operator, can do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from usher_core.errors import LocalError
from usher_operator import names
from usher_operator.actions import Action, Tell
from usher_operator.conditions import some
from usher_operator.keys import secrets
from usher_operator.keys.holders import Holder, holds, is_rid_of, lagging, pod_names, serves, uses
from usher_operator.keys.key_set import (
    GENERATION_BYTES,
    MAX_CLUSTERS,
    MAX_GENERATIONS,
    Generation,
    KeySet,
    Phase,
    first_key_set,
    next_generation,
)
from usher_operator.keys.neighbours import Neighbour, cluster_names, lacking
from usher_operator.seen import Json

__all__ = ["FRESH_BYTES", "Holder", "KeySettings", "KeysPlan", "KeysSeen", "plan_keys"]

FRESH_BYTES = GENERATION_BYTES + secrets.TOKEN_BYTES
"""Random bytes that `plan_keys` wants."""
LOOK_LAG_S = 10.0
"""What an operator sees of pods may be this old: no step that waits for pods is taken sooner after a write."""
SEAL_WAIT_S = 300
"""Signaling can't report what it holds: it seals with a key this long after it got it."""
OLD_KEY_MARGIN_S = 300
"""An old key is kept longer than the longest call by this: for clocks, and files that are read late."""
BLOCKED_AFTER_S = 600
"""A rotation that waits longer is called blocked."""
ASK_SOON_S = 1.0
"""Between two looks where nobody needs our keys."""
ASK_AGAIN_S = 5.0
"""Between two looks while a rotation waits for programs."""


@dataclass(frozen=True, slots=True)
class KeysSeen:
    """What `plan_keys` needs of a namespace.

    Read the Secrets before the pods, and the pods before their answers: then no pod that was made before a key was
    handed out is missed.
    """

    namespace: str
    secrets: Mapping[str, Json]
    """Whole objects by name, of those in `usher_operator.keys.secrets.ALL` that exist."""
    relays: tuple[Holder, ...]
    """All relay pods of the pools here without `spec.keys.secretRef`, ending ones too."""
    transceivers: tuple[Holder, ...]
    """The same of transceiver pods."""
    clusters: frozenset[int]
    """Cluster ids of the TransceiverPools here, and of all pods here that still carry one."""
    longest_call: float
    """Seconds: the longest `maxSessionAge` of the TransceiverPools here. Calls of pods made before may be longer."""
    is_wanted: bool
    """Whether a pool or a pod here uses keys or token that the operator makes; if not, they are deleted."""
    transceiver_keys: Mapping[str, str] = field(default_factory=dict)
    """The Secret with the keys of each TransceiverPool here that stays, by the pool's name."""
    neighbours: tuple[Neighbour, ...] = ()
    """Clusters whose relays may use trunks here, so that they hold copies of these keys."""

    @property
    def wish(self) -> str:
        """The wish for a rotation that people left, heard or not; "" when there is none."""
        stored = self.secrets.get(names.KEY_SET_SECRET)
        return "" if stored is None else secrets.demand(stored)


@dataclass(frozen=True, slots=True)
class KeySettings:
    """What the operator's settings say of keys.

    `rotate_every`: seconds, 0 for on demand only. `clusters`: ids that every key serves from the start, at least one
    and at most 64: the first of the operator's range, so that a new pool need not wait until all relays know its id.
    """

    rotate_every: float
    clusters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeysPlan:
    """The outcome of one look at the keys of a namespace.

    Attributes:
        actions: what to do, in order; a conflict means that another operator was first: look again.
        key_ids: lines for the status of every pool here that uses these keys.
        fault: why the keys can't be used or kept up to date, with what to do; "" when all is well.
        note: what a rotation waits for, with the pods' names; "" when nothing is under way.
        served: cluster ids whose transceivers may start: all relays know them.
        look_again: seconds until the next look; 0 at once, None the usual time.
        waits_since: since when programs are waited for, Unix seconds; None when nobody is.
        transceiver_keys: as in KeysSeen, for the pools of relays.
        wish: as in KeysSeen; another one is worth another look.
    """

    actions: tuple[Action, ...]
    key_ids: tuple[str, ...]
    fault: str = ""
    note: str = ""
    served: frozenset[int] = frozenset()
    look_again: float | None = None
    waits_since: float | None = None
    transceiver_keys: Mapping[str, str] = field(default_factory=dict)
    wish: str = ""

    def fault_for(self, cluster: int | None) -> str:
        """Return `keys_fault` of a TransceiverPool with that cluster id; its pods stay gated while it is not ""."""
        if self.fault or cluster is None or cluster in self.served:
            return self.fault
        return f"not all relays hold a key for cluster {cluster} yet"


def plan_keys(seen: KeysSeen, settings: KeySettings, now: float, fresh: bytes) -> KeysPlan:
    """Return the next step. Pure; `fresh` are FRESH_BYTES random bytes, new for every call, `now` Unix seconds."""
    if not seen.is_wanted:
        ours = [
            secret for secret in map(seen.secrets.get, secrets.ALL) if secret is not None and secrets.is_ours(secret)
        ]
        # The next pool may come at any time, and shall not wait for its keys.
        return KeysPlan(tuple(map(secrets.delete, ours)), (), look_again=ASK_SOON_S)
    try:
        token = _token(seen, fresh)
        stored = seen.secrets.get(names.KEY_SET_SECRET)
        if stored is None:
            return _make(seen, settings, now, fresh, token)
        keys = secrets.read_key_set(stored)
    except LocalError as error:
        return KeysPlan((), (), fault=str(error))
    try:
        writes = _hand_out(seen, keys, now)
    except LocalError as error:
        return KeysPlan(token, key_lines(keys, seen.transceivers, now), str(error), served=frozenset(keys.served))
    return _Look(seen, settings, now, fresh, keys, stored).plan((*token, *writes), is_handed_out=not writes)


def _token(seen: KeysSeen, fresh: bytes) -> tuple[Action, ...]:
    secret = seen.secrets.get(names.TOKEN_SECRET)
    if secret is None:
        return (secrets.create_token(seen.namespace, fresh[GENERATION_BYTES:]),)
    secrets.check_token(secret)
    return ()


def _make(seen: KeysSeen, settings: KeySettings, now: float, fresh: bytes, token: tuple[Action, ...]) -> KeysPlan:
    left = [name for name in secrets.DERIVED if name in seen.secrets]
    if left:
        raise LocalError(
            f"Secret {names.KEY_SET_SECRET} is gone, and live calls may need the keys in {', '.join(left)}",
            f"restore it, or delete {', '.join(left)} too to begin anew, which ends live calls",
        )
    keys = first_key_set(_bounded(seen.clusters.union(settings.clusters)), now, fresh[:GENERATION_BYTES])
    write = secrets.write_key_set(keys, seen.namespace, now, None)
    made = Tell("Normal", "KeysMade", f"made keys with the letter {keys.active.letter}")
    return KeysPlan((*token, write, made), (), "the keys are being made", look_again=0)


def _hand_out(seen: KeysSeen, keys: KeySet, now: float) -> tuple[Action, ...]:
    writes = []
    for secret, file in secrets.derive(keys).items():
        there = seen.secrets.get(secret)
        if there is not None:
            secrets.check_derived(there, keys)
        if there is None or not secrets.is_current(there, keys, file):
            writes.append(secrets.write_derived(secret, file, keys, seen.namespace, now, there))
    return tuple(writes)


@dataclass(frozen=True, slots=True)
class _Step:
    """The next key set, and what to tell of it."""

    keys: KeySet
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class _Wait:
    """What can't go on until programs say so: `what` is as `how` says, since Unix seconds, because of `blockers`."""

    what: str
    how: str
    blockers: tuple[Holder, ...]
    since: float
    neighbours: tuple[Neighbour, ...] = ()

    def text(self, now: float) -> str:
        """Return it in words, with the pods' names, or what people have to do in other clusters."""
        if not self.blockers and self.neighbours:
            return (
                f"{self.what} {self.how}: give it to {some(cluster_names(self.neighbours))} by `usher keys "
                "trunk-secrets`; who says nothing for an hour is not waited for"
            )
        if not self.blockers:
            return f"{self.what} {self.how}: what was handed out just now is on its way"
        if now - self.since > BLOCKED_AFTER_S:
            minutes = BLOCKED_AFTER_S // 60
            return f"{self.what} {self.how}, blocked for more than {minutes} minutes by {pod_names(self.blockers)}"
        return f"{self.what} {self.how}: waiting for {pod_names(self.blockers)}"


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a key set that is whole."""

    seen: KeysSeen
    settings: KeySettings
    now: float
    fresh: bytes
    keys: KeySet
    stored: Json

    def plan(self, actions: tuple[Action, ...], *, is_handed_out: bool) -> KeysPlan:
        lines = key_lines(self.keys, self.seen.transceivers, self.now)
        served = frozenset(self.keys.served)
        missing = [secret for secret in secrets.DERIVED if secret not in self.seen.secrets]
        fault = f"Secret {missing[0]} is being made" if missing else ""
        if not is_handed_out:
            return KeysPlan(actions, lines, fault, served=served, look_again=0)
        step = self._step()
        if step is not None:
            write = secrets.write_key_set(step.keys, self.seen.namespace, self.now, self.stored)
            told = Tell("Normal", step.reason, step.message)
            return KeysPlan((*actions, write, told), lines, fault, served=served, look_again=0)
        waits = tuple(self._waits())
        note = "; ".join((*(wait.text(self.now) for wait in waits), *self._wishes_that_wait()))
        since = min((wait.since for wait in waits), default=None)
        return KeysPlan(actions, lines, fault, note, served, ASK_AGAIN_S if note else self._next_time(), since)

    def _step(self) -> _Step | None:
        """Return the first step that can be taken: none holds up another."""
        return self._remove() or self._learn() or self._serve() or self._switch() or self._leave() or self._start()

    def _remove(self) -> _Step | None:
        gone = [each for each in self._overdue() if not self._needing(each)]
        if not gone:
            return None
        left = tuple(each for each in self.keys.generations if each not in gone)
        letters = ", ".join(each.letter for each in gone)
        return _Step(self.keys.changed(generations=left), "KeyRemoved", f"removed key {letters}: no call needs it")

    def _wanted(self) -> frozenset[int]:
        return self.seen.clusters.union(self.settings.clusters)

    def _learn(self) -> _Step | None:
        # Ids whose pools are gone are dropped only when there is no room, and never because of one look without them.
        known = self._wanted().union(self.keys.clusters)
        clusters = _bounded(known if len(known) <= MAX_CLUSTERS else self._wanted())
        if clusters == self.keys.clusters:
            return None
        served = tuple(each for each in self.keys.served if each in clusters) or clusters
        learned = ", ".join(str(each) for each in clusters if each not in self.keys.clusters)
        keys = self.keys.changed(clusters=clusters, served=served)
        return _Step(keys, "ClusterLearned", f"relays learn the cluster ids {learned}")

    def _serve(self) -> _Step | None:
        if self.keys.served == self.keys.clusters or not self._is_settled() or self._ignorant():
            return None
        told = "all relays know the cluster ids that transceivers may use"
        return _Step(self.keys.changed(served=self.keys.clusters), "ClusterServed", told)

    def _switch(self) -> _Step | None:
        given = self.keys.given
        if given is None or not self._is_settled() or self._without(given) or self._lacking(given):
            return None
        old, since = self.keys.active, int(self.now)
        seal_from = int(max(self.now, self._written_at())) + SEAL_WAIT_S
        phases = {
            given.letter: {"phase": Phase.ACTIVE, "since": since, "seal_from": seal_from},
            old.letter: {"phase": Phase.OLD, "since": since},
        }
        told = f"all programs hold key {given.letter}: it replaces {old.letter}, which is kept for the calls it has"
        return _Step(self._updated(phases), "KeySwitched", told)

    def _leave(self) -> _Step | None:
        left = [each for each in self.keys.old if each.gone_at is None]
        if not left or not self._is_settled() or self._behind():
            return None
        gone_at = int(self.now + self.seen.longest_call) + OLD_KEY_MARGIN_S
        letters = ", ".join(each.letter for each in left)
        told = f"nobody uses key {letters} for new calls any more: it is removed when the last call with it is over"
        return _Step(self._updated({each.letter: {"gone_at": gone_at} for each in left}), "KeyLeft", told)

    def _start(self) -> _Step | None:
        if not self._is_rotation_due() or self.keys.given or len(self.keys.generations) >= MAX_GENERATIONS:
            return None
        given = next_generation(self.keys, self.now, self.fresh[:GENERATION_BYTES])
        keys = self.keys.changed(generations=(*self.keys.generations, given), demand=secrets.demand(self.stored))
        why = "as was asked for" if self._has_new_wish() else "since the key in use is old enough"
        told = (
            f"a rotation begins, {why}: key {given.letter} goes to all programs, to replace {self.keys.active.letter}"
        )
        return _Step(keys, "KeyGiven", told)

    def _updated(self, changes: Mapping[str, Mapping[str, object]]) -> KeySet:
        return self.keys.changed(
            generations=tuple(each.model_copy(update=changes.get(each.letter, {})) for each in self.keys.generations)
        )

    def _has_new_wish(self) -> bool:
        return self.seen.wish not in ("", self.keys.demand)

    def _is_rotation_due(self) -> bool:
        if self._has_new_wish():
            return True
        every = self.settings.rotate_every
        return every > 0 and self.now >= self.keys.active.since + every

    def _written_at(self) -> float:
        """When the newest of what programs hold was written."""
        return max(secrets.written_at(self.seen.secrets[secret]) for secret in secrets.DERIVED)

    def _is_settled(self) -> bool:
        return self.now >= self._written_at() + LOOK_LAG_S

    def _programs(self) -> tuple[Holder, ...]:
        return (*self.seen.relays, *self.seen.transceivers)

    def _without(self, given: Generation) -> tuple[Holder, ...]:
        return lagging(self._programs(), holds(given), self._written_at(), self.now)

    def _lacking(self, given: Generation) -> tuple[Neighbour, ...]:
        return lacking(self.seen.neighbours, self.seen.clusters, given.letter, given.since, self.now)

    def _behind(self) -> tuple[Holder, ...]:
        return lagging(self._programs(), uses(self.keys.active), self._written_at(), self.now)

    def _overdue(self) -> list[Generation]:
        """The old keys whose time is over, by what pools say of their longest call."""
        return [each for each in self.keys.old if each.gone_at is not None and each.gone_at <= self.now]

    def _needing(self, old: Generation) -> tuple[Holder, ...]:
        """Transceivers that have calls with an old key, or may have some since they don't answer."""
        return lagging(self.seen.transceivers, is_rid_of(old), self._written_at(), self.now)

    def _ignorant(self) -> tuple[Holder, ...]:
        return lagging(
            self.seen.relays, serves(self.keys.generations, self.keys.clusters), self._written_at(), self.now
        )

    def _waits(self) -> Iterator[_Wait]:
        given, left = self.keys.given, [each for each in self.keys.old if each.gone_at is None]
        if given is not None:
            what = f"rotation, step 1 of 2: key {given.letter}"
            yield _Wait(what, "is not in use yet", self._without(given), given.since, self._lacking(given))
        if left:
            what = f"rotation, step 2 of 2: key {left[0].letter}"
            yield _Wait(what, "is still in use", self._behind(), self.keys.active.since)
        for old in self._overdue():
            yield _Wait(f"key {old.letter}", "is still needed by calls", self._needing(old), old.gone_at or 0)
        if self.keys.served != self.keys.clusters:
            yield _Wait("a new cluster id", "is not in use yet", self._ignorant(), self._written_at())

    def _wishes_that_wait(self) -> Iterator[str]:
        if self.keys.given is not None and self._has_new_wish():
            yield "another rotation was asked for, and begins once step 1 of this one is done"
        if len(self._wanted()) > MAX_CLUSTERS:
            yield f"a key serves {MAX_CLUSTERS} cluster ids, so some pools get none: use more namespaces"
        if self._is_rotation_due() and len(self.keys.generations) >= MAX_GENERATIONS:
            yield f"a rotation waits: calls need all {MAX_GENERATIONS} keys that programs may hold"

    def _next_time(self) -> float | None:
        times = [each.gone_at for each in self.keys.old if each.gone_at is not None]
        if self.settings.rotate_every > 0:
            times.append(int(self.keys.active.since + self.settings.rotate_every))
        return max(1.0, min(times) - self.now) if times else None


def _bounded(clusters: frozenset[int]) -> tuple[int, ...]:
    return tuple(sorted(clusters)[:MAX_CLUSTERS])


def key_lines(keys: KeySet, transceivers: tuple[Holder, ...], now: float) -> tuple[str, ...]:
    """Return what a status says of the keys, such as `ice/A active 12d, 50 calls or fewer`; never the keys.

    Ages are coarse and calls rounded up, so that the status does not change with every call.
    """
    calls = {
        each.letter: sum(holder.held.ufrags.get(each.letter, 0) for holder in transceivers if holder.held)
        for each in keys.generations
    }
    lines = []
    for each in keys.generations:
        tail = f"{each.phase} {_age(now - each.since)}"
        lines.append(f"ice/{each.letter} {tail}, {_rounded(calls[each.letter])}")
        lines += [f"{kind}/{each.number} {tail}" for kind in ("hop", "store", "seal")]
    return tuple(lines)


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return "<1h"


def _rounded(calls: int) -> str:
    if calls == 0:
        return "no calls"
    step = 1
    while calls > 10 * step:
        step *= 10
    return f"≤{-(-calls // step) * step} calls"
