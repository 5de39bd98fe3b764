"""Work that nobody waits for, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class BackgroundTasks:
    """Runs up to `limit` coroutines; those beyond it are left out, which is the caller's to count."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> bool:
        """Run a coroutine, which raises nothing. Return whether there was room for it."""
        if len(self._tasks) >= self._limit:
            work.close()
            return False
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def wait(self) -> None:
        """Wait until all have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
