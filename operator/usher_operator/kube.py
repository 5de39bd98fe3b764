"""The API server as the operator uses it: a few verbs on plain JSON, with time-outs and typed errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.api_client import ApiClient

from usher_core.errors import LocalError, UsherError
from usher_operator import names
from usher_operator.actions import Manifest, Reference
from usher_shell import kubernetes_client

Json = dict[str, Any]

REQUEST_S = 30.0
MAX_CONNECTIONS = 32
PAGE = 500
"""Objects that one answer lists at most."""

_PLURALS = {
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Event"): "events",
    ("v1", "Namespace"): "namespaces",
    ("v1", "Node"): "nodes",
    ("v1", "Pod"): "pods",
    ("v1", "Secret"): "secrets",
    ("v1", "Service"): "services",
    ("v1", "ServiceAccount"): "serviceaccounts",
    ("apps/v1", "DaemonSet"): "daemonsets",
    ("apps/v1", "Deployment"): "deployments",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    ("rbac.authorization.k8s.io/v1", "Role"): "roles",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "rolebindings",
    (names.API_VERSION, "RelayPool"): "relaypools",
    (names.API_VERSION, "TransceiverPool"): "transceiverpools",
}
"""Every kind that we handle; so no discovery is needed."""
_CLUSTER_SCOPED = {"Namespace", "Node"}

_WRONG_OBJECT = ("failed to create typed patch object", "failed to convert new object")
"""What a 500 says when the object of a server-side apply can't be read: a list where a map belongs, a text that is no
quantity. It is the object's fault as with a 422, and trying again is of no use."""


class KubeError(UsherError):
    """The API server did not do what it was asked. `reason` is bounded: a metric's label."""

    reason = "api"


class ConflictError(KubeError):
    """The object is there already, or has changed since we looked: look again."""

    reason = "conflict"


class NotFoundError(KubeError):
    """The object, or its namespace, does not exist."""

    reason = "not_found"


class InvalidError(KubeError):
    """The API server does not accept the object; the message says what is wrong with it."""

    reason = "invalid"


class ForbiddenError(KubeError):
    """Our ServiceAccount may not do that."""

    reason = "forbidden"


class UnauthorizedError(KubeError):
    """The API server does not know who we are."""

    reason = "unauthorized"


class UnavailableError(KubeError):
    """No answer, or one that says "later". Whether a write was done is unknown."""

    reason = "unavailable"


class NotLeaderError(KubeError):
    """We must not write: another replica may lead by now."""

    reason = "not_leader"


class KubeApi(Protocol):
    """What the operator asks of an API server. All methods raise KubeError."""

    async def get(self, target: Reference) -> Json | None:
        """Return an object, or None when there is none."""
        ...

    async def select(self, api_version: str, kind: str, namespace: str, labels: str = "") -> list[Json]:
        """Return the objects of a namespace ("" for all) that a label selector matches."""
        ...

    def pages(self, api_version: str, kind: str, namespace: str, labels: str = "") -> AsyncIterator[list[Json]]:
        """The same, PAGE of them at a time, for those that may be many."""
        ...

    async def apply(self, manifest: Manifest) -> Json:
        """Server-side apply with our field manager and force."""
        ...

    async def apply_status(self, target: Reference, status: Manifest) -> Json:
        """The same of a status."""
        ...

    async def create(self, manifest: Manifest) -> Json:
        """Create. Raises ConflictError when there is one."""
        ...

    async def replace(self, manifest: Manifest) -> Json:
        """Write as a whole. Raises ConflictError when its resourceVersion is not the newest."""
        ...

    async def json_patch(self, target: Reference, operations: Sequence[Mapping[str, Any]]) -> Json:
        """RFC 6902. Raises ConflictError when a `test` fails."""
        ...

    async def delete(self, target: Reference, uid: str) -> None:
        """Delete the object with that uid; nothing when it is gone. Raises ConflictError when it is another one."""
        ...


def reference(manifest: Manifest) -> Reference:
    """Return what names an object."""
    metadata = manifest["metadata"]
    return Reference(manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata.get("name", ""))


def path(target: Reference) -> str:
    """Return the address of an object on the API server, or of the collection where the name is "".

    Raises LocalError for a kind that we don't know.
    """
    plural = _PLURALS.get((target.api_version, target.kind))
    if plural is None:
        raise LocalError(f"the operator handles no {target.kind} of {target.api_version}")
    root = "/api/" if "/" not in target.api_version else "/apis/"
    parts = [root + target.api_version]
    if target.namespace and target.kind not in _CLUSTER_SCOPED:
        parts += ["namespaces", quote(target.namespace, safe="")]
    parts.append(plural)
    if target.name:
        parts.append(quote(target.name, safe=""))
    return "/".join(parts)


async def load_configuration() -> Configuration:
    """Return where the API server is and how to log in. Raises LocalError when nothing tells."""
    configuration = await kubernetes_client.load_configuration()
    configuration.connection_pool_maxsize = MAX_CONNECTIONS
    return configuration


class HttpKubeApi:
    """KubeApi over the official asyncio client.

    Args:
        configuration: where the API server is.
        on_request: called with verb and status code (0: no answer) of each request.
        may_write: asked before each write; False raises NotLeaderError.
    """

    def __init__(
        self,
        configuration: Configuration,
        on_request: Callable[[str, int], None] = lambda _verb, _code: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = ApiClient(configuration)
        self._on_request = on_request
        self._may_write = may_write

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, target: Reference) -> Json | None:
        """See KubeApi."""
        try:
            return await self._request("get", "GET", path(target))
        except NotFoundError:
            return None

    async def select(self, api_version: str, kind: str, namespace: str, labels: str = "") -> list[Json]:
        """See KubeApi."""
        return [item async for page in self.pages(api_version, kind, namespace, labels) for item in page]

    async def pages(self, api_version: str, kind: str, namespace: str, labels: str = "") -> AsyncIterator[list[Json]]:
        """See KubeApi."""
        query = {"limit": str(PAGE), **({"labelSelector": labels} if labels else {})}
        where = path(Reference(api_version, kind, namespace, ""))
        more = ""
        while True:
            page = await self._request("list", "GET", where, query | ({"continue": more} if more else {}))
            # Items of a list lack what the list says once.
            yield [{"apiVersion": api_version, "kind": kind, **item} for item in page["items"]]
            more = page["metadata"].get("continue", "")
            if not more:
                return

    async def is_served(self, api_version: str, plurals: set[str]) -> bool:
        """Return whether the API server has these resources."""
        try:
            page = await self._request("get", "GET", f"/apis/{api_version}")
        except NotFoundError:
            return False
        return plurals <= {resource["name"] for resource in page["resources"]}

    async def apply(self, manifest: Manifest) -> Json:
        """See KubeApi."""
        return await self._apply(path(reference(manifest)), manifest)

    async def apply_status(self, target: Reference, status: Manifest) -> Json:
        """See KubeApi."""
        metadata = {"namespace": target.namespace, "name": target.name}
        body = {"apiVersion": target.api_version, "kind": target.kind, "metadata": metadata, "status": status}
        return await self._apply(path(target) + "/status", body)

    async def create(self, manifest: Manifest) -> Json:
        """See KubeApi."""
        target = reference(manifest)
        collection = path(Reference(target.api_version, target.kind, target.namespace, ""))
        return await self._request("create", "POST", collection, body=manifest)

    async def replace(self, manifest: Manifest) -> Json:
        """See KubeApi."""
        return await self._request("update", "PUT", path(reference(manifest)), body=manifest)

    async def json_patch(self, target: Reference, operations: Sequence[Mapping[str, Any]]) -> Json:
        """See KubeApi."""
        return await self._request(
            "patch", "PATCH", path(target), body=list(operations), content_type="application/json-patch+json"
        )

    async def delete(self, target: Reference, uid: str) -> None:
        """See KubeApi."""
        with contextlib.suppress(NotFoundError):
            await self._request("delete", "DELETE", path(target), body={"preconditions": {"uid": uid}})

    async def _apply(self, where: str, body: Manifest) -> Json:
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        return await self._request(
            "apply", "PATCH", where, query, body=body, content_type="application/apply-patch+yaml"
        )

    async def _request(
        self,
        verb: str,
        method: str,
        where: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Json:
        if method != "GET" and not self._may_write():
            raise NotLeaderError(f"{verb} of {where} was not sent: the lease of this replica may have ended")
        status = 0
        try:
            async with asyncio.timeout(REQUEST_S):
                prepared = await self._client.param_serialize(
                    method=method,
                    resource_path=where,
                    query_params=list((query or {}).items()),
                    header_params={"Accept": "application/json", "Content-Type": content_type},
                    body=body,
                    auth_settings=["BearerToken"],
                )
                timeout = aiohttp.ClientTimeout(total=REQUEST_S, sock_connect=kubernetes_client.CONNECT_S)
                response = await self._client.call_api(*prepared, _request_timeout=timeout)
                text = await response.read()  # type: ignore[no-untyped-call]
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise UnavailableError(f"{verb} {where}: the API server does not answer: {why}") from None
        finally:
            self._on_request(verb, status)
        answer = _parse(text)
        if status >= 300:
            raise _error(f"{verb} {where}", status, answer, is_patch=content_type.startswith("application/json-patch"))
        return answer


def _parse(text: bytes) -> Json:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    return (
        answer
        if isinstance(answer, dict)
        else {"message": text[: kubernetes_client.MAX_MESSAGE].decode(errors="replace")}
    )


def _error(what: str, status: int, answer: Json, *, is_patch: bool) -> KubeError:
    message = str(answer.get("message", ""))[: kubernetes_client.MAX_MESSAGE]
    text = f"{what}: {message} ({status})"
    match status:
        case 404:
            return NotFoundError(text)
        case 409:
            return ConflictError(text)
        case 422 if is_patch and not (answer.get("details") or {}).get("causes"):
            # A failed `test` of RFC 6902 is a 422 without causes; an object that breaks a rule has them.
            return ConflictError(text)
        case 400 | 413 | 422:
            return InvalidError(message or text)
        case 401:
            fix = "its token has expired or is of another cluster; the next one of the ServiceAccount is read by itself"
            return UnauthorizedError(f"the API server does not accept the operator's login, {fix}: {text}")
        case 403:
            return ForbiddenError(text)
        case 429:
            return UnavailableError(text)
        case 500 if any(said in message for said in _WRONG_OBJECT):
            return InvalidError(message)
        case _ if status >= 500:
            return UnavailableError(text)
    return KubeError(text)
