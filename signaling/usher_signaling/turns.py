"""Places for work of which only so much may go on at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from usher_signaling.errors import unavailable


@asynccontextmanager
async def turn(places: asyncio.Semaphore, within: float, busy: str) -> AsyncIterator[None]:
    """Hold a place. Raises ApiError 503 with the words `busy` when none gets free within so many seconds."""
    try:
        async with asyncio.timeout(within):
            await places.acquire()
    except TimeoutError:
        raise unavailable("too_many_requests", busy) from None
    try:
        yield
    finally:
        places.release()
