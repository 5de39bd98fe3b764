"""A backend that is one coroutine: `async def run(call)` hears, speaks and thinks for as long as the call lasts.

Rules:
* `run` begins while the client connects. At hang-up it is cancelled, and then has as long as `close` has (5 s).
* When it returns, what is queued is played to its end, then the call ends. When it raises, the client gets one `error`
  event that says no more than that, and this call ends, no other.
* Audio waits for `run` up to `MAX_UNHEARD_MS`; then the oldest is dropped, and counted. Events wait up to
  `MAX_EVENTS_BYTES`; a further one is answered with an `error` event.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Generic, TypeVar

import structlog

from usher_transceiver.backends.faults import log_fault
from usher_transceiver.backends.protocol import AudioFrame, AudioKind, BackendCall, BackendConfig, Event
from usher_transceiver.backends.watch import BackendWatch
from usher_transceiver.error_event import error_event
from usher_transceiver.media.frame import FRAME_MS, FRAME_SECONDS, SAMPLE_RATE

MAX_UNHEARD_MS: Final = 10_000
MAX_EVENTS_BYTES: Final = 1_048_576
"""As JSON; 4 of the largest."""
MAX_AHEAD_MS: Final = 60_000
"""Half of what the stream's own queue holds, so that nothing is ever dropped there."""
LINGER_S: Final = 0.3
"""Between the last word and the hang-up: the client's jitter buffer still holds it."""
_BYTES_PER_MS: Final = 2 * SAMPLE_RATE // 1000
_PIECE_BYTES: Final = 100 * _BYTES_PER_MS
NO_ROOM: Final = "The backend has not taken the events before this one."
FAILED: Final = error_event("backend_failed", "The backend failed. The call ends.", fault="server_error")

log = structlog.get_logger()
Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """What waits for the coroutine: an async iterator, bounded by the sizes of its items, which ends with the call."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[tuple[Item, int]] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._closed = False
        self.is_read = False
        """Whether anybody ever asked for an item."""

    def __aiter__(self) -> Inbox[Item]:
        return self

    async def __anext__(self) -> Item:
        self.is_read = True
        if self._items:
            # One that has fallen behind catches up item by item, and not in one step that holds up all calls.
            await asyncio.sleep(0)
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        item, size = self._items.popleft()
        self._size -= size
        return item

    def offer(self, item: Item, size: int) -> bool:
        """Take an item; False when there is no room. What comes after the end is nobody's."""
        if self._closed:
            return True
        if self._size + size > self._limit:
            return False
        self._items.append((item, size))
        self._size += size
        self._changed.set()
        return True

    def drop_oldest(self) -> int:
        """Make room; return the size of what is lost."""
        _, size = self._items.popleft()
        self._size -= size
        return size

    def close(self) -> None:
        """Nothing comes any more; what waits can still be taken."""
        self._closed = True
        self._changed.set()


class Call:
    """One call, in the hands of a coroutine. Belongs to the event loop's thread, as the tasks of `run` do."""

    def __init__(
        self,
        call: BackendCall,
        config: BackendConfig,
        audio: Inbox[AudioFrame],
        events: Inbox[Event],
        is_over: Callable[[], bool],
    ) -> None:
        self.config: Final = config
        """The backend's part of the configuration, as it was given."""
        self.audio: Final = audio
        """`async for frame in call.audio`: 20 ms of what the client says, in order, silence included."""
        self.events: Final = events
        """`async for event in call.events`: the JSON events of the client, in order."""
        self._call = call
        self._is_over = is_over
        self._clears = 0

    @property
    def id(self) -> str:
        """The session id; safe for logs."""
        return self._call.id

    @property
    def session(self) -> Mapping[str, Any]:
        """The client's session object (model, voice, instructions, ...), with every ``session.update`` merged in."""
        return self._call.session

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the creator of the call attached to it."""
        return self._call.metadata

    @property
    def queued_ms(self) -> int:
        """Audio that waits to be played."""
        return self._call.queued_ms

    @property
    def played_ms(self) -> int:
        """Audio sent to the client since the call began; silence between does not count."""
        return self._call.played_ms

    async def play(self, pcm: bytes, *, ahead_ms: int = MAX_AHEAD_MS) -> int:
        """Queue s16le mono 24 kHz PCM of any length; return the milliseconds queued, when all of it is.

        It waits while `ahead_ms` or more is queued: nothing is dropped for want of room. `clear` ends the wait, and
        what is left of `pcm` is dropped then.
        """
        clears, queued = self._clears, 0
        ahead_ms = max(FRAME_MS, min(ahead_ms, MAX_AHEAD_MS))
        for at in range(0, len(pcm), _PIECE_BYTES):
            await self._until(lambda: self.queued_ms < ahead_ms or self._clears != clears)
            if self._clears != clears:
                break
            piece = pcm[at : at + _PIECE_BYTES]
            self._call.play(piece)
            queued += len(piece)
        return queued // _BYTES_PER_MS

    async def wait_played(self) -> None:
        """Wait until nothing is queued any more."""
        await self._until(lambda: not self.queued_ms)

    async def _until(self, condition: Callable[[], bool]) -> None:
        # The queue tells nobody when it has shrunk.
        while not (self._is_over() or condition()):  # noqa: ASYNC110
            await asyncio.sleep(FRAME_SECONDS)

    def clear(self) -> int:
        """Drop what is queued, and what `play` waits with, for an interruption; return the milliseconds dropped."""
        self._clears += 1
        return self._call.clear()

    def send_event(self, event: Event) -> None:
        """Send a JSON event to the client's data channel; kept (bounded) until the channel is open."""
        self._call.send_event(event)

    def end(self, reason: str) -> None:
        """Hang up at once. `reason` is a short word for the log; `run` is cancelled at its next `await`."""
        self._call.end(reason)


Run = Callable[[Call], Coroutine[Any, Any, None]]


class CoroutineBackend:
    """The `Backend` that runs one coroutine per call.

    Args:
        run: somebody's code.
        name: of the backend, for the log.
        watch: of the process.
        config: handed to `run`.
    """

    audio: AudioKind = "pcm"

    def __init__(self, run: Run, name: str, watch: BackendWatch, config: BackendConfig) -> None:
        self._run = run
        self._name = name
        self._watch = watch
        self._config = config
        self._frames: Inbox[AudioFrame] = Inbox(MAX_UNHEARD_MS)
        self._events: Inbox[Event] = Inbox(MAX_EVENTS_BYTES)
        self._call: BackendCall | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def start(self, call: BackendCall) -> None:
        self._call = call
        self._task = asyncio.create_task(self._main(call), name=f"backend of {call.id}")

    async def _main(self, low: BackendCall) -> None:
        call = Call(low, self._config, self._frames, self._events, lambda: self._closing)
        try:
            await self._watch.run(self._run(call), call.id, self._name)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            # A cancellation that is none of ours came out of something that `run` awaited: it failed.
            if self._closing and isinstance(error, asyncio.CancelledError):
                raise
            log_fault(log.bind(session=call.id, backend=self._name), "the backend failed", error)
            self._let_go()
            low.send_event(FAILED)
            low.end_when_told("backend_failed")
        else:
            self._let_go()
            await call.wait_played()
            if not self._closing:
                await asyncio.sleep(LINGER_S)
            low.end_when_told("returned")

    def _let_go(self) -> None:
        """Nobody listens any more."""
        self._frames.close()
        self._events.close()

    def on_audio(self, frame: AudioFrame) -> None:
        while not self._frames.offer(frame, FRAME_MS):
            lost = self._frames.drop_oldest()
            # A backend that never listens misses nothing.
            self._watch.unheard_ms += lost if self._frames.is_read else 0

    def on_event(self, event: Event) -> bool:
        """Every type is known: what `run` makes of it is its own affair."""
        if not self._events.offer(event, len(json.dumps(event))) and self._call is not None:
            self._watch.refused_events += 1
            self._call.send_event(error_event("too_many_events", NO_ROOM, event))
        return True

    async def close(self, reason: str) -> None:
        self._closing = True
        self._let_go()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._call = self._task = None
