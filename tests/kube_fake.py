"""A small API server in this process, over real HTTP: what kopf, the kubernetes client and our Pod watch need of one.

It keeps objects in memory and does what clients can see: resource versions, list, watch with bookmarks, 410 after
`compact()`, create, replace, merge patch, JSON patch with `test`, server-side apply (each manager owns the fields that
it sent last), status subresources, generations, finalizers, graceful deletion of pods on a node, uid preconditions,
garbage collection by owner, generated names. `kube_workloads` plays the controllers.

Tests look at `calls`, put faults in with `fail`, and change objects directly with `create`, `change`, `remove`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import jsonpatch
from aiohttp import web

from tests.kube_objects import (
    RESOURCES,
    ApiError,
    Json,
    Resource,
    copied,
    field_selector,
    forget,
    labels_of,
    merge,
    merge_patch,
    namespace_of,
    selector,
)
from tests.kube_requests import Call, Change, Fault, as_seen, discovery, verb_of

Key = tuple[str, str, str]
"""Resource (`plural.group`), namespace, name."""


class KubeFake:
    """The server. Use as `async with KubeFake() as api:`; `api.url` is its address.

    Args:
        resources: what it has.
        bookmark_every: seconds between bookmarks of a watch.
        clock: Unix seconds for the times that it writes.
    """

    def __init__(
        self,
        resources: Iterable[Resource] = RESOURCES,
        *,
        bookmark_every: float = 60.0,
        clock: Callable[[], float] = lambda: datetime.now(UTC).timestamp(),
    ) -> None:
        self.resources = {resource.id: resource for resource in resources}
        self.objects: dict[Key, Json] = {}
        self.calls: list[Call] = []
        self.watches = 0
        self.url = ""
        self.is_down = False
        self._clock = clock
        self._bookmark_every = bookmark_every
        self._version = 100
        self._history: list[Change] = []
        self._compacted = 0
        self._changed = asyncio.Condition()
        self._epoch = 0
        self._stalls = 0
        self._faults: list[Fault] = []
        self._applied: dict[tuple[Key, str, str], Json] = {}
        self._runner: web.AppRunner | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[str, Json], None]] = []
        self._stopping = False

    # Serving.

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=4 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        self._wake()
        assert self._runner is not None
        await self._runner.cleanup()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What tests do to it.

    def fail(
        self,
        code: int,
        *,
        verb: str = "",
        resource: str = "",
        name: str = "",
        subresource: str | None = None,
        message: str = "injected",
        times: int = 1,
        late: bool = False,
        delay: float = 0,
    ) -> Fault:
        """Answer matching requests with an error, from now on and `times` times. Empty arguments match all.

        Args:
            code: of the answer; 0 closes the connection without one.
            late: do the work first, then fail: the client can't know whether it happened.
            delay: seconds to wait before it.
        """

        def matches(call: Call) -> bool:
            return (
                verb in ("", call.verb)
                and resource in ("", call.resource)
                and name in ("", call.name)
                and (subresource is None or subresource == call.subresource)
            )

        fault = Fault(matches, code, message, times, late, delay)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Take all faults away."""
        self._faults.clear()
        self.is_down = False

    def compact(self) -> None:
        """Forget the history: watches from an older version get 410, as after five minutes on a real server."""
        self._compacted = self._version
        self._history.clear()
        self.close_watches()

    def close_watches(self) -> None:
        """End all watches, as a server that restarts does."""
        self._epoch += 1
        self._wake()

    def stall_watches(self) -> None:
        """Send nothing more on the watches that are open, without closing them: a network that swallows packets."""
        self._stalls += 1
        self._wake()

    def on_change(self, listener: Callable[[str, Json], None]) -> None:
        """Call `listener(type, object)` for each change, within it."""
        self._listeners.append(listener)

    def create(self, manifest: Json) -> Json:
        """Add an object; its status, too."""
        resource = self.resource_of(manifest)
        body = copied(manifest)
        self._ensure_namespace(resource, body)
        return self._create(resource, body["metadata"].get("namespace", ""), body, with_status=True)

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """Return a copy of an object, or None."""
        found = self.objects.get((self._by_kind(kind).id, namespace, name))
        return copied(found)

    def all(self, kind: str, namespace: str = "", labels: str = "") -> list[Json]:
        """Return copies of the objects of one namespace or of all, in the order of their names."""
        resource = self._by_kind(kind).id
        return [copied(found) for found in self._select(resource, namespace, labels, "")]

    def change(self, kind: str, namespace: str, name: str, edit: Callable[[Json], None]) -> Json:
        """Edit an object in place, status included."""
        resource = self._by_kind(kind)
        key = (resource.id, namespace, name)
        edited = copied(self._require(key))
        edit(edited)
        return self._store(resource, key, edited)

    def remove(self, kind: str, namespace: str, name: str, *, force: bool = False) -> None:
        """Delete as a client does; `force` takes it away whatever its finalizers and its grace."""
        resource = self._by_kind(kind)
        key = (resource.id, namespace, name)
        if force:
            self._drop(resource, key)
        else:
            self._delete(resource, key, {})

    def writes(self) -> list[Call]:
        """Return the calls so far that were no reads."""
        return [call for call in self.calls if call.verb not in ("get", "list", "watch")]

    async def until(self, condition: Callable[[], Any], what: str, within: float = 20.0) -> Any:
        """Wait until a condition of the objects holds and return its value. Raises AssertionError with `what`."""
        try:
            async with asyncio.timeout(within):
                while not (value := condition()):
                    async with self._changed:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._changed.wait(), 0.05)
        except TimeoutError:
            raise AssertionError(f"not within {within:g} s: {what}") from None
        return value

    def resource_of(self, manifest: Json) -> Resource:
        """Return the resource that an object is of."""
        for resource in self.resources.values():
            if (resource.api_version, resource.kind) == (manifest.get("apiVersion"), manifest.get("kind")):
                return resource
        raise ApiError(404, f"no kind {manifest.get('kind')} in {manifest.get('apiVersion')}")

    # Objects.

    def _by_kind(self, kind: str) -> Resource:
        return next(resource for resource in self.resources.values() if resource.kind == kind)

    def _ensure_namespace(self, resource: Resource, body: Json) -> None:
        namespace = body["metadata"].get("namespace")
        if resource.namespaced and namespace and ("namespaces", "", namespace) not in self.objects:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    def _require(self, key: Key) -> Json:
        found = self.objects.get(key)
        if found is None:
            raise ApiError(404, f'{key[0]} "{key[2]}" not found')
        return found

    def _create(self, resource: Resource, namespace: str, body: Json, *, with_status: bool) -> Json:
        metadata = body.setdefault("metadata", {})
        if "name" not in metadata:
            if "generateName" not in metadata:
                raise ApiError(422, f"{resource.kind} is invalid: metadata.name: Required value: name is required")
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if metadata.get("resourceVersion"):
            raise ApiError(400, "resourceVersion should not be set on objects to be created")
        key = (resource.id, namespace, metadata["name"])
        if key in self.objects:
            raise ApiError(409, f'{resource.id} "{metadata["name"]}" already exists', "AlreadyExists")
        if resource.namespaced:
            metadata["namespace"] = namespace
        if "status" in resource.subresources and not with_status:
            body.pop("status", None)
        body.update(apiVersion=resource.api_version, kind=resource.kind)
        metadata["uid"] = str(uuid.uuid4())
        metadata.setdefault("creationTimestamp", self._timestamp())
        metadata["generation"] = 1
        if resource.kind == "Pod":
            body.setdefault("spec", {})
            body.setdefault("status", {"phase": "Pending"})
        return self._store(resource, key, body)

    def _store(self, resource: Resource, key: Key, body: Json) -> Json:
        """Take a new form of an object: version, generation, end of a deletion, history."""
        before = self.objects.get(key)
        metadata = body["metadata"]
        if before is not None:
            for fixed in ("uid", "creationTimestamp", "name", "namespace", "deletionTimestamp", "generation"):
                if fixed in before["metadata"]:
                    metadata[fixed] = before["metadata"][fixed]
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
            if body == before:
                return before
            if body.get("spec") != before.get("spec"):
                metadata["generation"] = before["metadata"].get("generation", 0) + 1
            if "deletionTimestamp" in metadata and not metadata.get("finalizers") and not self._is_graceful(body):
                self.objects[key] = body
                self._drop(resource, key)
                return body
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self.objects[key] = body
        self._record("ADDED" if before is None else "MODIFIED", resource, body, before)
        return body

    @staticmethod
    def _is_graceful(body: Json) -> bool:
        """Whether the kubelet has to end it first."""
        ended = body.get("status", {}).get("phase") in ("Succeeded", "Failed")
        return body["kind"] == "Pod" and bool(body.get("spec", {}).get("nodeName")) and not ended

    def _record(self, type_: str, resource: Resource, body: Json, before: Json | None) -> None:
        self._history.append(Change(self._version, resource.id, type_, copied(body), copied(before)))
        for listener in self._listeners:
            listener(type_, body)
        self._wake()

    def _delete(self, resource: Resource, key: Key, options: Json) -> Json:
        found = self._require(key)
        wanted = options.get("preconditions") or {}
        for name in ("uid", "resourceVersion"):
            if wanted.get(name) and wanted[name] != found["metadata"][name]:
                raise ApiError(409, f"the {name} in the precondition ({wanted[name]}) is not that of the object")
        graceful = self._is_graceful(found) and options.get("gracePeriodSeconds") != 0
        if found["metadata"].get("finalizers") or graceful:
            if "deletionTimestamp" not in found["metadata"]:
                body = copied(found)
                grace = body.get("spec", {}).get("terminationGracePeriodSeconds", 30) if graceful else 0
                body["metadata"]["deletionGracePeriodSeconds"] = grace
                found["metadata"]["deletionTimestamp"] = self._timestamp(grace)
                body["metadata"]["generation"] = body["metadata"].get("generation", 0) + 1
                return self._store(resource, key, body)
            return found
        return self._drop(resource, key)

    def _drop(self, resource: Resource, key: Key) -> Json:
        gone = copied(self._require(key))
        del self.objects[key]
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        for kept in [kept for kept in self._applied if kept[0] == key]:
            del self._applied[kept]
        self._record("DELETED", resource, gone, gone)
        uid = gone["metadata"]["uid"]
        owned = [
            other
            for other, body in self.objects.items()
            if any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences", ()))
        ]
        for other in owned:
            if other in self.objects:
                self._delete(self.resources[other[0]], other, {})
        return gone

    def _timestamp(self, ahead: float = 0) -> str:
        moment = datetime.fromtimestamp(self._clock(), UTC) + timedelta(seconds=ahead)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _wake(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        with contextlib.suppress(RuntimeError):  # before the loop runs nobody waits
            task = asyncio.get_running_loop().create_task(notify())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _select(self, resource: str, namespace: str, labels: str, fields: str) -> Iterator[Json]:
        matches = selector(labels)
        for key in sorted(self.objects):
            body = self.objects[key]
            if (
                key[0] == resource
                and namespace in ("", key[1])
                and matches(labels_of(body))
                and field_selector(fields, body)
            ):
                yield body

    # Requests.

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            if self.is_down:
                raise ApiError(503, "the server is down")
            return await self._route(request)
        except ApiError as fault:
            return web.json_response(fault.body, status=fault.code)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        if (page := discovery(self.resources.values(), parts)) is not None:
            return web.json_response(page)
        core = parts[0] == "api"
        group, rest = ("", parts[2:]) if core else (parts[1], parts[3:])
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        resource = self.resources.get(f"{rest[0]}.{group}" if group else rest[0])
        if resource is None:
            raise ApiError(404, "the server could not find the requested resource")
        name = rest[1] if len(rest) > 1 else ""
        subresource = rest[2] if len(rest) > 2 else ""
        body = json.loads(text) if (text := await request.text()) else None
        call = Call(verb_of(request, name), resource.id, namespace, name, subresource, dict(request.query), body)
        self.calls.append(call)
        fault = self._next_fault(call)
        if fault is not None and fault.delay:
            await asyncio.sleep(fault.delay)
        if fault is not None and not fault.late:
            self._strike(fault, request)
        answer = await self._answer(request, call, resource, body)
        if fault is not None and fault.late:
            self._strike(fault, request)
        return answer

    def _next_fault(self, call: Call) -> Fault | None:
        for fault in self._faults:
            if fault.times > 0 and fault.matches(call):
                fault.times -= 1
                return fault
        return None

    @staticmethod
    def _strike(fault: Fault, request: web.Request) -> None:
        if fault.code == 0:
            if request.transport is not None:
                request.transport.abort()
            raise ApiError(500, fault.message)
        if fault.code > 0:
            raise ApiError(fault.code, fault.message)

    async def _answer(self, request: web.Request, call: Call, resource: Resource, body: Any) -> web.StreamResponse:
        key = (resource.id, call.namespace, call.name)
        match call.verb:
            case "watch":
                return await self._watch(request, call, resource)
            case "list":
                return web.json_response(self._list(call, resource))
            case "get":
                return web.json_response(self._require(key))
            case "create":
                if resource.namespaced and ("namespaces", "", call.namespace) not in self.objects:
                    raise ApiError(404, f'namespaces "{call.namespace}" not found')
                return web.json_response(self._create(resource, call.namespace, body, with_status=False), status=201)
            case "update":
                return web.json_response(self._replace(resource, key, body, call.subresource))
            case "apply":
                fresh = key not in self.objects
                done = self._apply(resource, key, call, body)
                return web.json_response(done, status=201 if fresh else 200)
            case "patch":
                return web.json_response(self._patch(resource, key, call, request.content_type, body))
            case "delete":
                return web.json_response(self._delete(resource, key, body or {}))
        raise ApiError(405, "method not allowed")

    def _list(self, call: Call, resource: Resource) -> Json:
        query = call.query
        found = list(
            self._select(resource.id, call.namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        )
        version, start = self._version, 0
        if "continue" in query:
            # Pages are of one moment on a real server; here they are of now, which clients must bear as well.
            version, start = map(int, query["continue"].split("/"))
            if version < self._compacted:
                raise ApiError(410, "The provided continue parameter is too old")
        end = start + int(query.get("limit") or len(found))
        metadata = {"resourceVersion": str(version)}
        if end < len(found):
            metadata |= {"continue": f"{version}/{end}"}
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": found[start:end],
        }

    def _replace(self, resource: Resource, key: Key, body: Json, subresource: str) -> Json:
        before = self._require(key)
        version = body.get("metadata", {}).get("resourceVersion")
        if version and version != before["metadata"]["resourceVersion"]:
            raise ApiError(
                409,
                f'Operation cannot be fulfilled on {key[0]} "{key[2]}": the object has been modified; please apply your'
                " changes to the latest version and try again",
            )
        uid = body.get("metadata", {}).get("uid")
        if uid and uid != before["metadata"]["uid"]:
            raise ApiError(409, f"Precondition failed: UID in precondition: {uid}")
        return self._store(resource, key, self._restrict(resource, before, copied(body), subresource))

    @staticmethod
    def _restrict(resource: Resource, before: Json, after: Json, subresource: str) -> Json:
        """Return `after` with only what that end point may change."""
        if subresource == "status":
            kept = copied(before)
            kept["status"] = after.get("status", {})
            return kept
        if "status" in resource.subresources:
            after.pop("status", None)
            if "status" in before:
                after["status"] = copied(before["status"])
        return after

    def _patch(self, resource: Resource, key: Key, call: Call, content_type: str, body: Any) -> Json:
        before = self._require(key)
        if call.subresource == "scale":
            after = copied(before)
            after["spec"]["replicas"] = body["spec"]["replicas"]
            return self._store(resource, key, after)
        if content_type == "application/json-patch+json":
            try:
                after = jsonpatch.apply_patch(copied(before), body)
            except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
                # A real server says no more than that, whatever failed, a `test` too.
                message = "the server rejected our request due to an error in our request"
                raise ApiError(422, message) from None
        elif content_type in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
            after = merge_patch(copied(before), body)
        else:
            raise ApiError(415, f"unknown patch type {content_type}")
        return self._replace(resource, key, after, call.subresource)

    def _apply(self, resource: Resource, key: Key, call: Call, body: Json) -> Json:
        manager = call.query.get("fieldManager", "")
        if not manager:
            raise ApiError(400, "fieldManager is required for apply patch")
        if "managedFields" in body.get("metadata", {}):
            raise ApiError(400, "metadata.managedFields must be nil")
        if (body.get("apiVersion"), body.get("kind")) != (resource.api_version, resource.kind):
            raise ApiError(400, "apiVersion and kind must be those of the address")
        where = (key, manager, call.subresource)
        if key not in self.objects:
            if call.subresource:
                raise ApiError(404, f'{key[0]} "{key[2]}" not found')
            done = self._create(resource, call.namespace, copied(body), with_status=False)
        else:
            before = self._require(key)
            after = copied(before)
            forget(after, self._applied.get(where, {}), body)
            merge(after, copied(body))
            done = self._replace(resource, key, after, call.subresource)
        self._applied[where] = copied(body)
        return done

    # Watching.

    async def _watch(self, request: web.Request, call: Call, resource: Resource) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.watches += 1
        try:
            async for event in self._events(call, resource):
                await response.write(json.dumps(event).encode() + b"\n")
        except ConnectionResetError:
            pass
        finally:
            self.watches -= 1
        return response

    async def _events(self, call: Call, resource: Resource) -> AsyncIterator[Json]:
        query = call.query
        since = int(query.get("resourceVersion") or 0)
        matches = selector(query.get("labelSelector", ""))
        fields = query.get("fieldSelector", "")
        loop = asyncio.get_running_loop()
        end = loop.time() + float(query.get("timeoutSeconds") or 1800)
        epoch = self._epoch
        stalls = self._stalls
        if not since or query.get("sendInitialEvents") == "true":
            since = self._version
            for body in list(self._select(resource.id, call.namespace, query.get("labelSelector", ""), fields)):
                yield {"type": "ADDED", "object": copied(body)}
            if query.get("sendInitialEvents") == "true":
                yield self._bookmark(resource, since, {"k8s.io/initial-events-end": "true"})
        bookmark_at = loop.time() + self._bookmark_every
        while epoch == self._epoch and not self._stopping and not self.is_down and loop.time() < end:
            if stalls != self._stalls:
                await asyncio.sleep(0.05)
                continue
            if since < self._compacted:
                yield {"type": "ERROR", "object": ApiError(410, "too old resource version").body}
                return
            for change in [change for change in self._history if change.version > since]:
                since = change.version
                if change.resource != resource.id or call.namespace not in ("", namespace_of(change.object)):
                    continue
                event = as_seen(change, lambda o: matches(labels_of(o)) and field_selector(fields, o))
                if event is not None:
                    yield event
            if loop.time() >= bookmark_at:
                bookmark_at = loop.time() + self._bookmark_every
                if query.get("allowWatchBookmarks") == "true":
                    yield self._bookmark(resource, since, {})
            if self._history and self._history[-1].version > since:
                continue
            async with self._changed:
                with contextlib.suppress(TimeoutError):
                    wait = max(0.01, min(bookmark_at, end) - loop.time())
                    await asyncio.wait_for(self._changed.wait(), min(wait, 1.0))

    @staticmethod
    def _bookmark(resource: Resource, version: int, annotations: dict[str, str]) -> Json:
        metadata: Json = {"resourceVersion": str(version), "annotations": annotations}
        return {
            "type": "BOOKMARK",
            "object": {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata},
        }
