"""Settings of `usher transceiver`: each with its unit and the reason of its default."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from usher_core.ids import MAX_CLUSTER, MAX_POD, MAX_WORKER, Route
from usher_core.settings import HostPort
from usher_transceiver.backends.realtime.settings import RealtimeSettings
from usher_transceiver.media.choose_codec import CodecPreference


class TransceiverSettings(RealtimeSettings):
    """One transceiver process. The rules of a packet's path (docs/wire.md section 5) are constants, not settings."""

    program: ClassVar[str] = "transceiver"

    udp: HostPort = Field(
        default="127.0.0.1:7200",
        description="HOST:PORT of the hop socket that relays send to; port 0 lets the system choose",
    )
    http: HostPort = Field(
        default="127.0.0.1:7280",
        description="HOST:PORT of /internal/v1, /livez, /readyz and /metrics; port 0 lets the system choose",
    )
    keys_file: Path = Field(description="key file with `ice` and `hop` keys; read again when it changes")
    token_file: Path = Field(description="file with the internal API token, one line")
    cluster: int = Field(
        default=1, ge=1, le=MAX_CLUSTER, description="cluster id: the address space of pod ids; 0 is reserved"
    )
    pod: int = Field(
        ge=0,
        le=MAX_POD,
        description="pod id. No default: two transceivers with one id would get each other's packets. "
        "In Kubernetes it comes from the pod's label by the downward API",
    )
    worker: int = Field(default=0, ge=0, le=MAX_WORKER, description="worker id; version 1 runs one per process")
    max_sessions: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="calls at a time; 100 is what one core decodes and encodes with room for bursts",
    )
    backend: str = Field(default="echo", max_length=64, description="backend of calls that name none")
    backend_config_file: Path | None = Field(
        default=None, description="JSON object with the configuration of the backend; its keys are the backend's affair"
    )
    drain_deadline: float = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="seconds that calls may go on after SIGTERM; a pod's grace period has to be longer by 5 s",
    )
    session_max_age: float = Field(
        default=7200.0,
        ge=10,
        le=604_800,
        description="seconds after which a call ends; it bounds how long an old key has to be kept",
    )
    idle_timeout: float = Field(
        default=0.0,
        ge=0,
        le=86_400,
        description="seconds without speech either way (louder than -50 dBov) and without events of the client or of "
        "observers after which a call ends; 0: never",
    )
    backend_start_limit: float = Field(
        default=10.0, gt=0, le=120, description="seconds a backend may take to get ready; people hang up after that"
    )
    max_observers: int = Field(
        default=8,
        ge=0,
        le=64,
        description="observers (side-bands) of one call at a time; each costs a copy of every event of the call",
    )
    opus_codec: CodecPreference = Field(
        default="auto",
        description="auto prefers libopus and falls back to the codec inside PyAV, which costs twice the CPU",
    )
    opus_bitrate: int = Field(
        default=64_000,
        ge=6_000,
        le=128_000,
        description="bits per second of what we send: 32,000 is clear speech, 64,000 hard to tell from the original",
    )
    opus_complexity: int = Field(
        default=5,
        ge=4,
        le=10,
        description="effort of the Opus encoder; 5 costs half of 10 and is hard to tell from it, and 4 a third less."
        " With less than 4 the first word after a silence is much too loud",
    )
    socket_buffer: int = Field(
        default=4_194_304,
        ge=65_536,
        le=1 << 30,
        description="bytes of the hop socket's receive and send buffers: 1 s of 100 calls: a stall loses no check."
        " Audio that waits longer than 200 ms in it is dropped",
    )
    debug: bool = Field(default=False, description="asyncio's debug mode: slow callbacks are logged; costs CPU")

    @property
    def route(self) -> Route:
        """The route that our ufrags carry."""
        return Route(self.cluster, self.pod, self.worker)
