"""What backends do to the one loop that carries everybody's audio: whose code held it up, and what was left unheard.

A callback, or a step of a coroutine between two of its `await`s, should be over within a few milliseconds: all calls of
the process wait for it. One that takes longer than `SLOW_S` is counted; the log names its call, once in `LOG_EVERY_S`.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final, TypeVar

import structlog

SLOW_S: Final = 0.05
"""Beyond it the next tick is late by more than two frames, and every call of the process has a gap."""
LOG_EVERY_S: Final = 10.0
CALLBACKS: Final = ("on_audio", "on_event", "run")

log = structlog.get_logger()
Result = TypeVar("Result")


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

    @coroutine
    def steps(self, of: Coroutine[Any, Any, Result], session: str, backend: str) -> Generator[Any, Any, Result]:
        """Await `of`, and look at the time that each of its steps takes (PEP 380's delegation, written out)."""
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            began = self.clock()
            try:
                awaited = of.send(sent) if thrown is None else of.throw(thrown)
            except StopIteration as over:
                result: Result = over.value
                return result
            finally:
                self.took(began, "run", session, backend)
            sent = thrown = None
            try:
                sent = yield awaited
            except GeneratorExit:
                of.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's
                thrown = error
