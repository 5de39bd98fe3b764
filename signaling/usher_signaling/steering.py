"""A call in the region that takes it: here, or over the signaling of another one. Within one request and its deadline.

Rules:
* The order of places is `peer_regions.itinerary`'s. A place that takes no call is followed by the next one; an offer
  that is at fault, or a tenant's limit, is nobody else's to judge.
* Each place but the last has at most half of the time that is left, another region `--region-timeout` at most.
* What a peer handed on to us is placed here or refused. Whether nobody took the call is the peer's to count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from usher_signaling.auth import Caller
from usher_signaling.calls import MIN_ATTEMPT_S, Calls, Offer, PlacedCall
from usher_signaling.errors import ApiError, unavailable
from usher_signaling.metrics import Metrics
from usher_signaling.peer_regions.client import Passed, PeerAnswer
from usher_signaling.peer_regions.itinerary import HERE, itinerary
from usher_signaling.peer_regions.origin import Origin
from usher_signaling.peer_regions.peers import PassedOverError, Peers
from usher_signaling.regions import Regions
from usher_signaling.settings import SignalingSettings

log = structlog.get_logger()

TOLD_S = 60.0
"""Between two lines of the log about the seal keys of one region."""


@dataclass(frozen=True, slots=True)
class Steering:
    """Places calls. `now` gives monotonic seconds."""

    settings: SignalingSettings
    regions: Regions
    calls: Calls
    peers: Peers
    metrics: Metrics
    now: Callable[[], float]
    _told: dict[str, float] = field(default_factory=dict)

    async def place(
        self, caller: Caller, offer: Offer, passed: Callable[[], Passed], origin: Origin | None
    ) -> PlacedCall | PeerAnswer:
        """Get an offer answered, here or by a peer, which gets the request that `passed` makes. Raises ApiError."""
        if origin is not None:
            within = self.settings.answer_deadline if origin.within is None else origin.within
            return await self.calls.place(caller, replace(offer, within=within, request_id=origin.request_id))
        try:
            return await self._place_somewhere(caller, offer, passed)
        except ApiError as error:
            if error.code == "no_transceiver":
                self.metrics.placements.labels("nobody").inc()
                log.warning("nobody took the call", tenant=caller.tenant, why=error.message)
            raise

    async def _place_somewhere(
        self, caller: Caller, offer: Offer, passed: Callable[[], Passed]
    ) -> PlacedCall | PeerAnswer:
        table, settings = self.peers.table(), self.settings
        places = itinerary(self.regions, table, offer.region, here_first=settings.region_here_first)
        deadline = self.now() + settings.answer_deadline
        refusal: ApiError | None = None
        for place in places:
            left = deadline - self.now()
            if left < MIN_ATTEMPT_S:
                break
            share = left if place == places[-1] else left / 2
            try:
                if place == HERE:
                    return await self.calls.place(caller, replace(offer, within=share))
                answer = await self.peers.offer(place, passed(), offer.region, min(share, settings.region_timeout))
                self._look_at_seal(place, caller, answer)
                return answer
            except PassedOverError as error:
                refusal = refusal or error.refusal
            except ApiError as error:
                if error.status != 503:
                    raise
                refusal = error  # our own words are of more use to our operators
        raise _last_word(refusal)

    def _look_at_seal(self, region: str, caller: Caller, answer: PeerAnswer) -> None:
        """Tell the log of a region whose call ids are closed to us: nobody could look at its calls from here."""
        try:
            self.calls.open(caller, answer.headers.get("Location", "").rpartition("/")[2])
        except ApiError:
            now = self.now()
            if now - self._told.get(region, float("-inf")) >= TOLD_S:
                self._told[region] = now
                log.warning(
                    "another region sealed a call id that no key here opens: give its seal keys by --region-keys-file",
                    region=region,
                )


def _last_word(refusal: ApiError | None) -> ApiError:
    if refusal is not None and refusal.status == 503:
        return refusal
    return unavailable("no_transceiver", "No region takes this call now. Try again soon.")
