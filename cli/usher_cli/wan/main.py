"""`usher wan`: opens the links, says where they are, and runs until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from usher_cli.wan.link import UdpLink
from usher_cli.wan.metrics import LinksCollector
from usher_cli.wan.settings import Ends, WanSettings
from usher_core import logs
from usher_core.errors import LocalError
from usher_core.ids import join_host_port
from usher_core.settings import announce
from usher_shell.descriptors import raise_descriptor_limit
from usher_shell.ending_signals import ignore_signals
from usher_shell.http_server import HttpServer

log = structlog.get_logger()


def run(settings: WanSettings) -> None:
    """Run until SIGINT or SIGTERM. Raises LocalError when an address can't be had."""
    logs.configure(settings.log_format, settings.log_level)
    raise_descriptor_limit()
    asyncio.run(_run(settings))


async def _run(settings: WanSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as opened:
        opened.callback(ignore_signals)
        links = [await opened.enter_async_context(_open(ends, settings)) for ends in settings.links]
        server = HttpServer(_pages(links), settings.admin, "--admin", lifespan="off")
        serving = await server.start()
        ways = ways_of(links)
        log.info("links are open", rtt=settings.rtt, jitter=settings.jitter, loss=settings.loss, links=ways)
        print(announce("wan", links=ways, admin=server.url), flush=True)
        await stop.wait()
        for link in links:
            if link.dropped:
                log.warning("packets found no room", there=join_host_port(*link.target), dropped=link.dropped)
        server.stop_soon(at_once=True)
        await asyncio.gather(serving, return_exceptions=True)


def ways_of(links: Sequence[UdpLink]) -> dict[str, str]:
    """Return THERE of each link by its HERE, `IP:PORT` both: several may lead to one place."""
    return {join_host_port(*link.address): join_host_port(*link.target) for link in links}


def _open(ends: Ends, settings: WanSettings) -> UdpLink:
    try:
        return UdpLink(ends.there, settings.weather, listen=ends.here)
    except OSError as error:
        raise LocalError(f"--link: {join_host_port(*ends.here)} can't be used: {error.strerror}") from None


def _pages(links: Sequence[UdpLink]) -> Starlette:
    registry = CollectorRegistry()
    registry.register(LinksCollector(links))

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/metrics", metrics)])
