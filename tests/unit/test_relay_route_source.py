"""The route file as a source: what the engine can't use changes nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.transceiver_rig import until
from usher_core.routes import RouteTable
from usher_relay.routes.static_file import StaticFileRoutes


def write(path: Path, *pods: int) -> None:
    entries = [{"cluster": 1, "pod": pod, "udp": f"127.0.0.1:{7000 + pod}"} for pod in pods]
    path.write_text(json.dumps({"version": 1, "transceivers": entries}))


@pytest.mark.parametrize("fault", [OSError("no such device"), ValueError("no address")])
async def test_routes_that_the_engine_cannot_use_leave_the_last_good_ones(tmp_path: Path, fault: Exception) -> None:
    file = tmp_path / "routes.json"
    write(file, 1)
    published: list[RouteTable] = []

    def publish(table: RouteTable) -> None:
        if len(table) == 2:
            raise fault
        published.append(table)

    source = StaticFileRoutes(file)
    running = asyncio.create_task(source.run(publish))
    await until(lambda: published, "the first table is there")
    write(file, 1, 2)
    await until(lambda: source.status().fault, "the file is wrong")
    assert str(fault) in source.status().fault
    assert len(published) == 1
    write(file, 1, 2, 3)
    await until(lambda: len(published) == 2, "a good file is taken")
    assert not source.status().fault
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
