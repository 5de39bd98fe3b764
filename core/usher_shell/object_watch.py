"""The objects of one Kubernetes collection, kept up to date by list and watch.

Rules:
* Only what `parse` makes of an object is kept, never its JSON.
* What is known stays in use while the API server is away. A new list replaces it as a whole, so that objects which went
  away meanwhile are dropped.
* A watch goes on from the last version seen, bookmarks included. It starts over with a list when that version is too
  old (410) or the server reports any other error in it.
* The API server sends a bookmark each minute; a watch that says nothing for `SILENCE_S` is dead, whatever TCP says, and
  is opened anew.
* Each new connection reads token and certificates again, since they are renewed.
* Pauses between tries grow and are jittered, so that many programs do not all ask a server at once that is just back.
* One log line per change of state, not per try.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import structlog

from usher_core.errors import LocalError, RemoteError
from usher_shell.kubernetes_client import KubernetesError, KubernetesReader, load_configuration
from usher_shell.watched_file import SourceStatus

log = structlog.get_logger()

ParsedT = TypeVar("ParsedT")
Json = dict[str, Any]

PAGE_SIZE = 100
"""Objects per page of a list: parsing one holds up the whole process, 10 ms for 100 pods of 10 KB."""
LIST_S = 30.0
SILENCE_S = 70.0
WATCH_S = (300, 600)
"""Seconds after which the server ends a watch, drawn, so that watches spread anew over the API servers."""
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0
HEALTHY_S = 10.0
"""A watch that lasted so long was good: the next try need not wait."""
MAX_OBJECTS = 100_000
RESUMABLE = {0, 401, 429, 503}
"""Statuses of a watch that was not begun, after which the version is still good; after others we list anew."""

TOO_MANY = "too_many"
"""Why an object is skipped that `parse` did not refuse."""
RESTARTS = ("busy", "ended", "expired", "forbidden", "malformed", "not_found", "refused", "silent", "unauthorized",
            "unconfigured", "unreachable")  # fmt: skip
"""Why lists and watches end: the keys of `restarts`."""


class Reader(Protocol):
    """What is asked of an API server; see KubernetesReader."""

    async def get(self, path: str, query: Mapping[str, str], within: float) -> Json: ...

    def lines(self, path: str, query: Mapping[str, str], silence: float) -> AsyncIterator[Json | None]: ...


Connect = Callable[[], Awaitable[AbstractAsyncContextManager[Reader]]]


async def connect() -> KubernetesReader:
    """Return a fresh connection by the pod's ServiceAccount or the kubeconfig. Raises LocalError."""
    return KubernetesReader(await load_configuration())


class ObjectWatch(Generic[ParsedT]):
    """Follows one collection.

    Args:
        name: what stands there, for logs and status, such as "pods in voice".
        path: of the collection on the API server.
        selector: label selector, "" for all.
        parse: what to keep of an object, None when it does not count; raises RemoteError when it is wrong.
        on_change: called after `objects` has changed.
        connect_: opens a connection.
        silence: seconds without a byte after which a watch is dead.
        on_each: called with each that came, changed or went, as it is now or was last, before `on_change`.
    """

    page_size: ClassVar[int] = PAGE_SIZE

    def __init__(
        self,
        name: str,
        path: str,
        selector: str,
        parse: Callable[[Json], ParsedT | None],
        on_change: Callable[[], None],
        connect_: Connect = connect,
        silence: float = SILENCE_S,
        on_each: Callable[[ParsedT], None] = lambda _: None,
    ) -> None:
        self.objects: dict[str, ParsedT] = {}
        self.skipped: dict[str, str] = {}
        """Reason by uid of each object that is wrong."""
        self.restarts: Counter[str] = Counter()
        self._name = name
        self._path = path
        self._selector = {"labelSelector": selector} if selector else {}
        self._parse = parse
        self._on_change = on_change
        self._connect = connect_
        self._silence = silence
        self._on_each = on_each
        self._version = ""
        self._loaded = False
        self._watching = False
        self._good_at = 0.0
        self._fault = ""
        self._fault_reason = ""

    def status(self) -> SourceStatus:
        """Return how it is now. The age is 0 while a watch is open and not silent for too long."""
        age = 0.0 if self._watching else time.monotonic() - self._good_at
        return SourceStatus(self._name, self._loaded, age if self._loaded else None, self._fault)

    async def run(self) -> None:
        """Follow the collection until cancelled. Raises nothing for what the API server does."""
        pause = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            reason = await self._follow_once()
            self._watching = False
            self.restarts[reason] += 1
            if time.monotonic() - began >= HEALTHY_S:
                pause = FIRST_PAUSE_S
                if reason in ("ended", "silent"):
                    continue
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - guards nothing
            pause = min(pause * 2, MAX_PAUSE_S)

    async def _follow_once(self) -> str:
        """List if need be, watch until that ends, and return why."""
        try:
            async with await self._connect() as reader:
                if not self._version:
                    await self._list(reader)
                return await self._watch(reader)
        except KubernetesError as error:
            self._note(error)
            return error.reason
        except LocalError as error:
            self._lost("unconfigured", str(error))
            return "unconfigured"

    def _note(self, error: KubernetesError) -> None:
        was_watching = self._watching
        if error.status not in RESUMABLE or error.reason == "malformed":
            self._version = ""
        if error.reason == "expired" or (was_watching and error.reason in ("silent", "unreachable")):
            # Usual: a server restarts, history is compacted. It is a fault once the next try fails, too.
            log.info("watch begins anew", what=self._name, reason=error.reason)
        else:
            self._lost(error.reason, str(error))

    async def _list(self, reader: Reader) -> None:
        fresh: dict[str, ParsedT] = {}
        skipped: dict[str, str] = {}
        query = {**self._selector, "limit": str(self.page_size)}
        while True:
            page = await reader.get(self._path, query, LIST_S)
            try:
                for body in page["items"]:
                    self._take(body, fresh, skipped)
                version = str(page["metadata"]["resourceVersion"])
                more = page["metadata"].get("continue")
            except (KeyError, TypeError, AttributeError) as error:
                raise KubernetesError(
                    "malformed", f"GET {self._path}: no list: {type(error).__name__} {error}"
                ) from None
            if not more:
                break
            query["continue"] = str(more)
        before, was_loaded = self.objects, self._loaded
        self.objects, self.skipped = fresh, skipped
        self._version = version
        self._loaded = True
        self._good()
        gone = [known for uid, known in before.items() if uid not in fresh]
        changed = [*gone, *(known for uid, known in fresh.items() if before.get(uid) != known)]
        for each in changed:
            self._on_each(each)
        if changed or not was_loaded:
            self._on_change()

    async def _watch(self, reader: Reader) -> str:
        query = {
            **self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(*WATCH_S)),  # noqa: S311 - guards nothing
        }
        async with aclosing(reader.lines(self._path, query, self._silence)) as events:  # type: ignore[type-var]
            async for event in events:
                self._watching = True
                if event is not None:
                    self._on_event(event)
                self._good()
        return "ended"

    def _on_event(self, event: Json) -> None:
        try:
            kind, body = event["type"], event["object"]
            if kind == "ERROR":
                code = int(body.get("code") or 0)
                # Whatever went wrong in a stream, its version is not to be trusted: any status but 0 means a new list.
                raise KubernetesError(
                    "expired" if code == 410 else "refused", f"watch {self._path}: {body.get('message')}", code or 500
                )
            self._version = str(body["metadata"]["resourceVersion"])
            if kind == "BOOKMARK":
                return
            uid = str(body["metadata"]["uid"])
            before = self.objects.pop(uid, None)
            if kind == "DELETED":
                self.skipped.pop(uid, None)
            else:
                self._take(body, self.objects, self.skipped)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            text = f"watch {self._path}: no event: {type(error).__name__} {error}"
            raise KubernetesError("malformed", text) from None
        now = self.objects.get(uid)
        if now == before:
            return
        if (last := before if now is None else now) is not None:
            self._on_each(last)
        self._on_change()

    def _take(self, body: Json, objects: dict[str, ParsedT], skipped: dict[str, str]) -> None:
        uid = str(body["metadata"]["uid"])
        was_skipped = skipped.pop(uid, self.skipped.get(uid))
        try:
            if len(objects) >= MAX_OBJECTS:
                raise RemoteError(TOO_MANY, f"no more than {MAX_OBJECTS} are followed")
            parsed = self._parse(body)
        except RemoteError as error:
            if len(skipped) < MAX_OBJECTS:
                skipped[uid] = error.reason
            if was_skipped != error.reason:
                name = str(body["metadata"].get("name"))
                log.warning("object skipped", what=self._name, name=name, reason=error.reason, error=error.message)
            return
        if parsed is not None:
            objects[uid] = parsed

    def _good(self) -> None:
        self._good_at = time.monotonic()
        if self._fault:
            log.info("watched again", what=self._name)
        self._fault = self._fault_reason = ""

    def _lost(self, reason: str, text: str) -> None:
        self._fault = text
        if reason != self._fault_reason:
            self._fault_reason = reason
            keeps = "what was known stays in use" if self._loaded else "waiting for it"
            log.error("watch lost", what=self._name, error=text, now=keeps)


def worst_of(name: str, watches: Sequence[ObjectWatch[Any]], *, loaded: bool) -> SourceStatus:
    """Return how the worst of several watches is, which together are one source.

    Args:
        name: of the source.
        watches: its parts.
        loaded: whether what they found is in use.
    """
    statuses = [watch.status() for watch in watches]
    ages = [status.age for status in statuses if status.age is not None]
    faults = "; ".join(status.fault for status in statuses if status.fault)
    return SourceStatus(name, loaded, max(ages) if loaded and ages else None, faults)
