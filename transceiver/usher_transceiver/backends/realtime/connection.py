"""The WebSocket of one call: connects, reads, writes, and tells the bridge. All that is decided is decided there.

Rules:
* A reader and a writer, each a task: what one waits for holds up neither the other nor the call's audio.
* While the bridge wants no more, the socket is not read; TCP then slows the server down.
* A message that can't be written within `STALL_LIMIT_S`, or that for `FULL_LIMIT_S` nothing of what came is played or
  passed on while there is no room for more, ends it.
* Redirects are not followed: the key is for this server.
* Neither log nor fault names address, key or header; not even the library may log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import cast

from structlog.typing import FilteringBoundLogger
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from usher_shell.silent_logger import silent_logger
from usher_transceiver.backends.realtime import faults
from usher_transceiver.backends.realtime.bridge import Bridge
from usher_transceiver.backends.realtime.budget import Share
from usher_transceiver.backends.realtime.counters import RealtimeCounters
from usher_transceiver.backends.realtime.faults import Fault
from usher_transceiver.backends.realtime.outbox import Outbox
from usher_transceiver.backends.realtime.paced import MAX_MESSAGE, PacedConnection
from usher_transceiver.backends.realtime.upstream import Target

STALL_LIMIT_S = 20.0
"""A network that comes back within it costs the audio beyond 5 s, not the call."""
STALL_LOOK_S = 1.0
"""A timer for each message would cost more than the message."""
FULL_LIMIT_S = 30.0
PING_S = 20.0
"""Balancers cut what is silent for a minute. Nobody waits for the pong: a reader that is held back would not see it."""
CLOSE_LIMIT_S = 1.0
MAX_FRAMES = 4
"""Messages read ahead, each of which may be as large."""


class _Connect(connect):
    """Follows no redirects."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Connection:
    """See the module.

    Args:
        target: where to, and with what.
        bridge: is told what comes, and whether to read on.
        outbox: what is to be sent.
        counters: of the process.
        clock: seconds, monotonic.
        changed: called after something came, so that timers can be set.
        log: names the call.
    """

    def __init__(
        self,
        target: Target,
        bridge: Bridge,
        outbox: Outbox,
        counters: RealtimeCounters,
        clock: Callable[[], float],
        changed: Callable[[], None],
        log: FilteringBoundLogger,
    ) -> None:
        self._target = target
        self._bridge = bridge
        self._outbox = outbox
        self._counters = counters
        self._clock = clock
        self._changed = changed
        self._log = log
        self._may_write = asyncio.Event()
        self._may_read = asyncio.Event()
        self._writing_since: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._outcome = "abandoned"

    def start(self) -> None:
        """Begin to connect. Needs a running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._count)

    def wake(self) -> None:
        """There may be something to send, or room for what comes."""
        self._may_write.set()
        self._may_read.set()

    async def close(self) -> None:
        """The call is over: close at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        began = self._clock()
        try:
            socket = await self._open()
        except Exception as error:  # noqa: BLE001 - resolvers, TLS, proxies and the library raise what they like
            self._log.debug("connecting failed", problem=type(error).__name__)
            self._lost(fault_of(error))
            return
        self._counters.connects.note(self._clock() - began)
        self._outcome = "completed"
        try:
            self._lost(await self._talk(socket))
        finally:
            await _close(socket)

    def _lost(self, fault: Fault) -> None:
        self._outcome = fault.outcome
        self._log.warning("the Realtime server is lost", why=fault.code)
        self._bridge.on_upstream_lost(self._clock(), fault)
        self._changed()

    def _count(self, _task: asyncio.Task[None]) -> None:
        self._counters.calls[self._outcome] += 1

    async def _open(self) -> PacedConnection:
        target = self._target
        paced = partial(PacedConnection, share=Share(self._counters), waiting_bytes=lambda: self._bridge.waiting_bytes)
        socket = await _Connect(
            target.url,
            additional_headers=target.headers,
            ssl=target.tls,
            open_timeout=target.connect_limit,
            close_timeout=CLOSE_LIMIT_S,
            ping_interval=PING_S,
            ping_timeout=None,
            max_size=MAX_MESSAGE,
            max_queue=MAX_FRAMES,
            compression=None,
            logger=silent_logger(),
            # A class for the library's types, which calls it.
            create_connection=cast("type[ClientConnection]", paced),
        )
        assert isinstance(socket, PacedConnection)
        return socket

    async def _talk(self, socket: PacedConnection) -> Fault:
        parts = self._read(socket), self._write(socket), self._watch_writing()
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # What the server said last came before the writer found it gone.
            if tasks[0] not in done and any(task.result().outcome == "closed" for task in done):
                return await tasks[0]
            return next(task.result() for task in tasks if task.done())
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this call only
            self._log.error("the Realtime bridge failed", exc_info=error)
            return faults.INTERNAL
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, socket: PacedConnection) -> Fault:
        while True:
            if not self._bridge.wants_more and not await self._has_room():
                return faults.OVERFULL
            try:
                message = await socket.take()
            except ConnectionClosed as error:
                return faults.closed(error.rcvd.code if error.rcvd is not None else None)
            try:
                # The library itself would end the connection for bytes that are no text.
                text = message if isinstance(message, str) else message.decode()
            except UnicodeDecodeError:
                self._counters.dropped_bytes["bad_event"] += len(message)
                continue
            self._bridge.on_upstream(self._clock(), text)
            self._changed()

    async def _has_room(self) -> bool:
        """Wait for room; False when nothing of what waits has gone for too long."""
        while not self._bridge.wants_more:
            if not await self._gets_less(self._bridge.waiting_bytes):
                return False
        return True

    async def _gets_less(self, waiting: int) -> bool:
        try:
            async with asyncio.timeout(FULL_LIMIT_S):
                while not self._bridge.wants_more and self._bridge.waiting_bytes >= waiting:
                    self._may_read.clear()
                    await self._may_read.wait()
        except TimeoutError:
            return False
        return True

    async def _write(self, socket: ClientConnection) -> Fault:
        while True:
            text = self._outbox.take()
            if text is None:
                self._may_write.clear()
                await self._may_write.wait()
                continue
            self._writing_since = self._clock()
            try:
                await socket.send(text)
            except ConnectionClosed as error:
                return faults.closed(error.rcvd.code if error.rcvd is not None else None)
            self._writing_since = None
            self._counters.events["to_upstream"] += 1

    async def _watch_writing(self) -> Fault:
        while True:
            await asyncio.sleep(STALL_LOOK_S)
            if self._writing_since is not None and self._clock() - self._writing_since >= STALL_LIMIT_S:
                return faults.STALLED


def fault_of(error: Exception) -> Fault:
    """Return what to say of an error while connecting; nothing that it quotes."""
    if isinstance(error, InvalidStatus):
        return faults.refused(error.response.status_code, _code_in(error.response.body))
    if isinstance(error, TimeoutError):
        return faults.TIMEOUT
    if isinstance(error, InvalidHandshake):
        return faults.NO_WEBSOCKET
    return faults.UNREACHABLE


def _code_in(body: bytes | bytearray | None) -> object:
    """Return the `code`, or else the `type`, of an error body as OpenAI's."""
    try:
        error = json.loads(body or b"")["error"]
        return error.get("code") or error.get("type")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


async def _close(socket: PacedConnection) -> None:
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await socket.close()
    except (TimeoutError, OSError):
        pass
    finally:
        socket.transport.abort()
        socket.forget()
