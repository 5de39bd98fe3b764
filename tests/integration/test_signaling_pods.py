"""Signaling and a relay in Kubernetes: transceivers from pods, addresses from RelayPools, over real HTTP."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kube_fake import KubeFake
from tests.pod_objects import relay_pool, transceiver_pod, write_kubeconfig
from tests.signaling_fakes import FakeTransceiver, Fleet, Stack, assert_error, place, signaling
from usher_core.errors import RemoteError
from usher_core.ids import Route
from usher_core.relay_pools import parse_relay_pool
from usher_shell import object_watch

POOLS = {"relay_pools_namespace": ("voice",), "advertise": ()}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_watch, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(object_watch, "MAX_PAUSE_S", 0.1)


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeFake]:
    async with KubeFake() as fake:
        write_kubeconfig(tmp_path / "kubeconfig", fake.url)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield fake


def transceiver(pod: int) -> FakeTransceiver:
    """One that answers at the address of its pod."""
    fake = FakeTransceiver(pod=pod, cluster=7)
    fake.http = f"http://10.0.0.{pod}:7280"
    return fake


@contextlib.asynccontextmanager
async def in_kubernetes(folder: Path, *transceivers: FakeTransceiver, **changes: Any) -> AsyncIterator[Stack]:
    settings = {"routes_file": None, "pods_namespace": ("voice",), "pods_settle": 0, "load_interval": 0.05, **changes}
    async with signaling(folder, fleet=Fleet(transceivers), **settings) as stack:
        yield stack


def pod(number: int, **more: Any) -> dict[str, Any]:
    return transceiver_pod(f"p{number}", number, f"10.0.0.{number}", **more)


async def until(condition: Callable[[], Any], what: str, within: float = 10) -> None:
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 - a condition of many parts has no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {within:g} s: {what}") from None


async def takes_calls(stack: Stack, wanted: bool = True) -> dict[str, Any]:
    """Wait until signaling says that it can place a call, or can't."""
    async with asyncio.timeout(10):
        while (told := (await stack.client.get("/readyz")).json())["can_place"] != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return dict(told)


def advertised(fake: FakeTransceiver) -> list[str]:
    return [f"{entry.host}:{entry.port}" for entry in fake.created[-1].advertise]


async def test_an_answer_names_the_addresses_of_the_relays_that_serve_its_pod(api: KubeFake, tmp_path: Path) -> None:
    api.create(pod(1, pool="voice"))
    api.create(pod(2, pool="video"))
    only_video = {"selector": {"matchLabels": {"usher.fleet/pool": "video"}}}
    only_voice = {"selector": {"matchExpressions": [
        {"key": "usher.fleet/pool", "operator": "NotIn", "values": ["video"]}]}}  # fmt: skip
    api.create(relay_pool("a", "192.0.2.1:3478", transceivers=only_voice))
    api.create(relay_pool("b", "192.0.2.2:3478", "192.0.2.3:443", transceivers=only_video))
    api.create(relay_pool("elsewhere", "192.0.2.4:3478", namespace="other"))
    voice, video = transceiver(1), transceiver(2)
    async with in_kubernetes(tmp_path, voice, video, **POOLS) as stack:
        assert (await takes_calls(stack))["advertised"] == 3
        await until(lambda: stack.app.state.services.directory.live_count() == 2, "both tell their load")
        for _ in range(10):
            assert (await place(stack.client)).status_code == 201
        assert voice.created
        assert video.created
        assert advertised(voice) == ["192.0.2.1:3478"]
        assert advertised(video) == ["192.0.2.2:3478", "192.0.2.3:443"]


async def test_while_no_relay_has_an_address_callers_get_503_and_then_it_works(api: KubeFake, tmp_path: Path) -> None:
    api.create(pod(1))
    api.create(relay_pool("a"))
    fake = transceiver(1)
    async with in_kubernetes(tmp_path, fake, **POOLS) as stack:
        await until(lambda: stack.app.state.services.directory.live_count() == 1, "the transceiver is known")
        await until(lambda: stack.app.state.services.readiness.look().ready, "what it lacks is an answer to a new call")
        response = await place(stack.client)
        message = assert_error(response, 503, "no_address")["message"]
        assert message.startswith("There is no relay address for this call.")
        assert "kubectl get rpool" in message
        assert response.headers["retry-after"] == "1"
        api.change("RelayPool", "voice", "a", lambda pool: pool["status"].update(
            addresses=[{"listener": 2, "ip": "192.0.2.9", "port": 3478}]))  # fmt: skip
        await takes_calls(stack)
        assert (await place(stack.client)).status_code == 201
        assert advertised(fake) == ["192.0.2.9:3478"]
        api.remove("RelayPool", "voice", "a")
        await takes_calls(stack, wanted=False)
        assert_error(await place(stack.client), 503, "no_address")


async def test_a_relay_pool_that_drains_before_it_goes_gets_no_more_clients(api: KubeFake, tmp_path: Path) -> None:
    api.create(pod(1))
    going = relay_pool("a", "192.0.2.1:3478")
    going["metadata"]["finalizers"] = ["usher.fleet/drain"]
    api.create(going)
    api.create(relay_pool("b", "192.0.2.2:3478"))
    fake = transceiver(1)
    async with in_kubernetes(tmp_path, fake, **POOLS) as stack:
        await until(lambda: stack.app.state.services.directory.live_count() == 1, "the transceiver is known")
        assert (await takes_calls(stack))["advertised"] == 2
        api.remove("RelayPool", "voice", "a")
        assert api.get("RelayPool", "voice", "a"), "its finalizer keeps it, and its status has the address"
        async with asyncio.timeout(10):
            while (await takes_calls(stack))["advertised"] != 1:  # noqa: ASYNC110 - a condition over HTTP has no event
                await asyncio.sleep(0.01)
        assert (await place(stack.client)).status_code == 201
        assert advertised(fake) == ["192.0.2.2:3478"]


async def test_a_pod_that_no_relay_serves_gets_no_calls(api: KubeFake, tmp_path: Path) -> None:
    api.create(pod(1, pool="voice"))
    api.create(pod(2, pool="video"))
    api.create(relay_pool("a", "192.0.2.1:3478",
                          transceivers={"selector": {"matchLabels": {"usher.fleet/pool": "voice"}}}))  # fmt: skip
    served, other = transceiver(1), transceiver(2)
    async with in_kubernetes(tmp_path, served, other, **POOLS) as stack:
        await takes_calls(stack)
        for _ in range(10):
            assert (await place(stack.client)).status_code == 201
        assert len(served.created) == 10
        assert not other.created
        api.remove("Pod", "voice", "p1", force=True)
        await takes_calls(stack, wanted=False)
        assert_error(await place(stack.client), 503, "no_address")


async def test_fixed_addresses_hold_for_all_pods_and_come_first(api: KubeFake, tmp_path: Path) -> None:
    api.create(pod(1))
    api.create(relay_pool("a", "192.0.2.1:3478", "192.0.2.7:3478"))
    fake = transceiver(1)
    fixed = ("1=192.0.2.7:3478",)
    async with in_kubernetes(tmp_path, fake, relay_pools_namespace=("voice",), advertise=fixed) as stack:
        await until(lambda: len(stack.app.state.services.directory.advertised) == 2, "those of the pool")
        await takes_calls(stack)
        assert (await place(stack.client)).status_code == 201
        assert advertised(fake) == ["192.0.2.7:3478", "192.0.2.1:3478"]


async def test_without_relay_pools_the_fixed_addresses_are_enough(api: KubeFake, tmp_path: Path) -> None:
    api.create(pod(1))
    fake = transceiver(1)
    async with in_kubernetes(tmp_path, fake) as stack:
        await takes_calls(stack)
        assert (await place(stack.client)).status_code == 201
        assert {call.resource for call in api.calls} == {"pods"}


async def test_a_client_gets_the_addresses_of_its_region(api: KubeFake, tmp_path: Path) -> None:
    api.create(pod(1, region="eu"))
    api.create(relay_pool("eu", "192.0.2.1:3478", region="eu"))
    api.create(relay_pool("us", "192.0.2.2:3478", region="us", listener=2))
    fake = transceiver(1)
    async with in_kubernetes(tmp_path, fake, region="us", **POOLS) as stack:
        await takes_calls(stack)
        await until(lambda: len(stack.app.state.services.directory.advertised) == 2, "both pools")
        assert (await place(stack.client)).status_code == 201
        assert advertised(fake) == ["192.0.2.2:3478"]
        assert stack.app.state.services.calls.relay_region(1) == "eu"


async def test_a_pod_gets_its_first_call_only_after_the_settle_time(api: KubeFake, tmp_path: Path) -> None:
    fake = transceiver(1)
    async with in_kubernetes(tmp_path, fake, pods_settle=0.5) as stack:
        directory = stack.app.state.services.directory
        await until(lambda: directory.source.status().loaded, "the first list")
        api.create(pod(1))
        await until(lambda: Route(7, 1) in directory.transceivers, "known")
        known = time.monotonic()
        assert_error(await place(stack.client), 503, "no_transceiver")
        await takes_calls(stack)
        assert time.monotonic() - known >= 0.4
        assert (await place(stack.client)).status_code == 201


async def test_a_call_whose_pod_is_not_known_yet_waits_for_the_watch_and_a_gone_one_is_gone_soon(
    api: KubeFake, tmp_path: Path
) -> None:
    async with in_kubernetes(tmp_path, transceiver(1)) as stack:
        directory = stack.app.state.services.directory
        await until(lambda: api.watches == 1, "a watch")
        asked = asyncio.create_task(directory.find_owner(Route(7, 1)))
        await asyncio.sleep(0)
        api.create(pod(1))
        owner = await asked
        assert owner is not None
        assert owner.http == "http://10.0.0.1:7280"
        began = time.monotonic()
        assert await directory.find_owner(Route(7, 2)) is None
        assert time.monotonic() - began < 2


async def test_calls_go_on_while_the_api_server_is_away(api: KubeFake, tmp_path: Path) -> None:
    api.create(pod(1))
    api.create(relay_pool("a", "192.0.2.1:3478"))
    fake = transceiver(1)
    async with in_kubernetes(tmp_path, fake, **POOLS) as stack:
        await takes_calls(stack)
        placed = await place(stack.client)
        api.is_down = True
        api.close_watches()
        directory = stack.app.state.services.directory
        await until(lambda: directory.source.status().fault, "noticed")
        assert (await place(stack.client)).status_code == 201
        assert (await stack.client.post(placed.headers["location"] + "/hangup")).status_code == 200
        text = (await stack.client.get("/metrics")).text
        assert "usher_signaling_routes_source_up 0.0" in text
        api.heal()
        await until(lambda: not directory.source.status().fault, "back")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": {"addresses": [{"listener": 1, "ip": "192.0.2.1"}]}}, "shape"),
        ({"status": {"addresses": [{"listener": 1, "ip": "192.0.2.1", "port": 0}]}}, "address"),
        ({"status": {"addresses": 7}}, "shape"),
        ({"status": "x"}, "shape"),
        ({"spec": "x"}, "shape"),
        ({"spec": {"transceivers": {"selector": {"matchExpressions": [{}]}}}}, "selector"),
    ],
)
def test_a_relay_pool_that_makes_no_sense_is_refused_with_a_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RemoteError) as refused:
        parse_relay_pool({**relay_pool("a", "192.0.2.1:3478"), **changes})
    assert refused.value.reason == reason


def test_a_relay_pool_without_addresses_or_being_deleted_has_none() -> None:
    assert parse_relay_pool(relay_pool("a")) is None
    ending = relay_pool("a", "192.0.2.1:3478")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert parse_relay_pool(ending) is None


async def test_a_relay_is_ready_once_the_pods_were_listed_and_shows_them(api: KubeFake, tmp_path: Path) -> None:
    api.create(transceiver_pod("p1", 1, "127.0.0.1"))
    api.create(transceiver_pod("bad", "x"))
    api.fail(403, verb="list", times=10_000)
    usher = Path(sys.executable).with_name("usher")
    made = await asyncio.create_subprocess_exec(usher, "keys", "new", "--cluster", "7", "--out", tmp_path / "keys",
                                                stdout=asyncio.subprocess.DEVNULL)  # fmt: skip
    assert await made.wait() == 0
    arguments = ["relay", "--listen", "1=127.0.0.1:0", "--keys-file", str(tmp_path / "keys" / "relay.json"),
                 "--pods-namespace", "voice", "--admin", "127.0.0.1:0", "--log-format", "json"]  # fmt: skip
    relay = await asyncio.create_subprocess_exec(
        usher, *arguments, env=dict(os.environ), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert relay.stdout is not None
    assert relay.stderr is not None
    try:
        await until(lambda: sum(call.verb == "list" for call in api.calls) >= 3, "it tries again", within=30)
        assert relay.returncode is None
        api.heal()
        async with asyncio.timeout(20):
            announced = json.loads(await relay.stdout.readline())
        async with httpx.AsyncClient(base_url=announced["admin"]) as client:
            assert (await client.get("/readyz")).status_code == 200
            page = (await client.get("/routes")).json()
            assert page["source"]["name"] == "pods in voice"
            assert len(page["routes"]) == 1
            text = (await client.get("/metrics")).text
            assert 'usher_relay_pods_skipped{reason="pod_id"} 1.0' in text
    finally:
        relay.terminate()
        _, log = await relay.communicate()
    assert log.decode().count('"watch lost"') == 1, "the 403 is said once"
