"""PROBE and PROBE-REPLY (docs/wire.md section 3), and what they tell of an endpoint. No I/O, no clock.

Payload: nonce 8, sender's time in µs 8, then n and n ice keys (cluster 2, letter 1), m and m ids of hop keys.

Rules of an endpoint:
* It is probed four times a second. It is up while its last answer is not older than 0.75 s, which is three probes; one
  that was never probed counts as up, so that a start loses no call.
* An answer counts once, by its nonce, and within 5 s.
* The round trip is the median of the last 30 answers, which a few late ones don't change; loss is the share of the last
  30 probes, answered or older than 1 s, that had no answer. It is known from 20 such probes on, which is 5 s.

An answer names the ice keys that whoever was probed holds for the clusters at both ends, each with the cluster, since
two may have keys of one letter; and the ids of its hop keys of this trunk alone: those of others are not the prober's,
and could be taken for it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from struct import Struct
from typing import Final

from usher_core import hop
from usher_core.errors import RemoteError
from usher_core.hop import PROBED_LENGTH, HopType, Outer, Record
from usher_core.ids import ClientPath, Route
from usher_core.keys import HeldKey, HopKey, KeyState, ice_key_name

NONCE_LENGTH: Final = 8
PROBE_EVERY_S: Final = 0.25
DOWN_AFTER_S: Final = 0.75
LOST_AFTER_S: Final = 1.0
FORGOTTEN_AFTER_S: Final = 5.0
JUDGED: Final = 30
LOSS_KNOWN_FROM: Final = 20
_MOST_IDS: Final = 255
_PAIR: Final = Struct("!Hc")
"""An ice key: cluster and letter."""


@dataclass(frozen=True, slots=True)
class HeldIds:
    """The keys that the other end of a trunk holds: names (`ice_key_name`) of ice keys, ids of its hop keys."""

    ice: tuple[str, ...] = ()
    hop: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """An authentic PROBE-REPLY. `route` is that of the probe."""

    route: Route
    nonce: bytes
    held: HeldIds


def held_ids(held: Iterable[HeldKey], clusters: Collection[int], trunk: Iterable[int]) -> bytes:
    """Return the key ids of a PROBE or its answer.

    Args:
        held: all keys, of which the live ice keys are named.
        clusters: at either end of the trunk, one or two: ice keys of others are not named.
        trunk: ids of its hop keys; the first 255 are named.
    """
    keys = [key for key in held if key.list == "ice" and key.state != KeyState.RETIRED]
    ice = {(cluster, key.id) for key in keys for cluster in set(clusters).intersection(key.clusters)}
    pairs = b"".join(cluster.to_bytes(2) + letter.encode("ascii") for cluster, letter in sorted(ice))
    numbers = bytes(sorted(trunk))[:_MOST_IDS]
    return bytes((len(ice),)) + pairs + bytes((len(numbers),)) + numbers


def read_held_ids(payload: bytes) -> HeldIds:
    """Read what `held_ids` wrote. Raises RemoteError (`probe_reply`) where it is anything else."""
    end = 1 + _PAIR.size * (payload[0] if payload else 0)
    pairs, rest = payload[1:end], payload[end:]
    if not rest or len(rest) != 1 + rest[0] or not all(letter.isalpha() for _, letter in _PAIR.iter_unpack(pairs)):
        raise RemoteError("probe_reply", "the key ids of an answer to a probe are malformed")
    ice = (ice_key_name(cluster, letter.decode("ascii")) for cluster, letter in _PAIR.iter_unpack(pairs))
    return HeldIds(tuple(ice), tuple(rest[1:]))


def build_probe(route: Route, nonce: bytes, held: bytes, key: HopKey, unix: float) -> bytes:
    """Return a PROBE; `held` is of `held_ids`, `unix` Unix seconds. A relay's route is its cluster, with pod 0."""
    outer = Outer(HopType.PROBE, False, route.cluster, route.pod, route.worker, key.id, int(unix * 1000))
    payload = nonce + int(unix * 1_000_000).to_bytes(8) + held
    return hop.encode(outer, (Record(ClientPath(bytes(16), 0, 0), payload),), key.key)


def read_reply(datagram: bytes, keys: Mapping[int, HopKey], unix: float) -> Reply:
    """Read a PROBE-REPLY that one of `keys` made. Whose it is, its route and nonce tell.

    Raises RemoteError: what `hop.parse` raises, `probe_reply` for all else.
    """
    parsed = hop.parse(datagram)
    outer, key = parsed.outer, keys.get(parsed.outer.key_id)
    if (
        (outer.type, outer.to_client) != (HopType.PROBE_REPLY, True)
        or len(parsed.records[0].payload) < PROBED_LENGTH
        or key is None
        or not hop.verify(parsed, key.key)
        or not hop.is_timely(outer.time_ms, int(unix * 1000))
    ):
        raise RemoteError("probe_reply", "this is no authentic answer to a probe")
    payload = parsed.records[0].payload
    route = Route(outer.cluster, outer.pod, outer.worker)
    return Reply(route, payload[:NONCE_LENGTH], read_held_ids(payload[PROBED_LENGTH:]))


class EndpointHealth:
    """What the probes of one endpoint tell. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.rtt: float | None = None
        """Seconds; None before the first answer."""
        self.sent = 0
        self.answered = 0
        self.answered_at: float | None = None
        """When the last answer came; None before the first."""
        self._rtts: deque[float] = deque(maxlen=JUDGED)
        self._open: OrderedDict[bytes, float] = OrderedDict()
        self._late: OrderedDict[bytes, float] = OrderedDict()
        self._outcomes: deque[bool] = deque(maxlen=JUDGED)
        self._next_at = 0.0
        self._heard_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Tell whether a probe is to be sent."""
        return now >= self._next_at

    def on_sent(self, nonce: bytes, now: float) -> None:
        """Take note of a probe."""
        if self._heard_at is None:
            self._heard_at = now
        # After a pause of ours one is sent and not all that were missed.
        self._next_at = max(self._next_at, now - PROBE_EVERY_S) + PROBE_EVERY_S
        self.sent += 1
        self._open[nonce] = now
        self._forget(now)

    def on_answer(self, nonce: bytes, now: float) -> bool:
        """Take note of an answer; False when it answers no probe of ours, or one that was answered."""
        self._forget(now)
        if nonce in self._open:
            sent_at = self._open.pop(nonce)
            self._outcomes.append(True)
        elif nonce in self._late:
            sent_at = self._late.pop(nonce)
        else:
            return False
        self.answered += 1
        self._rtts.append(now - sent_at)
        self.rtt = median(self._rtts)
        self._heard_at = self.answered_at = now
        return True

    def is_up(self, now: float) -> bool:
        """Tell whether flows may go there."""
        return self._heard_at is None or now - self._heard_at <= DOWN_AFTER_S

    @property
    def loss(self) -> float:
        """The share of lost probes, 0 to 1."""
        return self._outcomes.count(False) / len(self._outcomes) if self._outcomes else 0.0

    @property
    def known_loss(self) -> float | None:
        """The same, None while it is that of too few probes to compare endpoints by."""
        return self.loss if len(self._outcomes) >= LOSS_KNOWN_FROM else None

    def _forget(self, now: float) -> None:
        while self._open and now - (first := next(iter(self._open.items())))[1] > LOST_AFTER_S:
            self._late[first[0]] = self._open.pop(first[0])
            self._outcomes.append(False)
        while self._late and now - next(iter(self._late.values())) > FORGOTTEN_AFTER_S:
            self._late.popitem(last=False)
