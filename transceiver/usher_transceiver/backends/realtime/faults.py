"""What goes wrong with the server behind a call, in words that may be shown: no key, address or header is in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

EndWord = Literal["upstream_failed", "upstream_closed"]
"""Why the call ends: it never had a server, or has lost it."""

_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Fault:
    """`code` and `message` go to the client, `outcome` into the metric."""

    code: str
    message: str
    outcome: str
    end: EndWord


UNREACHABLE = Fault("upstream_unreachable", "The model's server can't be reached.", "unreachable", "upstream_failed")
NO_WEBSOCKET = Fault("upstream_handshake", "The model's server speaks no WebSocket.", "refused", "upstream_failed")
TIMEOUT = Fault("upstream_timeout", "The model's server does not answer.", "timeout", "upstream_failed")
STALLED = Fault("upstream_stalled", "The model's server takes no more audio.", "stalled", "upstream_closed")
OVERFULL = Fault("playback_stalled", "What the model's server sends can't be passed on.", "stalled", "upstream_closed")
INTERNAL = Fault("internal_error", "The connection to the model's server failed.", "internal_error", "upstream_closed")


def refused(status: int, code: object) -> Fault:
    """Return the fault for an HTTP answer other than 101; `code` is the server's own, if it gave one."""
    outcome = "rate_limited" if status == 429 else "upstream_error" if status >= 500 else "refused"
    # Its message is not passed on: it may quote the key.
    shown = code if isinstance(code, str) and _CODE.fullmatch(code) else f"upstream_http_{status}"
    return Fault(shown, f"The model's server refused the call (HTTP {status}).", outcome, "upstream_failed")


def closed(code: int | None) -> Fault:
    """Return the fault for a WebSocket that the server closed, or that broke (no code)."""
    how = f" (WebSocket {code})" if code is not None else ""
    return Fault("upstream_closed", f"The model's server ended the connection{how}.", "closed", "upstream_closed")
