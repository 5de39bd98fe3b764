"""Who looks on at a call's events, and what each of them gets to see, without I/O.

Rules:
* Each gets a copy of what goes to the client and, if it asks for it, of what clients and observers send; without what
  its policy keeps private.
* There is a bound on how many look on. A slow one is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from usher_core.event_policy import EventPolicy
from usher_transceiver.event_policy import Event, shown


class Observer(Protocol):
    """Somebody who looks on: side-band, demo page, tests."""

    def offer(self, text: str) -> bool:
        """Take an event, now; False when there is no room, and the observer is dropped."""

    def dropped(self, reason: str) -> None:
        """No further event will come."""


@dataclass(frozen=True, slots=True)
class _View:
    """Whether an observer wants to see what clients and observers send, and what it may see."""

    client_events: bool
    policy: EventPolicy


class Audience:
    """The observers of one call, `most` at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._views: dict[Observer, _View] = {}

    def __len__(self) -> int:
        return len(self._views)

    @property
    def with_private_fields(self) -> int:
        """For how many an event may have to be written again, since they see only a part of it."""
        return sum(1 for view in self._views.values() if view.policy.private)

    def join(self, observer: Observer, policy: EventPolicy, *, client_events: bool) -> bool:
        """Let somebody look on from now on; False when too many do."""
        if len(self._views) >= self._most:
            return False
        self._views[observer] = _View(client_events, policy)
        return True

    def leave(self, observer: Observer) -> None:
        """Forget an observer; harmless to call twice."""
        self._views.pop(observer, None)

    def show(self, event: Event, text: str, *, of_client: bool = False) -> None:
        """Show an event, which was written as `text`; `of_client`: a client or an observer sent it."""
        for observer, view in tuple(self._views.items()):
            is_wanted = view.client_events or not of_client
            if is_wanted and not observer.offer(shown(view.policy, event, text)):
                self.leave(observer)
                observer.dropped("too_slow")

    def dismiss(self, reason: str) -> None:
        """The call has ended."""
        views, self._views = self._views, {}
        for observer in views:
            observer.dropped(reason)
