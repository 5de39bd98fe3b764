"""Signaling in one process for tests: the real application against transceivers that only pretend.

A `FakeTransceiver` is a small ASGI application that implements the internal API (docs/internal-api.md). A `Fleet` is
the network between them: an httpx transport that knows each transceiver by its HTTP address.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from usher_core.internal_api import (
    BASE_PATH,
    CreateSession,
    IceRestarted,
    Load,
    RestartIce,
    SessionCreated,
    SessionEnded,
    SessionInfo,
    SessionList,
    SessionPath,
    Timings,
    Trickle,
    error_answer,
)
from usher_core.routes import RouteFile, Transceiver
from usher_signaling.app import create_app
from usher_signaling.settings import SignalingSettings
from usher_signaling.tracing import Tracer

TOKEN = "internal-token-of-the-tests"
API_KEY = "key-of-acme-0123456789"
OTHER_KEY = "key-of-other-0123456789"
OFFER = "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=ice-ufrag:EsAw\r\n"
ANSWER = "v=0\r\na=setup:passive\r\n"
PASSWORD = "P2uYro0UCOQ4zxjKXaWCBui1"

_sessions = itertools.count(1)


@dataclass
class FakeSession:
    request: CreateSession
    ufrag: str
    remote_ufrags: tuple[str, ...] = ("EsAw", "2nd0")
    state: str = "new"


@dataclass
class FakeTransceiver:
    """Answers like a transceiver. Tests change its fields and read what came."""

    pod: int
    cluster: int = 1
    max_sessions: int = 100
    draining: bool = False
    bad_offer: str = ""
    bad_status: int = 400
    answer_delay: float = 0.0
    dead: bool = False
    broken: bool = False
    refuses_token: bool = False
    region: str = ""
    backends: tuple[str, ...] | None = None
    backend_fails: str = ""
    sessions: dict[str, FakeSession] = field(default_factory=dict)
    created: list[CreateSession] = field(default_factory=list)
    closed_requests: list[str] = field(default_factory=list)
    trickled: list[Trickle] = field(default_factory=list)
    restarts: list[RestartIce] = field(default_factory=list)
    requests: int = 0
    made: int = 0

    def __post_init__(self) -> None:
        self.http = f"http://pod-{self.cluster}-{self.pod}.test:80"
        self.app = self._make_app()

    @property
    def entry(self) -> Transceiver:
        return Transceiver(cluster=self.cluster, pod=self.pod, udp="127.0.0.1:9", http=self.http, region=self.region)

    def load(self) -> Load:
        live = len(self.sessions)
        open_ = not self.draining and live < self.max_sessions
        return Load(
            sessions=live,
            max_sessions=self.max_sessions,
            draining=self.draining,
            accepts=open_,
            created=self.made,
        )

    def _make_app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route(f"{BASE_PATH}/sessions", self._create, methods=["POST"])
        app.add_api_route(f"{BASE_PATH}/sessions", self._page, methods=["GET"])
        app.add_api_route(f"{BASE_PATH}/sessions/{{session_id}}", self._describe, methods=["GET"])
        app.add_api_route(f"{BASE_PATH}/sessions/{{session_id}}", self._end, methods=["DELETE"])
        app.add_api_route(f"{BASE_PATH}/sessions/{{session_id}}/restart", self._restart, methods=["POST"])
        app.add_api_route(f"{BASE_PATH}/sessions/{{session_id}}/trickle", self._trickle, methods=["POST"])
        app.add_api_route(f"{BASE_PATH}/requests/{{request_id}}", self._end_request, methods=["DELETE"])
        app.add_api_route(f"{BASE_PATH}/load", self._load, methods=["GET"])
        return app

    async def _create(self, request: Request) -> Response:
        asked = CreateSession.model_validate_json(await request.body())
        self.created.append(asked)
        if self.answer_delay:
            await asyncio.sleep(self.answer_delay)
        if self.broken:
            return Response("<html>oops</html>", 200)
        if self.bad_offer:
            return _error(self.bad_status, "bad_sdp", self.bad_offer)
        if self.backends is not None and asked.backend is not None and asked.backend not in self.backends:
            return _error(404, "unknown_backend", f"there is no backend {asked.backend!r}")
        if self.backend_fails:
            return _error(502, "backend_failed", self.backend_fails)
        if not self.load().accepts:
            return _error(503, "draining" if self.draining else "full", "no room")
        number = next(_sessions)
        session_id = f"{number:016x}"
        session = FakeSession(asked, f"A{number:022d}")
        self.sessions[session_id] = session
        self.made += 1
        return _json(
            201,
            SessionCreated(session_id=session_id, answer=ANSWER, ufrag=session.ufrag, load=self.load()),
        )

    async def _describe(self, session_id: str) -> Response:
        session = self.sessions.get(session_id)
        if session is None:
            return _error(404, "unknown_session", "no such session")
        return _json(200, self._info(session_id))

    async def _page(self, tenant: str, limit: int, after: str) -> Response:
        if self.answer_delay:
            await asyncio.sleep(self.answer_delay)
        ids = sorted(
            name for name, session in self.sessions.items() if name > after and session.request.tenant == tenant
        )
        infos = tuple(self._info(name) for name in ids[:limit])
        return _json(200, SessionList(sessions=infos, has_more=len(ids) > limit))

    def _info(self, session_id: str) -> SessionInfo:
        session = self.sessions[session_id]
        return SessionInfo(
            session_id=session_id,
            tenant=session.request.tenant,
            state=session.state,
            backend=session.request.backend or "echo",
            path=SessionPath(relay="192.0.2.1:3478", listener=1, cluster=self.cluster, pod=self.pod, worker=0),
            timings=Timings(answer_ms=1.5),
            age_s=2.0,
            ufrag=session.ufrag,
            remote_ufrags=session.remote_ufrags,
        )

    async def _restart(self, request: Request, session_id: str) -> Response:
        session = self.sessions.get(session_id)
        if session is None:
            return _error(404, "unknown_session", "no such session")
        asked = RestartIce.model_validate_json(await request.body())
        self.restarts.append(asked)
        session.remote_ufrags = (asked.ufrag,)
        session.ufrag = f"B{next(_sessions):022d}"
        candidates = ("1 1 udp 2130706431 192.0.2.1 3478 typ host",)
        return _json(200, IceRestarted(ufrag=session.ufrag, pwd="p" * 32, candidates=candidates, mids=("0", "1")))

    async def _trickle(self, request: Request, session_id: str) -> Response:
        if session_id not in self.sessions:
            return _error(404, "unknown_session", "no such session")
        self.trickled.append(Trickle.model_validate_json(await request.body()))
        return Response(status_code=204)

    async def _end(self, session_id: str) -> Response:
        if self.sessions.pop(session_id, None) is None:
            return _error(404, "unknown_session", "no such session")
        return _json(200, SessionEnded(session_id=session_id, reason="hangup"))

    async def _end_request(self, request_id: str) -> Response:
        self.closed_requests.append(request_id)
        for session_id, session in list(self.sessions.items()):
            if session.request.request_id == request_id:
                del self.sessions[session_id]
                return _json(200, SessionEnded(session_id=session_id, reason="hangup"))
        return _error(404, "unknown_session", "no such request")

    async def _load(self) -> Response:
        tenants = Counter(session.request.tenant for session in self.sessions.values())
        return _json(200, self.load().model_copy(update={"tenants": dict(tenants)}))


class FakeRelay:
    """The admin pages of a relay. `delay` is in seconds."""

    def __init__(self, number: int) -> None:
        self.host = f"relay-{number}.test"
        self.ready = (200, "ok\n")
        self.metrics = 'usher_relay_flows{state="confirmed"} 3.0\n'
        self.dead = False
        self.delay = 0.0
        self.asked: list[httpx.Request] = []

    @property
    def admin(self) -> str:
        return f"http://{self.host}:9478"

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if self.dead:
            raise httpx.ConnectError("connection refused")
        await asyncio.sleep(self.delay)
        status, text = self.ready if request.url.path == "/readyz" else (200, self.metrics)
        return httpx.Response(status, text=text)


class Fleet(httpx.AsyncBaseTransport):
    """The network from signaling to its transceivers, and to the admin pages of relays."""

    def __init__(self, transceivers: Iterable[FakeTransceiver], relays: Iterable[FakeRelay] = ()) -> None:
        self.transceivers = list(transceivers)
        self._relays = {relay.host: relay for relay in relays}
        self._by_host = {httpx.URL(fake.http).host: fake for fake in self.transceivers}
        self._transports = {host: httpx.ASGITransport(app=fake.app) for host, fake in self._by_host.items()}
        self.elsewhere: httpx.AsyncBaseTransport | None = None
        """The way to all other hosts."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if relay := self._relays.get(request.url.host):
            return await relay.answer(request)
        if self.elsewhere is not None and request.url.host not in self._by_host:
            return await self.elsewhere.handle_async_request(request)
        fake = self._by_host[request.url.host]
        fake.requests += 1
        if fake.dead:
            raise httpx.ConnectError("connection refused")
        if fake.refuses_token:
            return httpx.Response(401, json=error_answer("invalid_request_error", "invalid_token", "wrong token"))
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        return await self._transports[request.url.host].handle_async_request(request)

    @property
    def session_count(self) -> int:
        return sum(len(fake.sessions) for fake in self.transceivers)


@dataclass
class Clock:
    """Unix seconds that tests move."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Stack:
    """One replica, its fleet, and a client that talks to it. `files` is the folder of its files."""

    client: httpx.AsyncClient
    fleet: Fleet
    clock: Clock
    files: Path
    app: FastAPI

    def write_routes(self, *transceivers: FakeTransceiver) -> None:
        write_routes(self.files, transceivers)


def write_routes(folder: Path, transceivers: Iterable[FakeTransceiver]) -> None:
    table = RouteFile(version=1, transceivers=tuple(fake.entry for fake in transceivers))
    (folder / "routes.json").write_text(table.model_dump_json())


def write_files(folder: Path, transceivers: Iterable[FakeTransceiver]) -> None:
    """Key file, token, API keys and routes, as `usher keys new` and a person would write them."""
    seal = {"id": 1, "key": base64.b64encode(bytes(range(32))).decode()}
    (folder / "keys.json").write_text(json.dumps({"version": 1, "seal": [seal]}))
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "api-keys").write_text(f"# tenants\nacme:{API_KEY}\nother:{OTHER_KEY}\n")
    write_routes(folder, transceivers)


def make_settings(folder: Path, **changes: Any) -> SignalingSettings:
    values: dict[str, Any] = {
        "http": "127.0.0.1:8080",
        "keys_file": folder / "keys.json",
        "token_file": folder / "token",
        "routes_file": folder / "routes.json",
        "api_keys_file": folder / "api-keys",
        "advertise": ("1=192.0.2.1:3478", "2=[2001:db8::1]:3478"),
        # Tests refresh by hand; the background rounds stay out of the way.
        "load_interval": 60,
        "load_life": 600,
    }
    return SignalingSettings(**{**values, **changes})


@contextlib.asynccontextmanager
async def signaling(
    folder: Path,
    *transceivers: FakeTransceiver,
    fleet: Fleet | None = None,
    tracer: Tracer | None = None,
    **changes: Any,
) -> AsyncIterator[Stack]:
    """Run one replica. `fleet` lets several replicas share their transceivers; their files are the same then."""
    network = fleet or Fleet(transceivers or [FakeTransceiver(pod=1)])
    if not (folder / "keys.json").exists():
        write_files(folder, network.transceivers)
    settings = make_settings(folder, **changes)
    clock = Clock()
    app = create_app(settings, clock=clock, transport=network, tracer=tracer)
    keys = {} if settings.is_keyless else {"Authorization": f"Bearer {API_KEY}"}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", headers=keys) as client,
    ):
        yield Stack(client, network, clock, folder, app)


def assert_error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The answer is an error of the documented shape; returns the error object."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"type", "code", "message", "param"}
    assert body["error"]["code"] == code, body
    assert body["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert "Traceback" not in body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


async def until(condition: Callable[[], Awaitable[bool]], within: float = 20.0) -> None:
    """Wait for a condition; fails after `within` seconds."""
    async with asyncio.timeout(within):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.005)


async def place(client: httpx.AsyncClient, **arguments: Any) -> httpx.Response:
    """POST an offer to the call API."""
    headers = {"Content-Type": "application/sdp", **arguments.pop("headers", {})}
    return await client.post("/v1/realtime/calls", content=OFFER, headers=headers, **arguments)


async def place_whip(client: httpx.AsyncClient) -> httpx.Response:
    response = await client.post("/whip", content=OFFER, headers={"Content-Type": "application/sdp"})
    assert response.status_code == 201, response.text
    return response


def _json(status: int, model: BaseModel) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse(error_answer("invalid_request_error", code, message), status)
