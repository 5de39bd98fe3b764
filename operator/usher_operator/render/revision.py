"""A hash on each child tells whether it is what we want, without comparing it field by field with its defaults."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from usher_operator.names import REVISION_LABEL


def revision_of(manifest: Mapping[str, Any]) -> str:
    """Return 16 hex digits that stand for the content of a manifest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]


def with_revision(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest labelled with the hash of itself as given."""
    metadata = manifest.get("metadata", {})
    labels = {**metadata.get("labels", {}), REVISION_LABEL: revision_of(manifest)}
    return {**manifest, "metadata": {**metadata, "labels": labels}}


def is_current(manifest: Mapping[str, Any], existing: Mapping[str, Any] | None) -> bool:
    """Return whether an object of the cluster was last sent by us with the content of `manifest`."""
    if existing is None:
        return False
    wanted: str = manifest["metadata"]["labels"][REVISION_LABEL]
    return bool(existing.get("metadata", {}).get("labels", {}).get(REVISION_LABEL) == wanted)
