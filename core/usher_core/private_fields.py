"""Fields of JSON objects that somebody may neither see nor set, at any depth.

Where `instructions` are private, so is what a message of the system says: it is instructions by another way.

Names are compared without regard to case: some servers take `Instructions` for `instructions` (Go's encoding/json folds
names as Unicode does, so that even a long s counts as one).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

INSTRUCTIONS = "instructions"
MAX_LEVELS = 128
"""Below this nothing is looked at, so nothing of it may pass."""
MAX_WHERE = 200
"""Characters that say where a field is."""
_PROMPTING_ROLES = ("system", "developer")
_CONTAINERS = (dict, list)


def find_private(value: Any, private: Collection[str]) -> str | None:
    """Return where below `value` the first private field is, such as `.audio.input[0].prompt`; None without one."""
    return _find(value, private, MAX_LEVELS) if _has_private(value, private) else None


def without_private(value: Any, private: Collection[str]) -> Any:
    """Return the value without private fields; where it has none, the value itself."""
    return _without(value, private, MAX_LEVELS) if _has_private(value, private) else value


def _has_private(value: Any, private: Collection[str]) -> bool:
    # Level by level, as it is asked of each event: a page may send 87,000 objects in one, and the loop that reads them
    # carries everybody's audio. What is empty holds nothing.
    names = frozenset((*private, "role"))
    level = [value]
    for _ in range(MAX_LEVELS):
        below: list[Any] = []
        for item in level:
            if not isinstance(item, dict):
                below += item if isinstance(item, list) else ()
            else:
                if not names.isdisjoint(map(str.casefold, item)) and (
                    any(name.casefold() in private for name in item) or _is_prompt(item, private)
                ):
                    return True
                below += item.values()
        level = [child for child in below if child and isinstance(child, _CONTAINERS)]
        if not level:
            return False
    return True


def _find(value: Any, private: Collection[str], levels: int) -> str | None:
    if not isinstance(value, _CONTAINERS):
        return None
    if levels == 0:
        return ""
    if isinstance(value, dict) and _is_prompt(value, private):
        return ".role"
    # The way is written only where there is something, on the way back: names may be long, and many.
    for name, child in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(name, str) and name.casefold() in private:
            return f".{name}"[:MAX_WHERE]
        found = _find(child, private, levels - 1)
        if found is not None:
            return f".{name[:MAX_WHERE]}{found}"[:MAX_WHERE] if isinstance(name, str) else f"[{name}]{found}"
    return None


def _without(value: Any, private: Collection[str], levels: int) -> Any:
    if not isinstance(value, _CONTAINERS):
        return value
    if levels == 0:
        return None
    kept: Any
    if isinstance(value, list):
        kept = [_without(child, private, levels - 1) for child in value]
        is_same = all(new is old for new, old in zip(kept, value, strict=True))
    else:
        is_prompt = _is_prompt(value, private)
        kept = {
            name: [] if is_prompt and name.casefold() == "content" else _without(child, private, levels - 1)
            for name, child in value.items()
            if name.casefold() not in private
        }
        is_same = len(kept) == len(value) and all(kept[name] is value[name] for name in kept)
    return value if is_same else kept


def _is_prompt(value: dict[str, Any], private: Collection[str]) -> bool:
    return INSTRUCTIONS in private and any(
        isinstance(role, str) and role.casefold() in _PROMPTING_ROLES
        for name, role in value.items()
        if name.casefold() == "role"
    )
