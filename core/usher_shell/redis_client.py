"""A Redis client from a URL: one server, TLS, a socket file, or Sentinels.

* `redis://[USER:PASSWORD@]HOST:6379/0`; `rediss://` for TLS (`?ssl_ca_certs=FILE`), `unix://PATH` for a socket
* `redis+sentinel://[USER:PASSWORD@]HOST:26379[,HOST:26379…]/SERVICE[/0][?sentinel_password=…]`; `rediss+sentinel://`

It asks once and never again by itself: whether to ask a Redis that has failed is its user's rule.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from usher_core.errors import LocalError
from usher_core.ids import split_host_port

TLS_OPTIONS = frozenset(
    """
    ssl_ca_certs ssl_ca_data ssl_ca_path ssl_cert_reqs ssl_certfile ssl_check_hostname ssl_ciphers
    ssl_keyfile ssl_password
    """.split()  # noqa: SIM905 - one a line is long
)
OPTIONS = TLS_OPTIONS | frozenset(
    """
    client_name db health_check_interval max_connections password protocol retry_on_timeout sentinel_password
    socket_connect_timeout socket_keepalive socket_timeout timeout username
    """.split()  # noqa: SIM905
)
"""What may stand behind `?`. The library takes any name, and fails at the first question if it is none of its own."""

_SENTINEL = "+sentinel"
_NAME = re.compile(r"[a-z_]{1,40}")


def redis_client(url: str, *, max_connections: int, connect_within: float, answer_within: float) -> Redis:
    """Return a client that has not connected yet.

    Args:
        url: where it is, with its password.
        max_connections: as many questions are under way at once; behind Sentinels further ones fail, else they wait.
        connect_within: seconds.
        answer_within: seconds that an answer may take, and a connection that is free.

    Raises LocalError, which never quotes the URL.
    """
    options = {
        "max_connections": max_connections,
        "socket_timeout": answer_within,
        "socket_connect_timeout": connect_within,
        "retry": Retry(NoBackoff(), 0),  # the library would try three times
    }
    _check_options(url)
    try:
        if urlsplit(url).scheme.endswith(_SENTINEL):
            client = _behind_sentinels(url, options)
        else:
            client = Redis.from_pool(BlockingConnectionPool.from_url(url, timeout=answer_within, **options))
        # It connects nowhere, but fails now for what it would fail for at the first question.
        _ = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        return client
    except (ValueError, TypeError, RedisError, LocalError):
        raise LocalError(
            "the URL of Redis can't be read",
            "one is redis://:PASSWORD@HOST:6379/0 or redis+sentinel://:PASSWORD@HOST:26379/SERVICE",
        ) from None


async def close(client: Redis) -> None:
    """Close all connections, those to Sentinels too: the library leaves them open."""
    await client.aclose()
    manager: Sentinel | None = getattr(client.connection_pool, "sentinel_manager", None)
    for sentinel in [] if manager is None else manager.sentinels:
        await sentinel.aclose()


def _check_options(url: str) -> None:
    scheme, _, rest = url.partition(":")
    query = rest.partition("?")[2]
    names = {name for name, _ in parse_qsl(query, keep_blank_values=True)}
    if wrong := sorted(names - OPTIONS):
        # With an @ it may be the rest of a password.
        is_name = "@" not in query and _NAME.fullmatch(wrong[0])
        raise LocalError(
            f"the URL of Redis has the option {wrong[0]!r}, which there is not"
            if is_name
            else "the URL of Redis has something behind its ? that is no option; a ? in a password is written %3F",
            f"options are {', '.join(sorted(OPTIONS))}",
        )
    if (needs_tls := sorted(names & TLS_OPTIONS)) and not scheme.startswith("rediss"):
        raise LocalError(f"the URL of Redis has {needs_tls[0]}, but no TLS", "with TLS it begins with rediss")


def _behind_sentinels(url: str, options: dict[str, Any]) -> Redis:
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    sentinels = [split_host_port(host) for host in hosts.split(",")]
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("no service")
    query = dict(parse_qsl(parts.query))
    sentinel_password = query.pop("sentinel_password", None)
    scheme = parts.scheme.removesuffix(_SENTINEL)
    plain: dict[str, Any] = dict(parse_url(f"{scheme}://{user}{at}master/{database}?{urlencode(query)}"))
    for replaced in ("host", "port", "connection_class"):
        plain.pop(replaced, None)
    secure = {name: value for name, value in plain.items() if name.startswith("ssl")}
    if scheme == "rediss":
        plain["ssl"] = secure["ssl"] = True
    finder: Any = Sentinel(  # type: ignore[no-untyped-call]  # the library's own types end here
        sentinels, sentinel_kwargs={**options, **secure, "password": sentinel_password}
    )
    client: Redis = finder.master_for(service, **{**options, **plain})
    return client
