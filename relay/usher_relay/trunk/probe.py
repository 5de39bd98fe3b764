"""PROBE and PROBE-REPLY (docs/wire.md section 3), and what they tell of an endpoint. No I/O, no clock.

Payload: nonce 8, sender's time in µs 8, then n and n letters of ice keys, m and m ids of hop keys.

Rules of an endpoint:
* It is probed four times a second. It is up while its last answer is not older than 0.75 s, which is three probes; one
  that was never probed counts as up, so that a start loses no call.
* An answer counts once, by its nonce, and within 5 s.
* The round trip is the time of the last answer; loss is the share of the last 20 probes, answered or older than 1 s,
  that had no answer.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Final

from usher_core import hop
from usher_core.errors import RemoteError
from usher_core.hop import HopType, Outer, Record
from usher_core.ids import ClientPath
from usher_core.keys import HeldKey, HopKey, KeyState

PROBED_LENGTH: Final = 16
"""Nonce and time, which go back as they came."""
NONCE_LENGTH: Final = 8
PROBE_EVERY_S: Final = 0.25
DOWN_AFTER_S: Final = 0.75
LOST_AFTER_S: Final = 1.0
FORGOTTEN_AFTER_S: Final = 5.0
JUDGED: Final = 20
_MOST_IDS: Final = 255


def held_ids(held: Iterable[HeldKey]) -> bytes:
    """Return the key ids of a PROBE; at most 255 of a kind are named."""
    keys = tuple(key for key in held if key.state != KeyState.RETIRED)
    letters = b"".join(sorted({key.id.encode("ascii") for key in keys if key.list == "ice"}))[:_MOST_IDS]
    numbers = bytes(sorted({int(key.id) for key in keys if key.list == "hop"}))[:_MOST_IDS]
    return bytes((len(letters),)) + letters + bytes((len(numbers),)) + numbers


def build_probe(cluster: int, nonce: bytes, held: Iterable[HeldKey], key: HopKey, unix: float) -> bytes:
    """Return a PROBE to a relay of `cluster`; `unix` is Unix seconds."""
    outer = Outer(HopType.PROBE, False, cluster, 0, 0, key.id, int(unix * 1000))
    payload = nonce + int(unix * 1_000_000).to_bytes(8) + held_ids(held)
    return hop.encode(outer, (Record(ClientPath(bytes(16), 0, 0), payload),), key.key)


def read_reply(datagram: bytes, cluster: int, keys: Mapping[int, HopKey], unix: float) -> bytes:
    """Return the nonce of an authentic PROBE-REPLY from a relay of `cluster`.

    Raises RemoteError: what `hop.parse` raises, `probe_reply` for all else.
    """
    parsed = hop.parse(datagram)
    outer, key = parsed.outer, keys.get(parsed.outer.key_id)
    if (
        (outer.type, outer.to_client, outer.cluster) != (HopType.PROBE_REPLY, True, cluster)
        or len(parsed.records[0].payload) < PROBED_LENGTH
        or key is None
        or not hop.verify(parsed, key.key)
        or not hop.is_timely(outer.time_ms, int(unix * 1000))
    ):
        raise RemoteError("probe_reply", "this is no authentic answer to a probe")
    return parsed.records[0].payload[:NONCE_LENGTH]


class EndpointHealth:
    """What the probes of one endpoint tell. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.rtt: float | None = None
        """Seconds; None before the first answer."""
        self.sent = 0
        self.answered = 0
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
        self.rtt = now - sent_at
        self._heard_at = now
        return True

    def is_up(self, now: float) -> bool:
        """Tell whether flows may go there."""
        return self._heard_at is None or now - self._heard_at <= DOWN_AFTER_S

    @property
    def loss(self) -> float:
        """The share of lost probes, 0 to 1."""
        return self._outcomes.count(False) / len(self._outcomes) if self._outcomes else 0.0

    def _forget(self, now: float) -> None:
        while self._open and now - (first := next(iter(self._open.items())))[1] > LOST_AFTER_S:
            self._late[first[0]] = self._open.pop(first[0])
            self._outcomes.append(False)
        while self._late and now - next(iter(self._late.values())) > FORGOTTEN_AFTER_S:
            self._late.popitem(last=False)
