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


def find_private(value: Any, private: Collection[str], levels: int = MAX_LEVELS) -> str | None:
    """Return where below `value` the first private field is, such as `.audio.input[0].prompt`; None without one."""
    if not isinstance(value, dict | list):
        return None
    if levels == 0:
        return ""
    if isinstance(value, dict) and _is_prompt(value, private):
        return ".role"
    # The way is written only where there is something, on the way back: names may be long, and many.
    for name, child in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(name, str) and name.casefold() in private:
            return f".{name}"[:MAX_WHERE]
        found = find_private(child, private, levels - 1)
        if found is not None:
            return f".{name[:MAX_WHERE]}{found}"[:MAX_WHERE] if isinstance(name, str) else f"[{name}]{found}"
    return None


def without_private(value: Any, private: Collection[str], levels: int = MAX_LEVELS) -> Any:
    """Return the value without private fields; where it has none, the value itself."""
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return None
    kept: Any
    if isinstance(value, list):
        kept = [without_private(child, private, levels - 1) for child in value]
        is_same = all(new is old for new, old in zip(kept, value, strict=True))
    else:
        is_prompt = _is_prompt(value, private)
        kept = {
            name: [] if is_prompt and name.casefold() == "content" else without_private(child, private, levels - 1)
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
