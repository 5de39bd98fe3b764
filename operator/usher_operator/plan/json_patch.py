"""Pieces of JSON patches (RFC 6902)."""

from __future__ import annotations

from typing import Any


def escape(name: str) -> str:
    """Return a name as one segment of a JSON pointer (RFC 6901, section 3)."""
    return name.replace("~", "~0").replace("/", "~1")


def unchanged(path: str, value: str | None, resource_version: str) -> dict[str, Any]:
    """Return the `test` that loses a patch when the text at `path`, which was `value`, has changed meanwhile.

    Where nothing was there, or the text has characters that JSON spells in several ways, the object's version is
    tested: the API server compares bytes (RFC 6902, section 4.6, asks for equal characters).
    """
    if value is None or not _has_one_spelling(value):
        return {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version}
    return {"op": "test", "path": path, "value": value}


def _has_one_spelling(value: str) -> bool:
    return value.isascii() and all(character.isalnum() or character in "-_./: " for character in value)
