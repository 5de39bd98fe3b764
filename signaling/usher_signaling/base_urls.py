"""Base URLs of programs that signaling asks: scheme, host and port. No I/O."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from usher_core.ids import join_host_port

MAX_NAME = 253
"""Characters of a name in DNS (RFC 1035 section 2.3.4)."""

# Labels as RFC 1123 section 2.1 has them; `_` too, since names inside of clusters have it.
_NAME = re.compile(
    r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?"
)


def parse_base_url(text: str) -> str:
    """Return a URL that is scheme, host and port and nothing else, without the last slash.

    Raises ValueError for what is none, also where only a connection would fail for it: a port beyond 65535, or a name
    that DNS can't have.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f"{text!r} is no base URL, as http://10.0.0.7:9478 is")
    if parts.username is not None or parts.fragment:
        raise ValueError("a base URL has neither user nor fragment")
    _check_host(parts.hostname, text)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"the port in {text!r} is none: 1 to 65535 is expected")
    if port is None:
        host = parts.hostname
        return f"{parts.scheme}://[{host}]" if ":" in host else f"{parts.scheme}://{host}"
    return f"{parts.scheme}://{join_host_port(parts.hostname, port)}"


def _check_host(host: str, text: str) -> None:
    try:
        if ":" in host:
            _ = ipaddress.IPv6Address(host)
        elif host.rpartition(".")[2].isdigit():
            _ = ipaddress.IPv4Address(host)
        elif len(host) > MAX_NAME or not _NAME.fullmatch(host):
            raise ValueError(host)
        else:
            _ = host.encode().decode("idna")  # not all that begins with xn-- is a name
    except ValueError:
        raise ValueError(f"the host in {text!r} is neither an IP address nor a name in ASCII") from None
