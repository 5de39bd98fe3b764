"""Two regions of real programs: a call that lands in one is served by the other, and is steered from both. And TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.certificates import write_certificate
from tests.integration.fleet import environment
from tests.pages import ROOT
from tests.signaling_fakes import API_KEY, OTHER_KEY, until
from tests.signaling_program import HEADERS, serving_app
from tests.signaling_regions import REGION_TOKEN, world
from usher_cli.up.child import usher_command
from usher_core.errors import LocalError
from usher_signaling.metrics import Metrics
from usher_signaling.peer_regions.client import Passed
from usher_signaling.peer_regions.origin import parse_region_tokens
from usher_signaling.peer_regions.peers import PassedOverError, build_peers
from usher_signaling.peer_regions.table import RegionTable, parse_regions_file
from usher_signaling.tracing import NoTracer

KEY = {"Authorization": f"Bearer {API_KEY}"}
OFFER = ROOT / "tests" / "vectors" / "offers" / "chromium.sdp"
TALK_S = 4
FRAGMENT = "a=ice-ufrag:nEwU\r\na=ice-pwd:VOkJxbRl1RmTxUk/WvJxBt00\r\n"


@contextlib.asynccontextmanager
async def running(log: Path, *arguments: str) -> AsyncIterator[dict[str, Any]]:
    """Run one program until it is announced; yield what it announced."""
    with log.open("w") as log_file:
        process = await asyncio.create_subprocess_exec(
            *usher_command(list(arguments)), stdout=asyncio.subprocess.PIPE, stderr=log_file, env=environment()
        )
    assert process.stdout is not None
    try:
        announced: dict[str, Any] = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        yield announced
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


class Region:
    """One installation: its own keys, cluster, transceiver, relay and signaling; only the seal keys are the others'."""

    def __init__(self, folder: Path, name: str, cluster: int) -> None:
        self.name = name
        self.cluster = cluster
        self.folder = folder / name
        self.url = ""
        make = usher_command(["keys", "new", f"--cluster={cluster}", f"--out={self.folder}"])
        subprocess.run(make, check=True, capture_output=True, env=environment())
        (self.folder / "api-keys").write_text(f"acme:{API_KEY}\nother:{OTHER_KEY}\n")
        (self.folder / "routes.json").write_text('{"version": 1, "transceivers": []}')

    @property
    def internal_token(self) -> str:
        return (self.folder / "internal-token").read_text().strip()

    def flag(self, name: str, file: str) -> str:
        return f"--{name}={self.folder / file}"

    @contextlib.asynccontextmanager
    async def media(self) -> AsyncIterator[str]:
        """Run a transceiver and a relay; the relay's address. Its second listener stands for an ingress elsewhere."""
        async with running(
            self.folder / "transceiver.log",
            *("transceiver", "--udp=127.0.0.1:0", "--http=127.0.0.1:0", f"--cluster={self.cluster}", "--pod=1"),
            *(self.flag("keys-file", "transceiver.json"), self.flag("token-file", "internal-token")),
        ) as transceiver:
            entry = {
                "cluster": self.cluster,
                "pod": 1,
                "udp": transceiver["udp"],
                "http": transceiver["http"],
                "region": self.name,
            }
            (self.folder / "routes.json").write_text(json.dumps({"version": 1, "transceivers": [entry]}))
            async with running(
                self.folder / "relay.log",
                *("relay", self.flag("keys-file", "relay.json"), self.flag("routes-file", "routes.json")),
                *("--listen=2=127.0.0.1:0", "--admin=127.0.0.1:0", "--engine=python"),
            ) as relay:
                yield relay["listeners"]["2"]

    @contextlib.asynccontextmanager
    async def signaling(self, *advertise: str) -> AsyncIterator[None]:
        async with running(
            self.folder / "signaling.log",
            *("signaling", "--http=127.0.0.1:0", f"--region={self.name}", "--load-interval=0.1"),
            *(self.flag("keys-file", "signaling.json"), self.flag("token-file", "internal-token")),
            *(self.flag("routes-file", "routes.json"), self.flag("api-keys-file", "api-keys")),
            *(self.flag("regions-file", "regions.json"), self.flag("region-token-file", "region-token")),
            *(f"--advertise={address}" for address in advertise),
            *("--log-level=debug", "--rate-limit=1000", "--redis-url=redis://:word-of-redis@127.0.0.1:1"),
        ) as announced:
            self.url = announced["http"]
            yield


def write_files(*regions: Region) -> None:
    # Before a region runs nobody knows its port.
    urls = {each.name: each.url or "http://127.0.0.1:1" for each in regions}
    table = [{"name": each.name, "url": urls[each.name], "clusters": [each.cluster]} for each in regions]
    for region in regions:
        (region.folder / "regions.json").write_text(json.dumps({"version": 1, "regions": table}))
        (region.folder / "region-token").write_text("region-token-of-two-real-regions-0123\n")


def refusal(error: InvalidStatus) -> tuple[int, str]:
    body = json.loads(error.response.body or b"")
    return error.response.status_code, body["error"]["code"]


@pytest.mark.programs
@pytest.mark.timeout(120)
async def test_a_call_that_another_region_serves_sounds_right_and_is_steered_from_both(tmp_path: Path) -> None:
    us, eu = Region(tmp_path, "us", 1), Region(tmp_path, "eu", 2)
    shutil.copy(us.folder / "signaling.json", eu.folder / "signaling.json")
    write_files(us, eu)
    async with contextlib.AsyncExitStack() as opened:
        relay = await opened.enter_async_context(eu.media())
        # The us region has ingress and no transceiver: its clients' calls go where there is room.
        for region in (us, eu):
            await opened.enter_async_context(region.signaling(f"2={relay}@us"))
        write_files(us, eu)
        http = await opened.enter_async_context(httpx.AsyncClient(headers=KEY, trust_env=False))

        async def is_known() -> bool:
            ready = (await http.get(f"{eu.url}/readyz")).json()["can_place"]
            return bool(ready) and (await http.post(f"{us.url}/whip", content=b"x", headers=HEADERS)).status_code == 400

        await until(is_known, 30)
        call = await asyncio.create_subprocess_exec(
            *usher_command(["call", us.url, "--json", f"--seconds={TALK_S}"]),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**environment(), "USHER_API_KEY": API_KEY},
        )
        try:
            await steer(http, us, eu)
            out, _ = await asyncio.wait_for(call.communicate(), 60)
        finally:
            if call.returncode is None:
                call.kill()
                await call.wait()
    result = json.loads(out)
    assert call.returncode == 0, result
    placed = (us.folder / "signaling.log").read_text()
    assert "handed_on_to=eu" in placed
    for region in (us, eu):
        log = (region.folder / "signaling.log").read_text()
        for secret in ("region-token-of", API_KEY, OTHER_KEY, "word-of-redis", region.internal_token):
            assert secret not in log
        assert "rtc_" not in log
        assert "Traceback" not in log


async def steer(http: httpx.AsyncClient, us: Region, eu: Region) -> None:
    """Look at the running call, and do everything with another one, at the region that has neither."""
    told: dict[str, Any] = {}

    async def is_connected() -> bool:
        for call in (await http.get(f"{eu.url}/v1/realtime/calls")).json()["data"]:
            told.update((await http.get(f"{us.url}/v1/realtime/calls/{call['id']}")).json())
        return told.get("state") == "connected"

    await until(is_connected, 60)
    assert told["path"]["transceiver"] == "2/1/0"
    assert told["path"]["relay_region"] == "us", "the ingress near the client"

    placed = await http.post(f"{us.url}/v1/realtime/calls", content=OFFER.read_bytes(), headers=HEADERS)
    assert placed.status_code == 201, placed.text
    call_id = placed.headers["location"].rpartition("/")[2]
    patch = {"Content-Type": "application/trickle-ice-sdpfrag", "If-Match": "*"}
    restarted = await http.patch(f"{us.url}/whip/{call_id}", content=FRAGMENT, headers=patch)
    assert restarted.status_code == 200, restarted.text
    side_band = f"{us.url.replace('http', 'ws', 1)}/v1/realtime?call_id={call_id}"
    with pytest.raises(InvalidStatus) as caught:
        await connect(side_band, additional_headers={"Authorization": f"Bearer {OTHER_KEY}"}, proxy=None)
    assert refusal(caught.value) == (404, "call_not_found")
    async with connect(side_band, additional_headers=KEY, proxy=None) as side:
        assert json.loads(await asyncio.wait_for(side.recv(), 5))["type"] == "session.created"
        await side.send('{"type": "session.update", "session": {"instructions": "from afar"}}')
        assert json.loads(await asyncio.wait_for(side.recv(), 5))["session"]["instructions"] == "from afar"
        assert (await http.post(f"{us.url}/v1/realtime/calls/{call_id}/hangup")).status_code == 200
        async with asyncio.timeout(5):
            async for _ in side:
                pass
        assert (side.close_code, side.close_reason) == (1000, "hangup")
    with pytest.raises(InvalidStatus) as caught:
        await connect(side_band, additional_headers=KEY, proxy=None)
    assert refusal(caught.value) == (404, "call_not_found"), "what the other region says comes back as it is"


@pytest.mark.parametrize("trusts", [True, False])
async def test_a_region_is_believed_by_its_certificate(tmp_path: Path, trusts: bool) -> None:
    certificate, secret = write_certificate(tmp_path)
    async with world(tmp_path) as both:
        eu = both.stacks["eu"].app
        async with serving_app(eu, ssl_certfile=certificate, ssl_keyfile=secret) as port:
            region = {"name": "eu", "url": f"https://127.0.0.1:{port}"}
            own = {"name": "us", "url": "https://us.test"}
            table = parse_regions_file(json.dumps({"version": 1, "regions": [own, region]}), "us")
            tokens = parse_region_tokens(REGION_TOKEN)
            peers = build_peers(
                lambda: table,
                lambda: tokens,
                certificate if trusts else None,
                Metrics(),
                time.monotonic,
                None,
                NoTracer(),
            )
            offer = Passed("POST", "/whip", headers=HEADERS, body=OFFER.read_bytes())
            try:
                if trusts:
                    assert (await peers.offer("eu", offer, "us", 10)).status == 201
                else:
                    with pytest.raises(PassedOverError):
                        await peers.offer("eu", offer, "us", 10)
            finally:
                await peers.close()
        assert both.live() == int(trusts)


def test_a_file_of_certificates_that_is_none_is_a_local_error(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    tokens = parse_region_tokens(REGION_TOKEN)
    for text in (None, "", "no certificate"):
        if text is not None:
            file.write_text(text)
        with pytest.raises(LocalError, match="--region-ca-file"):
            _ = build_peers(RegionTable, lambda: tokens, file, Metrics(), time.monotonic, None, NoTracer())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, kind in ((pipe, "a pipe"), (Path("/dev/zero"), "a socket or a device"), (tmp_path, "a directory")):
        with pytest.raises(LocalError, match=f"--region-ca-file {path} is {kind}"):
            _ = build_peers(RegionTable, lambda: tokens, path, Metrics(), time.monotonic, None, NoTracer())
