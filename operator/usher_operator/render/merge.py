"""Merges what people set for a pod into what we render, as Kubernetes' strategic merge does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "name",
    "schedulingGates": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists whose items have a name of their own; an item of that name is merged, another one is added."""


def merge(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `extra` on top: objects by key, named lists by name, all else replaced."""
    merged = dict(base)
    for field, value in extra.items():
        merged[field] = _merged_value(field, merged.get(field), value)
    return merged


def _merged_value(field: str, old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return merge(old, new)
    key = _KEYS.get(field)
    if key and isinstance(old, list) and isinstance(new, list):
        return _merged_list(key, old, new)
    return new


def _merged_list(key: str, old: list[Any], new: list[Any]) -> list[Any]:
    items = {item[key]: item for item in old}
    for position, item in enumerate(new):
        # One without its name is wrong; the API server says so better than we can.
        name = item.get(key, position) if isinstance(item, Mapping) else position
        items[name] = merge(items.get(name, {}), item) if isinstance(item, Mapping) else item
    return list(items.values())
