"""The backend of one call: the bridge, its WebSocket, and the timer that follows what is played."""

from __future__ import annotations

import asyncio
from typing import Literal

import structlog

from usher_transceiver.backends.protocol import AudioFrame, AudioKind, BackendCall, BackendConfig, Event, ForwardingCall
from usher_transceiver.backends.realtime.bridge import Bridge
from usher_transceiver.backends.realtime.connection import Connection
from usher_transceiver.backends.realtime.counters import RealtimeCounters
from usher_transceiver.backends.realtime.outbox import Outbox
from usher_transceiver.backends.realtime.settings import RealtimeSettings
from usher_transceiver.backends.realtime.upstream import Upstream

log = structlog.get_logger()


class RealtimeBackends:
    """Makes the backend of each call; holds what they share. Raises LocalError when a setting is missing or wrong."""

    def __init__(self, settings: RealtimeSettings) -> None:
        self.counters = RealtimeCounters()
        self._upstream = Upstream(settings)

    def __call__(self, config: BackendConfig) -> RealtimeBackend:
        """Return the backend of a call. What it needs to know are settings; the configuration is for others."""
        return RealtimeBackend(self._upstream, self.counters)


class RealtimeBackend:
    """See the module, and `protocol.ForwardingBackend`."""

    audio: AudioKind = "pcm"
    forwards_events: Literal[True] = True

    def __init__(self, upstream: Upstream, counters: RealtimeCounters) -> None:
        self._upstream = upstream
        self._counters = counters
        self._outbox = Outbox(counters)
        self._bridge: Bridge | None = None
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    async def start(self, call: BackendCall) -> None:
        """Begin to connect, and return: what the caller says meanwhile waits in the outbox."""
        assert isinstance(call, ForwardingCall)  # what a ForwardingBackend is given
        self._loop = asyncio.get_running_loop()
        target = self._upstream.target(call.given_session.get("model"))
        truncates = self._upstream.truncates
        self._bridge = Bridge(call, self._outbox, self._counters, truncates=truncates, secrets=target.secrets)
        self._connection = Connection(
            target,
            self._bridge,
            self._outbox,
            self._counters,
            self._loop.time,
            self._changed,
            log.bind(session=call.id),
        )
        self._bridge.begin(call.given_session)
        self._connection.start()

    def on_audio(self, frame: AudioFrame) -> None:
        if self._bridge is not None:
            self._bridge.on_frame(self._loop.time(), frame)
            self._changed()

    def on_event(self, event: Event) -> bool:
        return False

    def on_client_event(self, event: Event, text: str) -> None:
        if self._bridge is not None:
            self._bridge.on_client_event(self._loop.time(), event, text)
            self._changed()

    async def close(self, reason: str) -> None:
        bridge, self._bridge = self._bridge, None
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            await self._connection.close()
        if bridge is not None:
            bridge.forget()
        self._outbox.clear()

    def _changed(self) -> None:
        if self._connection is not None:
            self._connection.wake()
        look_in = self._bridge.look_in if self._bridge is not None else None
        if look_in is not None and self._timer is None:
            self._timer = self._loop.call_later(look_in, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._bridge is not None:
            self._bridge.look(self._loop.time())
            self._changed()
