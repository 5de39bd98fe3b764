"""Who may talk to a server that asks for no key: this machine only (design D20).

The socket listens on loopback, but a web page from anywhere runs in a browser on this machine. So:

* `Host` names loopback; anything else is a name that somebody pointed at 127.0.0.1 (DNS rebinding).
* `Origin`, which browsers add to every request across origins and to every POST, is a loopback origin or missing.
  The page's own origin is one, since its Host is.
"""

from __future__ import annotations

from usher_shell.loopback_names import is_loopback_authority


def is_loopback_origin(origin: str) -> bool:
    """Tell whether an Origin header is of a page of this machine. `null`, files and extensions are not."""
    scheme, separator, authority = origin.partition("://")
    return separator == "://" and scheme in ("http", "https") and is_loopback_authority(authority)


def refusal(host: str | None, origin: str | None) -> str | None:
    """Return why a request may not be served without a key, or None when it may."""
    if host is None or not is_loopback_authority(host):
        return (
            "This server asks for no API key, so it answers only under a loopback name. Use http://127.0.0.1 or "
            "http://localhost, or give the server an API key."
        )
    if origin is not None and not is_loopback_origin(origin):
        return (
            "This server asks for no API key, so it serves only pages of this machine, and this page is of another "
            "origin. Give the server an API key to allow it."
        )
    return None
