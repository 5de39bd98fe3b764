"""The WebSocket of a call by itself: TLS, redirects, and that nothing is left of many calls."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import ipaddress
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.transceiver_rig import until
from usher_transceiver.backends.realtime import bridge, connection
from usher_transceiver.backends.realtime.backend import RealtimeBackend, RealtimeBackends
from usher_transceiver.backends.realtime.settings import RealtimeSettings
from usher_transceiver.media.frame import FRAME_BYTES, AudioFrame, Origin


class FakeCall:
    """A call whose audio is never played."""

    id = "call-1"
    session: Mapping[str, Any] = MappingProxyType({})
    given_session: Mapping[str, Any] = MappingProxyType({"instructions": "Be brief."})
    metadata: Mapping[str, str] = MappingProxyType({})
    queued_ms = 0
    events_waiting_bytes = 0
    played_ms = 0

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.ended = ""

    def play(self, pcm: bytes) -> int:
        return len(pcm) // 48

    def play_opus(self, packet: bytes) -> int:
        raise AssertionError("the bridge plays PCM")

    def clear(self) -> int:
        return 0

    def send_event(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def forward(self, event: dict[str, Any], text: str) -> None:
        self.events.append(event)

    def adopt_session(self, session: Any) -> None:
        raise AssertionError("this server has no session")

    def end(self, reason: str) -> None:
        raise AssertionError("the bridge lets the client know first")

    def end_when_told(self, reason: str) -> None:
        self.ended = reason


async def hello(socket: ServerConnection) -> None:
    await socket.send('{"type":"hello"}')
    async for _ in socket:
        pass


def backends(port: int, scheme: str = "ws", **settings: Any) -> RealtimeBackends:
    url = f"{scheme}://127.0.0.1:{port}/v1/realtime"
    return RealtimeBackends(RealtimeSettings(realtime_url=url, **settings))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def port_of(server: Any) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


async def begin(makes: RealtimeBackends) -> tuple[RealtimeBackend, FakeCall]:
    call, backend = FakeCall(), makes({})
    await backend.start(call)
    return backend, call


def make_certificate(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, pem, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def test_tls_trusts_a_certificate_that_was_named_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(hello, "127.0.0.1", 0, ssl=make_certificate(tmp_path), close_timeout=0.5) as server:
        stranger, call = await begin(backends(port_of(server), "wss"))
        await until(lambda: call.ended, "the certificate refused")
        assert (call.ended, call.events[0]["error"]["code"]) == ("upstream_failed", "upstream_unreachable")
        await stranger.close("hangup")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        trusting, call = await begin(backends(port_of(server), "wss"))
        await until(lambda: call.events, "a word of the server")
        assert call.events == [{"type": "hello"}]
        await trusting.close("hangup")


async def test_a_redirect_is_a_refusal_and_the_key_goes_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1")
    seen: list[str] = []

    async def elsewhere(_socket: ServerConnection, request: Request) -> None:
        seen.append(request.headers.get("Authorization", ""))

    async with serve(hello, "127.0.0.1", 0, process_request=elsewhere, close_timeout=0.5) as other:

        async def redirect(socket: ServerConnection, _request: Request) -> Response:
            answer = socket.respond(HTTPStatus.FOUND, "")
            answer.headers["Location"] = f"ws://127.0.0.1:{port_of(other)}/"
            return answer

        async with serve(hello, "127.0.0.1", 0, process_request=redirect, close_timeout=0.5) as server:
            backend, call = await begin(backends(port_of(server), realtime_api_key_file=tmp_path / "key"))
            await until(lambda: call.ended, "the redirect refused")
            await backend.close("backend_ended")
    assert call.events[0]["error"]["code"] == "upstream_http_302"
    assert seen == []


async def test_a_server_that_takes_nothing_for_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_LIMIT_S", 0.3)

    async def deaf(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await socket.wait_closed()

    async with serve(deaf, "127.0.0.1", 0, close_timeout=0.5) as server:
        backend, call = await begin(backends(port_of(server)))
        large = '{"type":"filler","padding":"%s"}' % ("x" * 200_000)
        async with asyncio.timeout(10):
            while not call.ended:
                backend.on_client_event({"type": "filler"}, large)
                await asyncio.sleep(0.01)
        await backend.close("upstream_closed")
    codes = [event["error"]["code"] for event in call.events]
    assert (codes[-1], set(codes[:-1]) <= {"too_many_events"}) == ("upstream_stalled", True)
    assert call.ended == "upstream_closed"


async def test_audio_that_can_not_be_played_for_too_long_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FULL_LIMIT_S", 0.3)
    monkeypatch.setattr(bridge, "PLAY_OUT_S", 0.3)

    async def speak(socket: ServerConnection) -> None:
        names = '"response_id":"r","item_id":"i","content_index":0'
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.send('{"type":"response.output_audio.delta",%s,"delta":"%s"}' % (names, "A" * 640_000))

    async with serve(speak, "127.0.0.1", 0, close_timeout=0.5) as server:
        call, backend = FakeCall(), backends(port_of(server))({})
        call.queued_ms = 400
        await backend.start(call)
        await until(lambda: call.ended, "given up")
        await backend.close("upstream_closed")
    assert [event["type"] for event in call.events] == ["output_audio_buffer.cleared", "error"]
    assert call.events[1]["error"]["code"] == "playback_stalled"


async def test_nothing_is_left_of_a_hundred_calls_however_they_end() -> None:
    loop = asyncio.get_running_loop()

    async def some(socket: ServerConnection) -> None:
        await socket.send('{"type":"hello"}')
        await asyncio.sleep(0.01)

    async with serve(some, "127.0.0.1", 0, close_timeout=0.5) as server:
        makes = backends(port_of(server))

        async def one(number: int) -> None:
            backend, call = await begin(makes)
            backend.on_audio(AudioFrame(bytes(FRAME_BYTES), 0, Origin.RECEIVED))
            if number % 3 == 0:
                await until(lambda: call.ended, "the server closed")
                assert call.ended == "upstream_closed"
            elif number % 3 == 1:
                await until(lambda: call.events, "a word of the server")
            await backend.close("hangup")

        await one(1)
        gc.collect()
        tasks, files = len(asyncio.all_tasks(loop)), descriptors()
        for start in range(0, 100, 10):
            await asyncio.gather(*(one(number) for number in range(start, start + 10)))
        await until(lambda: len(asyncio.all_tasks(loop)) <= tasks, "tasks gone")
        await until(lambda: descriptors() <= files, "descriptors gone")
        assert makes.counters.queued_bytes == makes.counters.held_bytes == 0
        assert makes.counters.calls.total() == 101
        assert makes.counters.calls["internal_error"] == 0
        assert sum(makes.counters.connects.counts) >= 68
