"""What JSON values are to all programs: how they are read, laid over each other, and how deep one may be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MAX_MERGED_LEVELS = 32
_CONTAINERS = (dict, list)


def read_json(text: str | bytes) -> Any:
    """Return the value that a text is, if it can be written again as JSON.

    Raises ValueError: no JSON (NaN is none), or a number too large; RecursionError: nested too deep.
    """
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite)


def has_more_parts(text: str, most: int) -> bool:
    """Tell whether a JSON text has more than `most` values, a few texts with many commas or brackets in them counted as
    well. Reading takes its time by the part and not by the byte, so look first where it may not take long.
    """
    return len(text) > most and text.count(",") + text.count("[") + text.count("{") > most


def write_json(value: Any) -> str:
    """Return a value as JSON without blanks."""
    return json.dumps(value, separators=(",", ":"))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    """1e999 is JSON, but infinity is not: it would be written as such."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is too large")
    return value


def merge(base: Mapping[str, Any], over: Mapping[str, Any], level: int = 0) -> dict[str, Any]:
    """Return `base` with the values of `over`: objects are merged, all else is replaced as a whole.

    Objects more than 32 levels down are replaced too.
    """
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and level < MAX_MERGED_LEVELS:
            merged[name] = merge(below, value, level + 1)
        else:
            merged[name] = value
    return merged


def is_deeper(value: object, levels: int) -> bool:
    """Tell whether objects and lists are nested more than `levels` deep; works level by level, so it needs no stack."""
    level = [value]
    for _ in range(levels):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
        if not below:
            return False
        # A message may have 87,000 empty ones.
        level = [child for child in below if child and isinstance(child, _CONTAINERS)]
    return True
