"""`usher signaling`: serve until SIGTERM or SIGINT.

The first signal turns it unready and closes each connection with its next answer, for `--linger`; then it takes no more
and finishes what is under way, within `--grace`. A second signal gives up what is left.
"""

from __future__ import annotations

import asyncio
import signal

import structlog

from usher_core import logs
from usher_core.settings import announce
from usher_shell.descriptors import raise_descriptor_limit
from usher_shell.ending_signals import ignore_signals
from usher_shell.http_server import HttpServer
from usher_shell.websocket_protocol import WebSocketProtocol
from usher_signaling.app import create_app
from usher_signaling.settings import SignalingSettings
from usher_signaling.side_band import MAX_MESSAGE

log = structlog.get_logger()

RESERVED_DESCRIPTORS = 128
"""For files, Redis, and connections that are being opened or closed."""


def run(settings: SignalingSettings) -> None:
    """Serve. Returns after a signal. Raises LocalError when a file is wrong or the address can't be had."""
    logs.configure(settings.log_format, settings.log_level)
    asyncio.run(_serve(settings))


async def _serve(settings: SignalingSettings) -> None:
    descriptors = raise_descriptor_limit()
    # Half is for what the connections cause: each may need one more, to a transceiver.
    max_connections = max(1, min(settings.max_connections, (descriptors - RESERVED_DESCRIPTORS) // 2))
    app = create_app(settings)
    metrics = app.state.services.metrics
    metrics.max_connections.set(max_connections)
    server = HttpServer(
        app,
        settings.http,
        "--http",
        max_connections=max_connections,
        header_deadline=settings.body_deadline,
        on_evicted=metrics.evicted.inc,
        ws=WebSocketProtocol,
        ws_max_size=MAX_MESSAGE,
        # Events are short, and the memory of a compressor per side-band is not.
        ws_per_message_deflate=False,
        lifespan="on",
        timeout_graceful_shutdown=round(settings.grace),
    )
    if settings.is_keyless:
        log.warning("no API key is asked for: only this machine may call", http=server.url)
    if max_connections < settings.max_connections:
        log.warning(
            "fewer connections than --max-connections: the limit on descriptors (ulimit -Hn) is low",
            connections=max_connections,
            descriptors=descriptors,
        )
    else:
        log.info("limits", connections=max_connections, descriptors=descriptors)
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        if signals == 1 and settings.linger:
            app.state.services.ending.set()
            app.state.services.readiness.look()
            loop.call_later(settings.linger, server.stop_soon)
        else:
            server.stop_soon(at_once=signals > 1)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    serving = await server.start()
    print(announce("signaling", http=server.url), flush=True)  # noqa: T201 - what usher up waits for
    try:
        await serving
    finally:
        ignore_signals()
