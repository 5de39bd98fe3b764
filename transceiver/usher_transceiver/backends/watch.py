"""What backends do to the one loop that carries everybody's audio: whose code held it up, and what was left unheard.

A callback, or a step of a coroutine between two of its `await`s, should be over within a few milliseconds: all calls of
the process wait for it. One that takes longer than `SLOW_S` is counted; the log names its call, once in `LOG_EVERY_S`.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast

import structlog

SLOW_S: Final = 0.05
"""Beyond it the next tick is late by more than two frames, and every call of the process has a gap."""
LOG_EVERY_S: Final = 10.0
CALLBACKS: Final = ("on_audio", "on_event", "on_client_event", "run")

log = structlog.get_logger()
Result = TypeVar("Result")

watched_by: "ContextVar[tuple[BackendWatch, str, str]]" = ContextVar("watched_by")
"""Set where somebody's coroutine runs, and so in the tasks that it starts: session and backend."""


class BackendWatch:
    """One per process. `clock`: seconds, monotonic, and not standing still within a callback."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock: Final = clock
        self.slow: Counter[str] = Counter(dict.fromkeys(CALLBACKS, 0))
        """By callback; a step of `run` counts as one."""
        self.unheard_ms = 0
        """Audio that waited for a coroutine until it had to make room for newer."""
        self.refused_events = 0
        """Events of clients for which there was no room before a coroutine."""
        self._logged_at: float | None = None
        self._unlogged = 0

    async def run(self, of: Coroutine[Any, Any, Result], session: str, backend: str) -> Result:
        """Run somebody's coroutine, and look at each step of it; `watched_tasks.py` does so for the tasks it starts."""
        watched_by.set((self, session, backend))
        return await WatchedCoroutine(of, self, session, backend)

    def took(self, began: float, callback: str, session: str, backend: str) -> None:
        """A callback that began at `began` is over."""
        now = self.clock()
        if now - began < SLOW_S:
            return
        self.slow[callback] += 1
        if self._logged_at is not None and now - self._logged_at < LOG_EVERY_S:
            self._unlogged += 1
            return
        log.warning(
            "a backend held up all calls",
            session=session,
            backend=backend,
            callback=callback,
            ms=round((now - began) * 1000),
            unlogged=self._unlogged,
        )
        self._logged_at, self._unlogged = now, 0


class WatchedCoroutine(Coroutine[Any, Any, Result]):
    """Runs a coroutine and looks at the time that each of its steps takes. To a task it is what it runs."""

    def __init__(self, of: Coroutine[Any, Any, Result], watch: BackendWatch, session: str, backend: str) -> None:
        self._of = of
        self._watch = watch
        self._names = session, backend

    def send(self, value: Any) -> Any:
        began = self._watch.clock()
        try:
            return self._of.send(value)
        finally:
            self._watch.took(began, "run", *self._names)

    def throw(self, *error: Any) -> Any:
        began = self._watch.clock()
        try:
            return self._of.throw(*error)
        finally:
            del error  # its traceback has this frame: a circle that would keep the call
            self._watch.took(began, "run", *self._names)

    def close(self) -> None:
        self._of.close()

    def __await__(self) -> Generator[Any, Any, Result]:
        return cast("Generator[Any, Any, Result]", self)

    def __iter__(self) -> "WatchedCoroutine[Result]":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def __getattr__(self, name: str) -> Any:
        # Its name, frame and code, for those who print tasks.
        return getattr(self._of, name)
