"""Host headers that name this machine.

Any other name may be one that a web page pointed at 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from usher_core.ids import is_loopback_host


def is_loopback_authority(authority: str) -> bool:
    """Tell whether `HOST`, `HOST:PORT` or `[V6]:PORT` of a Host header is loopback. False for anything malformed."""
    try:
        parts = urlsplit(f"//{authority}")
        _ = parts.port
    except ValueError:
        return False
    if parts.netloc != authority or parts.username is not None or parts.hostname is None:
        return False
    return is_loopback_host(parts.hostname)
