"""The HTTP side: /internal/v1 for signaling and the operator, /livez, /readyz and /metrics (docs/internal-api.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from usher_core.errors import LocalError, RemoteError
from usher_core.event_policy import EventPolicy
from usher_core.internal_api import (
    BASE_PATH,
    DEFAULT_PAGE,
    EVENT_POLICY_HEADER,
    MAX_PAGE,
    CreateSession,
    Drain,
    HeldKeys,
    IceRestarted,
    Load,
    RestartIce,
    SessionCreated,
    SessionEnded,
    SessionIdText,
    SessionInfo,
    SessionList,
    Trickle,
    error_answer,
    error_type,
)
from usher_transceiver.backends.registry import BackendFailedError
from usher_transceiver.http_guard import HttpGuard
from usher_transceiver.observer import SocketObserver
from usher_transceiver.process_load import ProcessLoad
from usher_transceiver.session import EndReason, Session
from usher_transceiver.sessions import RETRY_AFTER_S, NotAdmittedError, SessionRegistry


class ApiError(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.answer = _error(status, code, message, param)


def _unknown_session() -> ApiError:
    return ApiError(404, "unknown_session", "no live session has this id")


def make_app(
    sessions: SessionRegistry,
    token: Callable[[], str],
    clock: Callable[[], float],
    metrics: CollectorRegistry,
    is_live: Callable[[], bool],
    process: ProcessLoad,
) -> FastAPI:
    """Return the ASGI application.

    Args:
        sessions: of this process.
        token: gives the internal token.
        clock: seconds, monotonic.
        metrics: what /metrics shows.
        is_live: whether the loop and the hop socket go round.
        process: how busy the process is.
    """
    app = FastAPI(title="usher transceiver", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(HttpGuard, token=token, clock=clock)
    _add_errors(app)
    _add_probes(app, metrics, is_live)
    _add_session_routes(app, sessions, clock)
    _add_routes_of_a_session(app, sessions)
    _add_events_route(app, sessions, clock)
    _add_load_routes(app, sessions, process)
    return app


def _error(status: int, code: str, message: str, param: str | None = None) -> JSONResponse:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    return JSONResponse(error_answer(error_type(status), code, message, param), status, headers)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(NotAdmittedError)
    async def not_admitted(_request: Request, error: NotAdmittedError) -> Response:
        return _error(503, error.code, error.message)

    @app.exception_handler(RemoteError)
    async def remote(_request: Request, error: RemoteError) -> Response:
        return _error(409 if error.reason == "request_closed" else 400, error.reason, error.message)

    @app.exception_handler(LocalError)
    async def local(_request: Request, error: LocalError) -> Response:
        return _error(500, "transceiver", str(error))

    @app.exception_handler(BackendFailedError)
    async def backend_failed(_request: Request, error: BackendFailedError) -> Response:
        return _error(502, "backend_failed", str(error), "backend")

    @app.exception_handler(ApiError)
    async def ours(_request: Request, error: ApiError) -> Response:
        return error.answer

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"] if part != "body")
        return _error(400, "invalid_request", f"{where or 'body'}: {fault['msg']}", where or None)

    @app.exception_handler(HTTPException)
    async def http(_request: Request, error: HTTPException) -> Response:
        codes = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed"}
        return _error(error.status_code, codes.get(error.status_code, "http"), str(error.detail))


def _add_probes(app: FastAPI, metrics: CollectorRegistry, is_live: Callable[[], bool]) -> None:
    @app.get("/livez")
    @app.get("/readyz")
    async def probe() -> Response:
        # Full, busy and draining are no reasons: a ReplicaSet deletes unready pods first (design D14).
        return PlainTextResponse("ok\n") if is_live() else PlainTextResponse("the hop socket is stuck\n", 503)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_LATEST)


def _add_session_routes(app: FastAPI, sessions: SessionRegistry, clock: Callable[[], float]) -> None:
    @app.post(f"{BASE_PATH}/sessions", status_code=201)
    async def create(body: CreateSession, request: Request) -> SessionCreated:
        late = (clock() - request.scope["usher.arrived"]) * 1000
        if late > body.deadline_ms:
            raise ApiError(504, "deadline", f"{late:.0f} ms passed before this could be looked at")
        try:
            return sessions.create(body)
        except LocalError as error:
            if body.backend is None:
                raise
            raise ApiError(404, "unknown_backend", str(error), "backend") from None

    @app.get(f"{BASE_PATH}/sessions")
    async def page(
        tenant: Annotated[str, Query(max_length=64)],
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE,
        after: SessionIdText = "0" * 16,
    ) -> SessionList:
        return sessions.page(tenant, limit, after)

    @app.get(f"{BASE_PATH}/sessions/{{session_id}}")
    async def look(session_id: str) -> SessionInfo:
        info = sessions.info(session_id)
        if info is None:
            raise _unknown_session()
        return info

    @app.delete(f"{BASE_PATH}/sessions/{{session_id}}")
    async def end(session_id: str) -> SessionEnded:
        session = sessions.get(session_id)
        if session is None:
            raise _unknown_session()
        session.end(EndReason.HANGUP)
        return SessionEnded(session_id=session_id, reason=EndReason.HANGUP)

    @app.delete(f"{BASE_PATH}/requests/{{request_id}}")
    async def end_request(request_id: str) -> SessionEnded:
        ended = sessions.close_request(request_id[:64])
        if ended is None:
            raise ApiError(404, "unknown_request", "this request made no session, and will make none")
        return SessionEnded(session_id=ended[0], reason=ended[1])


def _add_routes_of_a_session(app: FastAPI, sessions: SessionRegistry) -> None:
    def live(session_id: str) -> Session:
        session = sessions.get(session_id)
        if session is None:
            raise _unknown_session()
        return session

    @app.post(f"{BASE_PATH}/sessions/{{session_id}}/restart")
    async def restart(session_id: str, body: RestartIce) -> IceRestarted:
        return sessions.restart_ice(live(session_id), body)

    @app.post(f"{BASE_PATH}/sessions/{{session_id}}/trickle", status_code=204)
    async def trickle(session_id: str, _body: Trickle) -> Response:
        # RFC 8445 section 2.5: a lite agent sends no checks, so the client's candidates are of no use to it.
        live(session_id)
        return Response(status_code=204)


def _add_events_route(app: FastAPI, sessions: SessionRegistry, clock: Callable[[], float]) -> None:
    @app.websocket(f"{BASE_PATH}/sessions/{{session_id}}/events")
    async def events(socket: WebSocket, session_id: str) -> None:
        # Refused before the accept, by an HTTP answer: so signaling can tell its own caller in the same way.
        session = sessions.get(session_id)
        if session is None:
            await socket.send_denial_response(_unknown_session().answer)
            return
        try:
            policy = EventPolicy.model_validate_json(socket.headers.get(EVENT_POLICY_HEADER, "{}"))
        except ValidationError:
            message = f"the header {EVENT_POLICY_HEADER} holds no policy of events"
            await socket.send_denial_response(_error(400, "invalid_request", message, EVENT_POLICY_HEADER))
            return
        observer = SocketObserver(socket, clock, sessions.observers_dropped, policy)
        client_events = socket.query_params.get("client_events", "true") != "false"
        if not session.events.observe(observer, client_events=client_events, policy=policy):
            sessions.observers_dropped["too_many_observers"] += 1
            await socket.send_denial_response(_error(429, "too_many_observers", "enough look on at this call"))
            return
        with sessions.observing():
            await observer.serve(session)


def _add_load_routes(app: FastAPI, sessions: SessionRegistry, process: ProcessLoad) -> None:
    @app.get(f"{BASE_PATH}/load")
    async def load() -> Load:
        busy = {"cpu": round(process.cores, 3), "loop_lag_ms": round(process.lag * 1000, 1)}
        return sessions.load_by_tenant().model_copy(update=busy)

    @app.get(f"{BASE_PATH}/keys")
    async def keys() -> HeldKeys:
        return sessions.held_keys()

    @app.post(f"{BASE_PATH}/drain")
    async def drain(body: Drain | None = None) -> Load:
        sessions.drain(None if body is None else body.deadline_s)
        return sessions.load()

    @app.post(f"{BASE_PATH}/undrain")
    async def undrain() -> Load:
        sessions.undrain()
        return sessions.load()
