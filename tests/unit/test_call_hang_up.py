"""What SIGUSR1 does to a call that is being set up, and to what it leaves."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from usher_cli.call.api import CallError
from usher_cli.call.hang_up import TOO_EARLY, first_of, hang_up_signal, unless_told


async def test_set_up_is_given_up_when_told_and_ends_in_order_first() -> None:
    hang_up, tidied = asyncio.Event(), asyncio.Event()

    async def set_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            tidied.set()

    asyncio.get_running_loop().call_soon(hang_up.set)
    with pytest.raises(CallError, match=TOO_EARLY):
        await unless_told(hang_up, set_up())
    assert tidied.is_set()


async def test_set_up_that_nobody_stops_gives_what_it_made_or_why_it_failed() -> None:
    async def works() -> int:
        return 7

    async def fails() -> int:
        raise CallError("no room")

    assert await unless_told(asyncio.Event(), works()) == 7
    with pytest.raises(CallError, match="no room"):
        await unless_told(asyncio.Event(), fails())


async def test_who_is_cancelled_cancels_the_set_up_too() -> None:
    cancelled = asyncio.Event()

    async def set_up() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    waiting = asyncio.create_task(unless_told(asyncio.Event(), set_up()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cancelled.is_set()


async def test_the_signal_sets_the_event_and_a_late_one_ends_nothing() -> None:
    with hang_up_signal() as hang_up:
        os.kill(os.getpid(), signal.SIGUSR1)
        await first_of(hang_up, timeout=5)
        assert hang_up.is_set()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
