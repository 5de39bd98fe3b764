"""Which backend answers a call. A caller chooses by `model`, and only among the names the operator allows.

Clients of the Realtime API name a model as a matter of course, so a name that is none of ours is no error: the default
backend gets the call, and finds the name in the session. No name that a caller writes goes further than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def choose_backend(session: Mapping[str, Any], allowed: Sequence[str], default: str | None) -> str | None:
    """Return the backend for a session. `default` None is each transceiver's own."""
    model = session.get("model")
    return model if isinstance(model, str) and model in allowed else default


def list_models(allowed: Sequence[str], default: str | None) -> list[str]:
    """Return what a caller may name, without repetition; a default that has no name here is not in it."""
    return list(dict.fromkeys([*allowed, *([default] if default else [])]))
