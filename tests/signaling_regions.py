"""Several regions in one process: each has its own signaling, transceivers and files, and a network between them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.signaling_fakes import FakeTransceiver, Fleet, Stack, place, signaling, write_files

REGION_TOKEN = "region-token-of-the-tests-0123456789"
FROM_EU = {"X-Region": "eu"}
CLUSTERS = {"us": 1, "eu": 2, "asia": 3}
ADVERTISE = ("1=192.0.2.1:3478@us", "2=192.0.2.2:3478@eu", "3=192.0.2.3:3478@asia")
STEERING: dict[str, Any] = {
    "region_header": "X-Region",
    "trusted_proxies": ("127.0.0.0/8",),
    "advertise": ADVERTISE,
    "region_timeout": 0.3,
}


@dataclass
class Region:
    """The signaling of one region as others reach it.

    One that `hangs` closes offers all the same. `answer`, if there is one, stands in the place of its signaling.
    """

    name: str
    transport: httpx.AsyncBaseTransport | None = None
    dead: bool = False
    hangs: bool = False
    answer: Callable[[httpx.Request], httpx.Response] | None = None
    came: list[httpx.Request] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"signaling.{self.name}.test"

    @property
    def offers(self) -> int:
        return sum(request.method == "POST" for request in self.came)


class Between(httpx.AsyncBaseTransport):
    """The network between regions."""

    def __init__(self, regions: Mapping[str, Region]) -> None:
        self._by_host = {region.host: region for region in regions.values()}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        region = self._by_host[request.url.host]
        await request.aread()
        region.came.append(request)
        if region.dead:
            raise httpx.ConnectError("connection refused")
        if region.hangs:
            if request.method == "DELETE":
                return httpx.Response(204, stream=httpx.ByteStream(b""))
            await asyncio.sleep(60)
        if region.answer is not None:
            return region.answer(request)
        assert region.transport is not None
        return await region.transport.handle_async_request(request)


@dataclass
class World:
    """All regions; `stacks` and `fakes` by region."""

    regions: dict[str, Region]
    stacks: dict[str, Stack]
    fakes: dict[str, FakeTransceiver]

    def __getitem__(self, name: str) -> httpx.AsyncClient:
        return self.stacks[name].client

    def created(self) -> dict[str, int]:
        """How many calls were placed where."""
        return {name: len(fake.created) for name, fake in self.fakes.items() if fake.created}

    def live(self) -> int:
        return sum(len(fake.sessions) for fake in self.fakes.values())

    def nobody(self, name: str) -> float:
        """How many calls a region could place nowhere."""
        metrics = self.stacks[name].app.state.services.metrics
        value: float = metrics.placements.labels("nobody")._value.get()
        return value

    def forwards(self, name: str, region: str, kind: str, outcome: str) -> float:
        metrics = self.stacks[name].app.state.services.metrics
        value: float = metrics.region_forwards.labels(region, kind, outcome)._value.get()
        return value


async def place_from_eu(world: World, at: str = "us", **headers: str) -> httpx.Response:
    """Place a call whose client is in `eu`."""
    return await place(world[at], headers={**FROM_EU, **headers})


def write_own_seal_key(folder: Path, name: str) -> None:
    """Give a region a seal key that no other one has."""
    key = {"id": 1, "key": base64.b64encode(name.encode().ljust(32)).decode()}
    (folder / "keys.json").write_text(json.dumps({"version": 1, "seal": [key]}))


def write_regions(folder: Path, clusters: Mapping[str, int], token: str = REGION_TOKEN) -> None:
    """Write the regions file and the region token."""
    regions = [
        {"name": name, "url": f"http://signaling.{name}.test", "clusters": [cluster]}
        for name, cluster in clusters.items()
    ]
    (folder / "regions.json").write_text(json.dumps({"version": 1, "regions": regions}))
    (folder / "region-token").write_text(f"{token}\n")


@contextlib.asynccontextmanager
async def world(
    tmp_path: Path,
    names: tuple[str, ...] = ("us", "eu"),
    tokens: Mapping[str, str] | None = None,
    clusters: Mapping[str, Mapping[str, int]] | None = None,
    prepare: Callable[[Path, str], dict[str, Any]] | None = None,
    **changes: Any,
) -> AsyncIterator[World]:
    """Run the signaling of these regions. `tokens` and `clusters` (of its regions file) may differ by region.

    `prepare` changes the files in a region's folder and returns settings for it alone.
    """
    built = World({name: Region(name) for name in names}, {}, {})
    between = Between(built.regions)
    async with contextlib.AsyncExitStack() as opened:
        for name in names:
            folder = tmp_path / name
            folder.mkdir()
            fake = built.fakes[name] = FakeTransceiver(pod=1, cluster=CLUSTERS[name], region=name)
            write_files(folder, [fake])
            known = (clusters or {}).get(name, {each: CLUSTERS[each] for each in names})
            write_regions(folder, known, (tokens or {}).get(name, REGION_TOKEN))
            fleet = Fleet([fake])
            fleet.elsewhere = between
            settings = {
                **STEERING,
                "region": name,
                "regions_file": folder / "regions.json",
                "region_token_file": folder / "region-token",
                **changes,
                **(prepare(folder, name) if prepare else {}),
            }
            stack = await opened.enter_async_context(signaling(folder, fleet=fleet, **settings))
            built.stacks[name] = stack
            built.regions[name].transport = httpx.ASGITransport(app=stack.app)
        yield built
