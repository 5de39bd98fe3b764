"""Calls steered from any replica: two replicas of signaling, a real transceiver that drains, a stock client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiortc import RTCSessionDescription
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.signaling_fakes import API_KEY, OTHER_KEY, make_settings, write_files
from tests.signaling_fakes import until as eventually
from tests.transceiver_rig import POD, TOKEN, Client, Rig, rig, until
from usher_core.routes import RouteFile, Transceiver
from usher_shell.http_server import HttpServer
from usher_signaling.app import create_app
from usher_signaling.routes.requests import find
from usher_signaling.side_band import MAX_MESSAGE
from usher_transceiver.session import Session

KEY = {"Authorization": f"Bearer {API_KEY}"}
OTHER = {"Authorization": f"Bearer {OTHER_KEY}"}


@dataclass
class Stack:
    """The URLs of two replicas, and what is behind them."""

    rig: Rig
    folder: Path
    urls: tuple[str, str]
    http: httpx.AsyncClient
    servers: list[HttpServer]

    async def call(self, **options: Any) -> tuple[Client, str]:
        """Place a call at the first replica with a stock client. Returns the client and the call id."""
        client = self.rig.client(**options)
        headers = {**KEY, "Content-Type": "application/sdp"}
        answer = await self.http.post(
            f"{self.urls[0]}/v1/realtime/calls", content=await client.offer(), headers=headers
        )
        assert answer.status_code == 201, answer.text
        client.session_id = next(iter(self.rig.transceiver.sessions)).facts.session_id
        await client.pc.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
        session = client.session
        await until(lambda: session.state == "connected", "connected")
        return client, answer.headers["location"].rpartition("/")[2]

    def join(self, call_id: str | None, replica: int = 1, key: dict[str, str] = KEY, **options: Any) -> connect:
        query = "" if call_id is None else f"?call_id={call_id}"
        url = f"{self.urls[replica].replace('http', 'ws', 1)}/v1/realtime{query}"
        return connect(url, additional_headers=key, proxy=None, **options)

    async def refused(self, *arguments: Any, **options: Any) -> tuple[int, str]:
        """The status and code by which a side-band is refused before the accept."""
        with pytest.raises(InvalidStatus) as error:
            async with self.join(*arguments, **options):
                pass
        response = error.value.response
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-content-type-options"] == "nosniff"
        return response.status_code, json.loads(response.body or b"")["error"]["code"]

    def write_routes(self, *transceivers: Transceiver) -> None:
        table = RouteFile(version=1, transceivers=transceivers)
        (self.folder / "routes.json").write_text(table.model_dump_json())


@contextlib.asynccontextmanager
async def stack(tmp_path: Path, signaling: dict[str, Any] | None = None, **transceiver: Any) -> AsyncIterator[Stack]:
    behind, folder = tmp_path / "transceiver", tmp_path / "signaling"
    behind.mkdir(parents=True)
    folder.mkdir()
    async with contextlib.AsyncExitStack() as opened:
        running = await opened.enter_async_context(rig(behind, **transceiver))
        write_files(folder, [])
        (folder / "token").write_text(TOKEN)
        urls = []
        http = await opened.enter_async_context(httpx.AsyncClient(trust_env=False))
        built = Stack(running, folder, ("", ""), http, [])
        entry = Transceiver(cluster=1, pod=POD, udp=running.transceiver.udp, http=running.transceiver.http)
        built.write_routes(entry)
        for _ in range(2):
            advertise = (f"1=127.0.0.1:{running.relay.port}",)
            settings = make_settings(folder, advertise=advertise, load_interval=0.1, **(signaling or {}))
            server = HttpServer(
                create_app(settings),
                "127.0.0.1:0",
                "--http",
                ws="websockets-sansio",
                ws_max_size=MAX_MESSAGE,
                ws_per_message_deflate=False,
                lifespan="on",
                timeout_graceful_shutdown=1,
            )
            _ = await server.start()
            opened.push_async_callback(server.stop)
            urls.append(server.url)
            built.servers.append(server)
        built.urls = (urls[0], urls[1])
        yield built


async def receive(socket: ClientConnection) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 5))
    return event


async def close_of(socket: ClientConnection) -> tuple[int | None, str | None]:
    with contextlib.suppress(ConnectionClosed):
        async for _ in socket:
            pass
    return socket.close_code, socket.close_reason


async def until_status(running: Stack, call_id: str, status: int) -> None:
    """Wait until the second replica has read the route file."""

    async def has_it() -> bool:
        url = f"{running.urls[1]}/v1/realtime/calls/{call_id}"
        return (await running.http.get(url, headers=KEY)).status_code == status

    await eventually(has_it)


def held(running: Stack) -> int:
    """Side-bands whose connection a replica has not let go, open or closing."""
    return sum(
        isinstance(connection, WebSocketsSansIOProtocol)
        for server in running.servers
        for connection in server._server.server_state.connections
    )


def forged(call_id: str) -> str:
    return call_id[:-2] + ("AA" if not call_id.endswith("AA") else "BB")


async def test_a_side_band_of_another_replica_sees_what_the_client_gets_and_may_send(tmp_path: Path) -> None:
    async with stack(tmp_path) as running:
        client, call_id = await running.call(audio=False)
        await until(lambda: client.of_type("session.created"), "greeted")
        async with running.join(call_id) as side:
            assert side.subprotocol is None
            greeting = await receive(side)
            assert greeting["type"] == "session.created"
            assert greeting["session"] == client.events[0]["session"]
            await side.send('{"type": "session.update", "session": {"instructions": "from the side"}}')
            # The same event, with the same id, and no echo of our own.
            updated = await receive(side)
            await until(lambda: client.of_type("session.updated"), "the client sees it too")
            assert updated == client.of_type("session.updated")[0]
            assert updated["session"]["instructions"] == "from the side"
            assert client.channel is not None
            client.channel.send('{"type": "unheard.of", "event_id": "mine"}')
            error = await receive(side)
            assert (error["type"], error["error"]["event_id"]) == ("error", "mine")
            told = await running.http.get(f"{running.urls[0]}/v1/realtime/calls/{call_id}", headers=KEY)
            assert told.json()["observers"] == 1


async def test_a_side_band_is_bound_by_the_policy_of_the_key_that_opened_it(tmp_path: Path) -> None:
    async with stack(tmp_path) as running:
        keys = running.folder / "api-keys"
        keys.write_text(f"{keys.read_text()}\nacme:key-of-one-reader policy=browser\n")
        reading = {"Authorization": "Bearer key-of-one-reader"}
        client, call_id = await running.call(audio=False)
        await until(lambda: client.of_type("session.created"), "greeted")

        async def is_known() -> bool:
            url = f"{running.urls[1]}/v1/realtime/calls/{call_id}"
            return (await running.http.get(url, headers=reading)).status_code == 200

        await eventually(is_known)
        update = '{"type": "session.update", "event_id": "e", "session": {"instructions": "new"}}'
        async with running.join(call_id) as server, running.join(call_id, key=reading) as reader:
            await receive(server)
            await receive(reader)
            await server.send(update)
            assert (await receive(server))["session"]["instructions"] == "new"
            assert "instructions" not in (await receive(reader))["session"]
            await reader.send(update)
            error = (await receive(reader))["error"]
            assert (error["code"], error["event_id"]) == ("event_not_allowed", "e")
            # The client was placed with a key that has no policy.
            assert client.channel is not None
            client.channel.send('{"type": "session.update", "session": {"instructions": "newer"}}')
            await until(lambda: client.of_type("session.updated")[-1]["session"]["instructions"] == "newer", "updated")


async def test_a_side_band_closes_with_the_reason_when_the_call_ends(tmp_path: Path) -> None:
    async with stack(tmp_path) as running:
        _, call_id = await running.call()
        async with running.join(call_id, 0) as one, running.join(call_id, 1) as two:
            for side in (one, two):
                await receive(side)
            url = f"{running.urls[1]}/v1/realtime/calls/{call_id}/hangup"
            assert (await running.http.post(url, headers=KEY)).status_code == 200
            assert await close_of(one) == await close_of(two) == (1000, "hangup")
        # An ended call is not found, by whatever way it is asked for; it can be looked at for a while.
        for answer in (
            await running.http.post(url, headers=KEY),
            await running.http.delete(f"{running.urls[0]}/whip/{call_id}", headers=KEY),
        ):
            assert answer.status_code == 404
        assert await running.refused(call_id) == (404, "call_not_found")
        told = (await running.http.get(f"{running.urls[0]}/v1/realtime/calls/{call_id}", headers=KEY)).json()
        assert (told["state"], told["end_reason"], told["observers"]) == ("ended", "hangup", 0)


async def test_who_may_not_join_is_refused_before_the_accept(tmp_path: Path) -> None:
    async with stack(tmp_path) as running:
        _, call_id = await running.call()
        secret = (await running.http.post(f"{running.urls[0]}/v1/realtime/client_secrets", headers=KEY)).json()["value"]
        assert await running.refused(call_id, key={}) == (401, "invalid_api_key")
        assert await running.refused(call_id, key={"Authorization": "Bearer no"}) == (401, "invalid_api_key")
        assert await running.refused(call_id, key={"Authorization": f"Bearer {secret}"}) == (403, "api_key_required")
        assert await running.refused(None) == (400, "missing_call_id")
        for unknown in ("rtc_x", "x" * 5000, forged(call_id)):
            assert await running.refused(unknown) == (404, "call_not_found")
        assert await running.refused(call_id, key=OTHER) == (404, "call_not_found")
        assert running.rig.transceiver.sessions.totals.observers == 0
        running.write_routes()
        await until_status(running, call_id, 410)
        assert await running.refused(call_id) == (410, "call_gone")


async def test_a_page_may_bring_its_key_as_a_subprotocol_and_never_gets_it_back(tmp_path: Path) -> None:
    async with stack(tmp_path) as running:
        _, call_id = await running.call()
        protocols = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{API_KEY}")]
        async with running.join(call_id, key={}, subprotocols=protocols) as side:
            assert side.subprotocol == "realtime"
            assert (await receive(side))["type"] == "session.created"
        wrong = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.wrong")]
        assert await running.refused(call_id, key={}, subprotocols=wrong) == (401, "invalid_api_key")


async def test_pages_of_origins_that_may_not_call_may_not_join(tmp_path: Path) -> None:
    async with stack(tmp_path, {"cors_origins": ("https://good.example",)}) as running:
        _, call_id = await running.call()
        assert await running.refused(call_id, origin="https://bad.example") == (403, "origin_not_allowed")
        for origin in ("https://good.example", running.urls[1]):
            async with running.join(call_id, origin=origin) as side:
                await receive(side)


async def test_without_keys_only_this_machine_may_join(tmp_path: Path) -> None:
    async with stack(tmp_path, {"api_keys_file": None, "keyless": True}) as running:
        _, call_id = await running.call()
        assert await running.refused(call_id, key={}, origin="https://bad.example") == (403, "loopback_only")
        url = running.urls[1].replace("http", "ws", 1).replace("127.0.0.1", "rebound.example")
        port = int(url.rpartition(":")[2])
        with pytest.raises(InvalidStatus) as error:
            await connect(f"{url}/v1/realtime?call_id={call_id}", host="127.0.0.1", port=port, proxy=None)
        assert error.value.response.status_code == 403
        async with running.join(call_id, key={}, origin="http://localhost:3000") as side:
            await receive(side)


async def test_side_bands_beyond_the_limits_are_told_so(tmp_path: Path) -> None:
    async with stack(tmp_path, {"max_side_bands": 2}, max_observers=1) as running:
        _, call_id = await running.call()
        async with running.join(call_id) as side:
            await receive(side)
            assert await running.refused(call_id) == (429, "too_many_observers")
            metrics = (await running.http.get(f"{running.urls[1]}/metrics")).text
            assert "usher_signaling_side_bands 1.0" in metrics
            assert 'usher_signaling_requests_total{route="/v1/realtime",status="101"} 1.0' in metrics
            assert 'usher_signaling_requests_total{route="/v1/realtime",status="429"} 1.0' in metrics
            # A side-band that is open is no request under way.
            assert "usher_signaling_requests_under_way 1.0" in metrics
    async with stack(tmp_path / "second", {"max_side_bands": 0}) as running:
        _, call_id = await running.call()
        assert await running.refused(call_id) == (503, "too_many_requests")


@pytest.mark.parametrize(
    "message,close",
    [(b"binary", (1003, "text_expected")), ("x" * (MAX_MESSAGE + 1), (1009, None)), (None, (1008, "too_many_events"))],
)
async def test_a_side_band_that_misbehaves_is_dropped_and_the_call_goes_on(
    tmp_path: Path, message: bytes | str | None, close: tuple[int, str | None]
) -> None:
    async with stack(tmp_path) as running:
        client, call_id = await running.call()
        async with running.join(call_id) as side:
            with contextlib.suppress(ConnectionClosed):
                for _ in range(1 if message else 500):
                    await side.send(message or '{"type": "session.update", "session": {}}')
            code, reason = await close_of(side)
            assert code == close[0]
            assert close[1] in (None, reason)
        assert client.session.state == "connected"
        await until(lambda: client.session.events.observers == 0, "forgotten")


async def test_a_side_band_that_does_not_read_is_dropped_and_the_call_goes_on(tmp_path: Path) -> None:
    async with stack(tmp_path) as running:
        client, call_id = await running.call()
        session: Session = client.session
        async with running.join(call_id, max_queue=1, compression=None) as side, running.join(call_id) as good:
            count = 0

            async def read() -> None:
                nonlocal count
                async for _ in good:
                    count += 1

            reader = asyncio.create_task(read())
            await until(lambda: session.events.observers == 2, "both look on")
            sent = 0
            while session.events.observers == 2:
                sent += 1
                assert sent < 50_000
                session.events.emit({"type": "news", "text": "x" * 10_000})
                await asyncio.sleep(0.0005)
            assert running.rig.transceiver.sessions.observers_dropped["too_slow"] == 1
            await until(lambda: count > sent, "the other one has all")
            assert session.state == "connected"
            reader.cancel()
            assert (await close_of(side))[0] in (1013, 1006)


async def test_who_never_reads_again_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("usher_shell.http_server.UNREAD_LIMIT_S", 0.5)
    async with stack(tmp_path) as running:
        client, call_id = await running.call()
        events = client.session.events
        async with running.join(call_id, max_queue=1, compression=None, close_timeout=0.1) as side:
            await until(lambda: events.observers, "it looks on")
            side.transport.pause_reading()
            while events.observers:
                events.emit({"type": "news", "text": "x" * 10_000})
                await asyncio.sleep(0.0005)
            await until(lambda: held(running) == 0, "cut off")


async def test_an_owner_that_dies_closes_the_side_band(tmp_path: Path) -> None:
    async def die(owner: ServerConnection) -> None:
        await owner.send('{"type": "session.created"}')
        owner.transport.abort()

    async def hang(_owner: ServerConnection, _request: Any) -> None:
        await asyncio.sleep(4)

    async with stack(tmp_path) as running:
        _, call_id = await running.call()

        async def replace_owner(port: int) -> None:
            url = f"http://127.0.0.1:{port}"
            running.write_routes(Transceiver(cluster=1, pod=POD, udp="127.0.0.1:9", http=url))
            await until_status(running, call_id, 502)

        async with serve(die, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            await replace_owner(port)
            async with running.join(call_id) as side:
                assert await close_of(side) == (1011, "call_gone")
        assert await running.refused(call_id) == (502, "transceiver_failed")
        async with serve(die, "127.0.0.1", 0, process_request=hang) as server:
            await replace_owner(next(iter(server.sockets)).getsockname()[1])
            async with asyncio.timeout(5):
                while await running.refused(call_id) != (504, "transceiver_timeout"):
                    pass


async def test_everything_reaches_a_call_while_its_owner_drains(tmp_path: Path) -> None:
    async with stack(tmp_path) as running:
        client, call_id = await running.call(audio=False)
        transceiver = running.rig.transceiver
        transceiver.on_signal()  # SIGTERM
        serving = asyncio.create_task(transceiver.serve())
        assert transceiver.sessions.draining
        one, two = running.urls
        listed = (await running.http.get(f"{two}/v1/realtime/calls", headers=KEY)).json()
        assert [call["id"] for call in listed["data"]] == [call_id]
        told = (await running.http.get(f"{two}/v1/realtime/calls/{call_id}", headers=KEY)).json()
        assert told == listed["data"][0] | {"age_s": told["age_s"]}
        async with running.join(call_id, 0) as first, running.join(call_id, 1) as second:
            for side in (first, second):
                await receive(side)
            await first.send('{"type": "session.update", "session": {"instructions": "while draining"}}')
            assert (await receive(second))["type"] == "session.updated"
            await until(lambda: client.of_type("session.updated"), "the client sees it too")
            whip = {**KEY, "Content-Type": "application/trickle-ice-sdpfrag"}
            fragment = "a=ice-ufrag:nEwU\r\na=ice-pwd:VOkJxbRl1RmTxUk/WvJxBt00\r\n"
            restarted = await running.http.patch(
                f"{two}/whip/{call_id}", headers={**whip, "If-Match": "*"}, content=fragment
            )
            assert restarted.status_code == 200, restarted.text
            trickled = await running.http.patch(
                f"{one}/whip/{call_id}", headers={**whip, "If-Match": restarted.headers["etag"]}, content=fragment
            )
            assert trickled.status_code == 204, trickled.text
            assert (await running.http.delete(f"{one}/whip/{call_id}", headers=KEY)).status_code == 200
            assert await close_of(first) == await close_of(second) == (1000, "hangup")
        await asyncio.wait_for(serving, 5)


async def test_a_replica_that_ends_sends_its_side_bands_to_another_one(tmp_path: Path) -> None:
    async with stack(tmp_path) as running:
        client, call_id = await running.call()
        settings = make_settings(running.folder, load_interval=0.1)
        server = HttpServer(
            create_app(settings), "127.0.0.1:0", "--http", ws="websockets-sansio", timeout_graceful_shutdown=1
        )
        _ = await server.start()
        url = f"{server.url.replace('http', 'ws', 1)}/v1/realtime?call_id={call_id}"
        async with connect(url, additional_headers=KEY, proxy=None) as side:
            await receive(side)
            await server.stop()
            # 1012, service restart: clients of the Realtime API connect again.
            assert (await close_of(side))[0] == 1012
        assert client.session.state == "connected"
        await until(lambda: client.session.events.observers == 0, "forgotten")


async def test_a_new_transceiver_is_found_by_a_replica_that_has_not_heard_of_it(tmp_path: Path) -> None:
    async with stack(tmp_path, {}) as running:
        _, call_id = await running.call()
        services = create_app(make_settings(running.folder)).state.services
        running.write_routes()
        assert services.directory.transceivers
        await services.directory.source.look()
        assert not services.directory.transceivers
        entry = Transceiver(cluster=1, pod=POD, udp=running.rig.transceiver.udp, http=running.rig.transceiver.http)
        running.write_routes(entry)
        caller = services.authenticator.authenticate(KEY["Authorization"])
        try:
            assert (await find(services, caller, call_id)).owner == entry
        finally:
            await services.client.close()


async def test_plain_http_is_told_to_upgrade(tmp_path: Path) -> None:
    async with stack(tmp_path) as running:
        answer = await running.http.get(f"{running.urls[0]}/v1/realtime?call_id=x", headers=KEY)
        assert answer.status_code == 426
        assert answer.headers["upgrade"] == "websocket"
        assert answer.json()["error"]["code"] == "websocket_expected"
        with pytest.raises(InvalidStatus) as error:
            await connect(f"{running.urls[0].replace('http', 'ws', 1)}/nothing", proxy=None)
        assert error.value.response.status_code == 404
        assert json.loads(error.value.response.body or b"")["error"]["code"] == "not_found"
