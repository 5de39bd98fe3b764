"""The `error` event of the Realtime protocol, as all that answers a client here writes it."""

from __future__ import annotations

from typing import Literal

from usher_transceiver.backends.protocol import Event

Fault = Literal["invalid_request_error", "server_error"]
"""Whose fault it is: the sender's of an event, or ours."""


def error_event(
    code: str,
    message: str,
    event: Event | None = None,
    param: str | None = None,
    fault: Fault = "invalid_request_error",
) -> Event:
    """Return an `error` event.

    Args:
        code: a short word that programs may look at.
        message: a sentence for people, without anything of the inside.
        event: what it is about; its `event_id` is echoed.
        param: the field at fault.
        fault: whose it is.
    """
    event_id = event.get("event_id") if event else None
    return {
        "type": "error",
        "error": {
            "type": fault,
            "code": code,
            "message": message,
            "param": param,
            "event_id": event_id if isinstance(event_id, str) else None,
        },
    }
