"""A tenant's live calls page by page, asked for at the transceivers themselves: there is no store.

Rules:
* The order is that of session ids. It says nothing, but it is one order for all transceivers and replicas, so a page
  needs only the last id of the page before, and no call stands on two pages.
* All transceivers of the route file are asked, also those that take no new calls. One that does not answer in time is
  left out, and the page says how many were.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from usher_core.internal_api import SessionInfo, SessionList
from usher_core.routes import Transceiver
from usher_signaling.directory import Directory
from usher_signaling.transceiver_client import TransceiverClient, TransceiverError
from usher_signaling.turns import turn

log = structlog.get_logger()

MAX_LISTS = 4
"""Lists being made at once: each asks the whole fleet."""
MAX_QUESTIONS = 64
"""Questions under way at once, of all lists."""
QUESTION_S = 1.0
LIST_S = 3.0
"""For the whole fleet; it answers in milliseconds, so this is for dead ones. A list waits as long for its turn."""
FIRST = "0" * 16


@dataclass(frozen=True, slots=True)
class CallPage:
    """Calls with their owners. `unanswered`: how many transceivers are missing in it."""

    calls: tuple[tuple[Transceiver, SessionInfo], ...]
    has_more: bool
    unanswered: int


class CallList:
    """Asks the transceivers of a directory."""

    def __init__(self, directory: Directory, client: TransceiverClient) -> None:
        self._directory = directory
        self._client = client
        self._lists = asyncio.Semaphore(MAX_LISTS)
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)

    async def page(self, tenant: str, limit: int, after: str = FIRST) -> CallPage:
        """Return the first `limit` calls whose session id is greater than `after`. Raises ApiError 503 when busy."""
        entries = [entry for entry in self._directory.transceivers.values() if entry.http]
        async with turn(self._lists, LIST_S, "Too many lists are being made here. Try again soon."):
            tasks = {entry: asyncio.create_task(self._ask(entry, tenant, limit, after)) for entry in entries}
            if tasks:
                await asyncio.wait(tasks.values(), timeout=LIST_S)
            late = [task for task in tasks.values() if task.cancel()]
            await asyncio.gather(*late, return_exceptions=True)
        pages = {entry: task.result() for entry, task in tasks.items() if not task.cancelled()}
        answers = {entry: page for entry, page in pages.items() if page is not None}
        found = [(entry, info) for entry, page in answers.items() for info in page.sessions]
        found.sort(key=lambda call: call[1].session_id)
        has_more = len(found) > limit or any(page.has_more for page in answers.values())
        return CallPage(tuple(found[:limit]), has_more, len(entries) - len(answers))

    async def _ask(self, entry: Transceiver, tenant: str, limit: int, after: str) -> SessionList | None:
        async with self._questions:
            try:
                return await self._client.page(entry.http, tenant, limit, after, QUESTION_S)
            except TransceiverError as error:
                log.warning("a transceiver does not list its calls", route=str(entry.route), error=str(error))
                return None
