"""What `kube_fake` is asked, what it answers about itself, and what a watch shows of a change."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.kube_objects import ApiError, Json, Resource

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True)
class Call:
    """One request that came in. `verb` as in RBAC, with `apply` for server-side apply."""

    verb: str
    resource: str
    namespace: str
    name: str
    subresource: str = ""
    query: dict[str, str] = field(default_factory=dict, compare=False)
    body: Any = field(default=None, compare=False)


@dataclass
class Fault:
    """What happens to the next `times` requests that match; `late` faults strike after the work was done."""

    matches: Callable[[Call], bool]
    code: int
    message: str
    times: int
    late: bool
    delay: float


@dataclass(frozen=True)
class Change:
    version: int
    resource: str
    type: str
    object: Json
    before: Json | None


def discovery(resources: Collection[Resource], parts: list[str]) -> Json | None:
    """Return what a path of discovery answers, None for one of objects."""
    groups = sorted({(r.group, r.version) for r in resources if r.group})
    match parts:
        case ["version"]:
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        case ["livez" | "readyz" | "healthz"]:
            return {}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            entries = [{"groupVersion": f"{group}/{version}", "version": version} for group, version in groups]
            named = [
                {"name": group, "versions": [entry], "preferredVersion": entry}
                for (group, _), entry in zip(groups, entries, strict=True)
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}
        case ["api", version]:
            return _resource_list(resources, "", version)
        case ["apis", group, version]:
            return _resource_list(resources, group, version)
    return None


def _resource_list(resources: Collection[Resource], group: str, version: str) -> Json:
    entries: list[Json] = []
    for resource in resources:
        if (resource.group, resource.version) == (group, version):
            base = {"kind": resource.kind, "namespaced": resource.namespaced, "singularName": resource.kind.lower()}
            entries.append({**base, "name": resource.plural, "verbs": VERBS, "shortNames": list(resource.short)})
            entries += [
                {**base, "name": f"{resource.plural}/{sub}", "verbs": ["get", "patch", "update"]}
                for sub in resource.subresources
            ]
    if not entries:
        raise ApiError(404, "the server could not find the requested resource")
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "groupVersion": name, "resources": entries}


def as_seen(change: Change, matches: Callable[[Json], bool]) -> Json | None:
    """Return a change as a watch with a selector sees it: what leaves the selection is DELETED, what enters ADDED."""
    was = change.before is not None and matches(change.before)
    now = matches(change.object)
    if change.type == "DELETED":
        return {"type": "DELETED", "object": change.object} if was else None
    if now:
        return {"type": "MODIFIED" if was else "ADDED", "object": change.object}
    return {"type": "DELETED", "object": change.object} if was else None


def verb_of(request: web.Request, name: str) -> str:
    match request.method:
        case "GET" if request.query.get("watch") in ("true", "1", "True"):
            return "watch"
        case "GET":
            return "get" if name else "list"
        case "POST":
            return "create"
        case "PUT":
            return "update"
        case "PATCH":
            return "apply" if request.content_type.startswith("application/apply-patch") else "patch"
        case "DELETE":
            return "delete"
    return request.method.lower()
