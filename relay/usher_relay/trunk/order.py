"""Which endpoints of a peer are used now: near ones share the flows, others wait until no near one is left.

Rules, for each look at all endpoints of one peer:
1. **Sound** is an endpoint that is up and loses at most 10 % of its probes more than the best one, without a pause for
   5 s. It is so no longer at once when it is down, or loses 25 % more than the best. Where
   probes are too few to tell a loss, it is not compared.
2. Of the sound ones that have answered, the one with the lowest round trip is the best. **Near** is one within 1.5
   times that and 10 ms. One that was near is so until it was beyond 2 times and 20 ms for 2 s; one that was not, when
   it was within the narrower bound for 5 s. The first answer of an endpoint is judged at once.
3. The sound and near ones are used. When the last of them is lost, those near to the best that is left are used, at
   once.
4. Without a sound one, those that are up count; without these, all: the probes may be what is lost.

So jitter moves nothing, a dead endpoint's flows move at once, and they come back only when it has proved steady. Losing
many packets counts for more than being far: what is lost can't be played. Loss that all share says nothing of any.

No I/O, no clock: times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

PROVED_AFTER_S: Final = 5.0
FAR_AFTER_S: Final = 2.0
LOSSY: Final = 0.25
CLEAN: Final = 0.10
_JOIN: Final = (1.5, 0.010)
_LEAVE: Final = (2.0, 0.020)
"""Times the best round trip, and seconds more."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What probes tell of an endpoint now.

    `rtt` is in seconds, None before the first answer; `loss` is 0 to 1, None while not known.
    """

    is_up: bool
    rtt: float | None
    loss: float | None


@dataclass(slots=True)
class _Verdict:
    """Yes or no, which changes only when what speaks for the change has held for a while."""

    value: bool | None
    _since: float | None = None

    def weigh(self, now: float, wanted: bool | None, after: float) -> None:
        """`wanted` is what the moment says, None for neither."""
        if wanted is None or wanted == self.value:
            self._since = None
            return
        if self._since is None:
            self._since = now
        if now - self._since >= after:
            self.value, self._since = wanted, None


@dataclass(slots=True)
class _Standing:
    sound: _Verdict = field(default_factory=lambda: _Verdict(True))
    near: _Verdict = field(default_factory=lambda: _Verdict(None))


class EndpointOrder:
    """The order of one peer's endpoints, by name."""

    def __init__(self) -> None:
        self._standings: dict[str, _Standing] = {}

    def choose(self, now: float, seen: Mapping[str, Seen]) -> Collection[str]:
        """Return which endpoints are used at `now`: at least one of `seen`, where there is any."""
        self._standings = {name: self._standings.get(name) or _Standing() for name in seen}
        self._judge_soundness(now, seen)
        names = self._candidates(seen)
        rtts = {name: rtt for name in names if (rtt := seen[name].rtt) is not None}
        if not rtts:
            return names
        best = min(rtts.values())
        for name, rtt in rtts.items():
            wanted = True if rtt <= _bound(best, _JOIN) else False if rtt > _bound(best, _LEAVE) else None
            near = self._standings[name].near
            if near.value is None:
                near.value = wanted is True
            near.weigh(now, wanted, PROVED_AFTER_S if wanted else FAR_AFTER_S)
        used = [name for name in rtts if self._standings[name].near.value]
        return used or self._begin_anew(rtts, best)

    def _judge_soundness(self, now: float, seen: Mapping[str, Seen]) -> None:
        least = min((found.loss for found in seen.values() if found.is_up and found.loss is not None), default=0.0)
        for name, found in seen.items():
            wanted: bool | None = None
            if not found.is_up or (found.loss is not None and found.loss >= least + LOSSY):
                wanted = False
            elif found.loss is not None and found.loss <= least + CLEAN:
                wanted = True
            self._standings[name].sound.weigh(now, wanted, PROVED_AFTER_S if wanted else 0.0)

    def _candidates(self, seen: Mapping[str, Seen]) -> list[str]:
        sound = [name for name, found in seen.items() if self._standings[name].sound.value and found.rtt is not None]
        return sound or [name for name, found in seen.items() if found.is_up] or list(seen)

    def _begin_anew(self, rtts: Mapping[str, float], best: float) -> list[str]:
        used = [name for name, rtt in rtts.items() if rtt <= _bound(best, _JOIN)]
        for name in used:
            self._standings[name].near = _Verdict(True)
        return used


def _bound(best: float, of: tuple[float, float]) -> float:
    times, more = of
    return best * times + more
