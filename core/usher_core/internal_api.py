"""Models of the internal API between signaling, operator and transceiver (design D19, docs/internal-api.md).

HTTP and JSON under `/internal/v1`, `Authorization: Bearer <internal token>` on every request. Times are in ms.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from usher_core.errors import LocalError
from usher_core.event_policy import OPEN, EventPolicy
from usher_core.keys import HeldKey

BASE_PATH = "/internal/v1"
MAX_SDP = 64 * 1024
MAX_SESSION_JSON = 256 * 1024
REQUEST_ID_LIFE_S = 60
DEFAULT_PAGE = 20
MAX_PAGE = 100
"""Sessions of one answer of `GET /sessions`."""
REQUEST_ID = "[A-Za-z0-9_-]{8,64}"
EVENT_POLICY_HEADER = "Usher-Event-Policy"
"""Of `GET /sessions/{id}/events`: the observer's policy, as JSON; none is no limit."""
RELAY_IDLE_S = 10.0
"""Seconds without life of any flow after which a relay carries no calls: it remembers flows for longer."""

SessionIdText = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$", description="64 random bits in hex")]
IceUfrag = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{4,256}$")]
IcePassword = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{22,256}$")]
State = Literal["new", "connecting", "connected", "ended"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Answer(_Model):
    """May say more than is known here: while a fleet is upgraded, two versions of it speak with each other."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class AdvertisedAddress(_Model):
    """One public address of a relay, to stand in the answer as a candidate, and the listener behind it."""

    listener: int = Field(ge=0, le=0xFFFF)
    host: str = Field(max_length=64, description="an IP address")
    port: int = Field(ge=1, le=0xFFFF)


class CreateSession(_Model):
    """`POST /sessions`: an offer that wants an answer.

    `request_id` makes it idempotent for 60 s: the same id gets the same answer, not a second session.
    """

    request_id: str = Field(pattern=rf"^{REQUEST_ID}$")
    offer: str = Field(max_length=MAX_SDP)
    advertise: tuple[AdvertisedAddress, ...] = Field(min_length=1, max_length=16)
    tenant: str = Field(max_length=64, description="who placed the call; the id, never a key")
    session: dict[str, Any] = Field(default_factory=dict, description="the caller's `session` object, as given")
    backend: str | None = Field(default=None, max_length=64, description="None: the transceiver's default")
    deadline_ms: int = Field(default=5000, ge=1, le=60_000, description="how long the caller will wait")
    traceparent: str | None = Field(default=None, max_length=128, description="W3C trace context")
    metadata: dict[str, str] = Field(default_factory=dict, max_length=64)
    event_policy: EventPolicy = Field(default=OPEN, description="what the client may send and see on its channel")


class Drain(_Model):
    """`POST /drain`, whose body may be left out: no calls from now on."""

    deadline_s: float | None = Field(
        default=None,
        gt=0,
        le=604_800,
        description="seconds after which calls that still go on are ended; None: they go on until they end",
    )


class Load(_Answer):
    """`GET /load`: what placement and scale-down need."""

    sessions: int = Field(ge=0)
    max_sessions: int = Field(ge=0)
    draining: bool = False
    accepts: bool = Field(description="whether a create would be admitted now")
    created: int = Field(default=0, ge=0, description="sessions made since the start, this one included")
    tenants: dict[str, int] = Field(
        default_factory=dict, description="live sessions by tenant; only in the answer to `GET /load`"
    )
    cpu: float | None = Field(
        default=None, ge=0, description="CPU used in the last 5 s, in cores; only in the answer to `GET /load`"
    )
    loop_lag_ms: float | None = Field(
        default=None, ge=0, description="how late the event loop was at most in these; only there as well"
    )


class HeldKeys(_Answer):
    """`GET /keys` of a transceiver, and `/keys` of a relay's admin page: the keys it holds, never the keys."""

    keys: tuple[HeldKey, ...] = Field(max_length=4_096)
    ufrags: dict[str, int] = Field(
        default_factory=dict, description="transceiver: live ufrags by key letter; a call has one, for some seconds two"
    )


class SessionCreated(_Answer):
    """201 of `POST /sessions`."""

    session_id: SessionIdText
    answer: str
    ufrag: IceUfrag
    load: Load


class RestartIce(_Model):
    """`POST /sessions/{id}/restart`: the client's new credentials (RFC 9725 section 4.3.3)."""

    ufrag: IceUfrag
    pwd: IcePassword = Field(repr=False)


class IceRestarted(_Answer):
    """200 of restart: our new generation. `candidates` are the values of `a=candidate` lines."""

    ufrag: IceUfrag
    pwd: IcePassword = Field(repr=False)
    candidates: tuple[str, ...]
    mids: tuple[str, ...]


class Trickle(_Model):
    """`POST /sessions/{id}/trickle`: candidates of the client. An ICE-lite agent accepts and ignores them (204)."""

    ufrag: IceUfrag | None = None
    pwd: IcePassword | None = Field(default=None, repr=False)
    candidates: tuple[str, ...] = Field(default=(), max_length=64)
    end_of_candidates: bool = False


class SessionPath(_Answer):
    """How a call travels, for support and the demo page."""

    relay: str | None = Field(
        default=None,
        description="HOST:PORT of the listener in use, where one address of it has the client's IP version",
    )
    listener: int | None = None
    cluster: int
    pod: int
    worker: int


class Timings(_Answer):
    """Milliseconds from the arrival of the offer; None until it happened."""

    answer_ms: float | None = None
    ice_ms: float | None = Field(default=None, description="first valid check")
    dtls_ms: float | None = Field(default=None, description="DTLS finished")
    first_audio_in_ms: float | None = None
    first_audio_out_ms: float | None = None


class SessionInfo(_Answer):
    """`GET /sessions/{id}`."""

    session_id: SessionIdText
    tenant: str
    state: State
    backend: str
    path: SessionPath
    timings: Timings
    age_s: float
    ufrag: IceUfrag = Field(description="ours, of the newest generation; signaling makes the WHIP entity tag of it")
    remote_ufrags: tuple[IceUfrag, ...] = Field(
        min_length=1,
        description="the client's, of the newest generation, one per section at most; another one asks for a restart",
    )
    end_reason: str | None = None
    observers: int = Field(default=0, ge=0, description="how many look on at its events")


class SessionList(_Answer):
    """`GET /sessions?tenant=&limit=&after=`: a tenant's live sessions in the order of their ids, from `after` on.

    Ids are random, so the order says nothing; but it is one order for all transceivers, and pages need no more.
    """

    sessions: tuple[SessionInfo, ...] = Field(max_length=MAX_PAGE)
    has_more: bool


class SessionEnded(_Answer):
    """200 of `DELETE /sessions/{id}` and of `DELETE /requests/{request_id}`."""

    session_id: SessionIdText
    reason: str


class ErrorBody(_Answer):
    """The object inside an error answer; the same shape as in the public API."""

    type: str
    code: str
    message: str
    param: str | None = None


class ErrorAnswer(_Answer):
    """Any answer that is not 2xx."""

    error: ErrorBody


MIN_TOKEN = 16
"""Characters of the internal token; `usher keys new` makes 43."""


def parse_token(text: str) -> str:
    """Return the internal token in the text of its file. Raises LocalError, which does not quote it."""
    token = text.strip()
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise LocalError(
            f"the internal token is expected to be one line of {MIN_TOKEN} or more printable ASCII characters",
            "make one with `usher keys new`",
        )
    return token


def error_type(status: int) -> str:
    """Return the `type` of an error by its HTTP status: whose fault it is."""
    return "server_error" if status >= 500 else "invalid_request_error"


def error_answer(kind: str, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """Return the JSON of an error answer."""
    return ErrorAnswer(error=ErrorBody(type=kind, code=code, message=message, param=param)).model_dump()
