"""`usher up`: checks that it can start, runs the fleet, ends it on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys

from usher_cli.output_file import check_output_file
from usher_cli.up.addresses import advertised_addresses, check_port_is_free, resolve
from usher_cli.up.fleet import Fleet
from usher_cli.up.log_writer import LogWriter
from usher_cli.up.run_directory import RunDirectory
from usher_cli.up.settings import UpSettings
from usher_cli.up.udp_claims import claimed
from usher_core import logs
from usher_core.ids import split_host_port
from usher_shell.ending_signals import ignore_signals

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(settings: UpSettings) -> None:
    """Run until SIGINT, SIGTERM or SIGHUP. Raises LocalError when it can't start."""
    if settings.state_file is not None:
        check_output_file("--state-file", settings.state_file)
    settings = settings.model_copy(update={"udp": resolve("--udp", settings.udp)})
    host, port = split_host_port(settings.udp)
    advertised_addresses(host, port or 1, settings.advertise)
    with contextlib.ExitStack() as claims:
        for region in range(1, settings.ingress + 1):
            check_port_is_free(socket.SOCK_STREAM, "--http", settings.http_of(region))
            claims.enter_context(claimed("--udp", settings.udp_of(region)))
            check_port_is_free(socket.SOCK_DGRAM, "--udp", settings.udp_of(region))
        log = LogWriter(sys.stderr.buffer)
        logs.configure(settings.log_format, settings.log_level, log)
        try:
            asyncio.run(_run(settings, log))
        finally:
            log.close()


async def _run(settings: UpSettings, log: LogWriter) -> None:
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            fleet.kill()
        stop.set()

    # First of all: from here on there is something to clean up. The loop calls nothing before our first `await`.
    loop = asyncio.get_running_loop()
    for number in _ENDING:
        loop.add_signal_handler(number, on_signal)
    try:
        with RunDirectory.make(settings.regions, settings.clusters) as directory:
            fleet = Fleet(settings, directory, log)
            await fleet.run(stop, _print_ready)
    finally:
        ignore_signals(_ENDING)


def _print_ready(url: str) -> None:
    # Who started us may have stopped reading; the fleet runs on.
    with contextlib.suppress(BrokenPipeError):
        print(f"ready {url}", flush=True)
