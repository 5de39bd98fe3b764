"""Tasks that backends start are watched as the backends are (`backends/watch.py`).

A task factory is the only place where asyncio shows the tasks that somebody's code starts. It makes all tasks of the
loop, so the one who made the loop sets it.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from usher_transceiver.backends.watch import WatchedCoroutine, watched_by


def watch_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop make its tasks as always, and look at each step of those that backends start."""
    loop.set_task_factory(_make_task)


def _make_task(
    loop: asyncio.AbstractEventLoop, of: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> asyncio.Task[Any]:
    of_backend = watched_by.get(None)
    if of_backend is not None and isinstance(of, Coroutine):
        of = WatchedCoroutine(of, *of_backend)
    return asyncio.Task(of, loop=loop, **options)
