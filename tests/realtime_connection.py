"""One connection of the Realtime server for tests: sends what its conversation says, at the pace and with the faults
that its behaviour wants, and notes everything that passes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import numpy as np
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed

from tests.realtime_audio import Samples
from tests.realtime_conversation import Conversation
from tests.realtime_response import DEFAULT_REPLIES, Dialect, Event, Reply, Response

WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a connection behaves from its first byte on.

    Args:
        replies: what responses say, one after another, and then from the beginning again.
        dialect: names of events.
        speed: how much faster than real time audio is sent.
        late_deltas: audio that still comes after what cancels a response.
        refuse: the connection, with this status.
        greeting_delay_s: before `session.created`.
        reply_delay_s: before `response.created`.
        close_after_s: break off with code 1011 after so much audio of a response.
        reads: False: takes nothing from the socket, so what the client sends piles up.
    """

    replies: Sequence[Reply] = DEFAULT_REPLIES
    dialect: Dialect = Dialect.GA
    speed: float = 8.0
    late_deltas: int = 0
    refuse: HTTPStatus | None = None
    greeting_delay_s: float = 0.0
    reply_delay_s: float = 0.0
    close_after_s: float | None = None
    reads: bool = True


@dataclass(frozen=True, slots=True)
class Noted:
    """An event that passed, and when: monotonic seconds."""

    at: float
    event: Event


class Connection:
    """One connection of a client. Made by the server; a test reads it, and may send and break."""

    def __init__(self, socket: ServerConnection, behaviour: Behaviour) -> None:
        assert socket.request is not None
        self.query = parse_qs(urlsplit(socket.request.path).query)
        self.headers: Headers = socket.request.headers
        model = self.query.get("model", ["gpt-realtime"])[0]
        self.conversation = Conversation(behaviour.replies, behaviour.dialect, model, behaviour.late_deltas)
        self.received: list[Noted] = []
        self.sent: list[Noted] = []
        self.garbage: list[str | bytes] = []
        """What the client sent that is no event."""
        self.opened_at = time.monotonic()
        self.closed_at: float | None = None
        self.close_code: int | None = None
        self._audio: list[Samples] = []
        self._socket = socket
        self._behaviour = behaviour
        self._outgoing: asyncio.Queue[Event | str | bytes] = asyncio.Queue()
        self._reads = asyncio.Event()
        if behaviour.reads:
            self._reads.set()

    # What a test sees

    def received_of(self, *types: str) -> list[Event]:
        return [noted.event for noted in self.received if noted.event.get("type") in types]

    def sent_of(self, *types: str) -> list[Event]:
        return [noted.event for noted in self.sent if noted.event.get("type") in types]

    @property
    def audio(self) -> Samples:
        """All that was appended, decoded."""
        return np.concatenate([np.zeros(0, np.int16), *self._audio])

    async def wait_for(self, event_type: str, count: int = 1, seconds: float = WAIT_S) -> list[Event]:
        """Wait until the client has sent so many of these; return them."""
        await wait_until(lambda: len(self.received_of(event_type)) >= count, f"{count} × {event_type}", seconds)
        return self.received_of(event_type)

    async def wait_until_closed(self, seconds: float = WAIT_S) -> float:
        """Wait until the connection is closed; return when it was."""
        await wait_until(lambda: self.closed_at is not None, "the connection is closed", seconds)
        assert self.closed_at is not None
        return self.closed_at

    # What a test does

    def send(self, message: Event | str | bytes) -> None:
        """Send an event, or anything else: garbage is a text or bytes."""
        self._outgoing.put_nowait(message)

    def respond(self) -> None:
        """Begin a response unasked, as after `response.create`."""
        self._act(self.conversation.on_event({"type": "response.create"}))

    def pause_reading(self) -> None:
        """Stall: what the client sends fills the buffers between us and stays there."""
        self._reads.clear()

    def resume_reading(self) -> None:
        self._reads.set()

    async def close(self, code: int = 1011, reason: str = "") -> None:
        await self._socket.close(code, reason)

    def abort(self) -> None:
        """Break the connection without a closing handshake."""
        self._socket.transport.abort()

    # What the server runs

    async def serve(self) -> None:
        """Talk until the connection closes."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                sending = self._tasks.create_task(self._send())
                await asyncio.sleep(self._behaviour.greeting_delay_s)
                self.send(self.conversation.greeting())
                await self._receive()
                sending.cancel()
        except* ConnectionClosed:
            pass
        finally:
            self.closed_at = time.monotonic()
            self.close_code = self._socket.close_code

    async def _receive(self) -> None:
        while True:
            await self._reads.wait()
            message = await self._socket.recv()
            try:
                event = json.loads(message)
                assert isinstance(event, dict)
            except (ValueError, AssertionError):
                self.garbage.append(message)
                self.send(self.conversation.error("invalid_json", "The message is no JSON object."))
                continue
            self.received.append(Noted(time.monotonic(), event))
            if event.get("type") == "input_audio_buffer.append":
                with contextlib.suppress(ValueError):
                    audio_format = self.conversation.audio_format("input")
                    self._audio.append(audio_format.decode(base64.b64decode(event["audio"])))
            self._act(self.conversation.on_event(event))

    def _act(self, events: list[Event]) -> None:
        for event in events:
            self.send(event)
        response = self.conversation.response
        if response is not None and not response.is_taken:
            response.is_taken = True
            self._tasks.create_task(self._reply(response))

    async def _reply(self, response: Response) -> None:
        await asyncio.sleep(self._behaviour.reply_delay_s)
        breaks_off = self._behaviour.close_after_s
        sent_ms = 0
        for step in response.steps():
            self.send(step.event)
            sent_ms += round(step.audio_s * 1000)
            if breaks_off is not None and sent_ms >= breaks_off * 1000:
                await self._drained()
                await self.close()
            if step.audio_s:
                await asyncio.sleep(step.audio_s / self._behaviour.speed)

    async def _drained(self) -> None:
        await wait_until(self._outgoing.empty, "everything is sent")

    async def _send(self) -> None:
        while True:
            message = await self._outgoing.get()
            if isinstance(message, dict):
                self.sent.append(Noted(time.monotonic(), message))
                await self._socket.send(json.dumps(message))
            else:
                await self._socket.send(message)


async def wait_until(condition: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
    """Look every 5 ms. Fails, naming `what`, when the condition does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.005)
