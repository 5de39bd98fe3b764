"""Between a data path and Redis: look-ups, writing behind, and loading at the start (docs/wire.md section 9).

Rules:
* Look-ups: all that is asked for at one moment goes in one command of at most 256 names, and at most 4 commands are
  under way. What would be more, and everything while Redis is away, is answered at once with "not known"; so packets
  never wait for a Redis that is known to be away. How many are asked for is limited before (`waiting`).
* Writing behind: the newest mapping of each client waits, at most 20,000 in all, for a pipeline of 256; one pipeline at
  a time. What waited until its next refresh is due is not written any more: the flow may be gone.
* Loading: once, when Redis first answers, in the background: at most as many as there may be flows, within 10 s.
* A fault of ours is logged, and the rest begins anew after a second: Redis only makes things quicker.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog
from prometheus_client.registry import Collector

from usher_core.errors import RemoteError
from usher_core.keys import KeyFile
from usher_relay.engine.interface import StoreDoor
from usher_relay.exchange import REFRESH
from usher_relay.store.counters import Lookup, Refusal, StoreCounters, Write
from usher_relay.store.mapping import LIFE, Mappings, name_of, names_of_listener, path_key_of
from usher_relay.store.metrics import StoreCollector
from usher_relay.store.redis_store import FAILURES, LOOKUPS_AT_ONCE, RedisStore

log = structlog.get_logger()

NAMES_AT_ONCE = 256
QUEUE = 20_000
WRITE_EVERY = 0.25
LOAD_WITHIN = 10.0
LOAD_TRIES = 3
AGAIN_AFTER = 1.0


class Recovery:
    """Keeps mappings for one data path.

    Args:
        door: the data path.
        store: Redis.
        mappings: makes and opens them; replaced with `set_keys`.
        listeners: ids of the listeners whose mappings are loaded at the start.
        max_loaded: most of them.
        counters: what it does.
        now: monotonic seconds.
        unix: Unix seconds.
    """

    def __init__(
        self,
        door: StoreDoor,
        store: RedisStore,
        mappings: Mappings,
        listeners: Sequence[int],
        max_loaded: int,
        counters: StoreCounters,
        now: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        self._door = door
        self._store = store
        self._mappings = mappings
        self._listeners = listeners
        self._max_loaded = max_loaded
        self._counters = counters
        self._now = now
        self._unix = unix
        self._queue: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        """Path key → (route, when it was named), the oldest first."""
        self._lookups: set[asyncio.Task[None]] = set()

    @property
    def collector(self) -> Collector:
        """The metrics."""
        return StoreCollector(self._counters, self._store)

    def set_keys(self, file: KeyFile) -> None:
        """Swap the keys. Raises LocalError when there is none for mappings; the old ones then stay."""
        self._mappings = Mappings(file)

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._door.fileno(), self.serve_questions)
        try:
            await asyncio.gather(*map(_forever, (self._store.keep, self._write_behind, self._load)))
        finally:
            loop.remove_reader(self._door.fileno())
            for task in self._lookups:
                task.cancel()

    def serve_questions(self) -> None:
        """Look up what the data path asks for now."""
        questions = self._door.take_questions()
        for start in range(0, len(questions), NAMES_AT_ONCE):
            asked = questions[start : start + NAMES_AT_ONCE]
            if not self._store.is_up:
                self._answer_none(asked, Lookup.AWAY)
            elif len(self._lookups) >= LOOKUPS_AT_ONCE:
                self._answer_none(asked, Lookup.BUSY)
            else:
                task = asyncio.create_task(self._look_up(asked))
                self._lookups.add(task)
                task.add_done_callback(self._lookups.discard)

    def _answer_none(self, asked: Sequence[bytes], why: Lookup) -> None:
        self._counters.lookups[why] += len(asked)
        self._door.answer([(path_key, None) for path_key in asked])

    async def _look_up(self, asked: Sequence[bytes]) -> None:
        values = await self._store.look_up([name_of(path_key) for path_key in asked])
        if values is None:
            self._answer_none(asked, Lookup.FAILED)
            return
        answers: list[tuple[bytes, bytes | None]] = []
        for path_key, value in zip(asked, values, strict=True):
            route = None if value is None else self._open(path_key, value)
            result = Lookup.FOUND if route is not None else Lookup.MISSED if value is None else Lookup.REFUSED
            self._counters.lookups[result] += 1
            answers.append((path_key, route))
        self._door.answer(answers)

    def _open(self, path_key: bytes, value: bytes) -> bytes | None:
        try:
            return self._mappings.open(path_key, value, self._unix())
        except RemoteError as error:
            self._counters.refusals[Refusal(error.reason)] += 1
            return None

    async def _write_behind(self) -> None:
        while True:
            self._take_named()
            while self._queue and self._store.takes_writes:
                if not await self._write_some():
                    break
                self._take_named()
            self._counters.queued = len(self._queue)
            await asyncio.sleep(WRITE_EVERY)

    def _take_named(self) -> None:
        now = self._now()
        for path_key, route in self._door.take_named():
            self._queue.pop(path_key, None)
            self._queue[path_key] = route, now
        while len(self._queue) > QUEUE:
            self._queue.popitem(last=False)
            self._counters.writes[Write.LOST] += 1

    async def _write_some(self) -> bool:
        """Write what has waited longest; return whether Redis took it."""
        now, unix = self._now(), self._unix()
        taken: list[tuple[bytes, bytes, float]] = []
        entries: list[tuple[bytes, bytes]] = []
        while self._queue and len(entries) < NAMES_AT_ONCE:
            path_key, (route, named_at) = self._queue.popitem(last=False)
            value = self._mappings.seal(path_key, route, unix)
            if now - named_at >= REFRESH:
                self._counters.writes[Write.LATE] += 1
            elif value is None:
                self._counters.writes[Write.LOST] += 1
            else:
                taken.append((path_key, route, named_at))
                entries.append((name_of(path_key), value))
        if not entries:
            return True
        count = await self._store.write(entries, LIFE)
        if count is None:
            self._put_back(taken)
            return False
        self._counters.writes[Write.WRITTEN] += count
        self._counters.writes[Write.FAILED] += len(entries) - count
        return True

    def _put_back(self, taken: Sequence[tuple[bytes, bytes, float]]) -> None:
        for path_key, route, named_at in reversed(taken):
            self._queue[path_key] = route, named_at
            self._queue.move_to_end(path_key, last=False)

    async def _load(self) -> None:
        for _ in range(LOAD_TRIES):
            await self._store.until_up()
            try:
                async with asyncio.timeout(LOAD_WITHIN):
                    self._counters.loaded = 0  # what a try before has brought comes again
                    for listener in self._listeners:
                        await self._load_listener(listener)
            except FAILURES as error:
                log.info("mappings were loaded in part", count=self._counters.loaded, error=type(error).__name__)
                await asyncio.sleep(AGAIN_AFTER)
            else:
                log.info("mappings were loaded", count=self._counters.loaded)
                break
        await asyncio.Event().wait()

    async def _load_listener(self, listener: int) -> None:
        async for piece in self._store.scan(names_of_listener(listener)):
            mappings: list[tuple[bytes, bytes]] = []
            for name, value in piece:
                path_key = path_key_of(name)
                route = None if path_key is None else self._open(path_key, value)
                if path_key is not None and route is not None:
                    mappings.append((path_key, route))
            room = self._max_loaded - self._counters.loaded
            self._door.load(mappings[:room])
            self._counters.loaded += len(mappings[:room])
            if len(mappings) >= room:
                return


async def _forever(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        try:
            await work()
        except Exception:  # calls go on without Redis, and so without this
            log.exception("a fault of ours in the recovery by Redis; it begins anew")
        await asyncio.sleep(AGAIN_AFTER)
