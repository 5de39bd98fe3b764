"""Kubernetes label selectors as objects (`matchLabels`, `matchExpressions`), evaluated here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from usher_core.errors import RemoteError


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Tell whether labels fulfil a selector; an empty one matches all. Raises RemoteError when it is none."""
    try:
        wanted = selector.get("matchLabels") or {}
        if any(labels.get(key) != value for key, value in wanted.items()):
            return False
        return all(_holds(expression, labels) for expression in selector.get("matchExpressions") or ())
    except (AttributeError, KeyError, TypeError) as error:
        raise RemoteError("selector", f"this is no label selector: {type(error).__name__} {error}") from None


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            # As in Kubernetes, a label that is missing is not in any set.
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case other:
            raise RemoteError("selector", f"{other!r} is no operator of a label selector")
