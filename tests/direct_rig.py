"""Sessions without sockets and in virtual time: what a client sends reaches the mux at once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.transceiver_rig import HOP_KEY_ID, POD, write_files
from usher_core import hop
from usher_core.hop import HopType, Outer, Record
from usher_core.ids import ClientPath, Route
from usher_core.internal_api import AdvertisedAddress, CreateSession
from usher_transceiver.backends.protocol import AudioFrame, AudioKind, BackendCall, Event
from usher_transceiver.certificate import Certificate
from usher_transceiver.media.choose_codec import load_codec
from usher_transceiver.media.codec import EncoderSettings
from usher_transceiver.media.ticker import Ticker
from usher_transceiver.mux import Mux
from usher_transceiver.session import Limits
from usher_transceiver.sessions import RegistrySettings, SessionRegistry
from usher_transceiver.transceiver_keys import TransceiverKeys

ROUTE = Route(1, POD, 0)
RELAY = ("10.0.0.1", 40_000)
WALL = 1_764_000_000.0
CERTIFICATE = Certificate()


class FakeBackend:
    """Does what the test says."""

    audio: AudioKind = "pcm"

    def __init__(self) -> None:
        self.call: BackendCall | None = None
        self.frames: list[AudioFrame] = []
        self.events: list[Event] = []
        self.closed: list[str] = []
        self.started = asyncio.Event()
        self.start_takes = 0.0
        self.close_takes = 0.0
        self.start_error: Exception | None = None
        self.event_error: Exception | None = None
        self.audio_error: Exception | None = None

    async def start(self, call: BackendCall) -> None:
        self.call = call
        await asyncio.sleep(self.start_takes)
        if self.start_error is not None:
            raise self.start_error
        self.started.set()

    def on_audio(self, frame: AudioFrame) -> None:
        if self.audio_error is not None:
            raise self.audio_error
        self.frames.append(frame)

    def on_event(self, event: Event) -> bool:
        if self.event_error is not None:
            raise self.event_error
        self.events.append(event)
        return True

    async def close(self, reason: str) -> None:
        self.closed.append(reason)
        await asyncio.sleep(self.close_takes)


class _DirectRelay:
    def __init__(self, mux: Callable[[], Mux], clock: Callable[[], float], hop_key: bytes) -> None:
        self._mux = mux
        self._clock = clock
        self._hop_key = hop_key
        self.sinks: dict[ClientPath, Callable[[bytes], None]] = {}

    def forward(self, path: ClientPath, payload: bytes, flags: int = 0) -> None:
        outer = Outer(HopType.DATA, False, 1, POD, 0, HOP_KEY_ID, int(WALL * 1000))
        datagram = hop.encode(outer, (Record(path, payload, flags),), self._hop_key)
        self._mux().on_datagram(self._clock(), datagram, RELAY)

    def send(self, datagram: bytes, _to: Any) -> None:
        # Later, as on a wire: nothing of ours runs within what it sent.
        asyncio.get_running_loop().call_soon(self._deliver, datagram)

    def _deliver(self, datagram: bytes) -> None:
        for record in hop.parse(datagram).records:
            sink = self.sinks.get(record.path)
            if sink is not None:
                sink(record.payload)


class DirectRig:
    """Has what `RawClient` needs of a rig."""

    def __init__(self, folder: Path, *, max_sessions: int = 100, **limits: float) -> None:
        hop_key = secrets.token_bytes(16)
        write_files(folder, hop_key)
        self.backends: list[FakeBackend] = []
        self.prepare: Callable[[FakeBackend], None] = lambda _backend: None
        self.clock = asyncio.get_running_loop().time
        keys = TransceiverKeys(folder / "transceiver.json", ROUTE, lambda: WALL)
        self.relay = _DirectRelay(lambda: self.mux, self.clock, hop_key)
        self.mux = Mux(ROUTE, keys, self.relay.send, lambda: WALL)
        self.ticker = Ticker()
        default_limits: dict[str, Any] = {"max_age": 7200.0, "idle": 0.0, "backend_start": 10.0}
        settings = RegistrySettings(
            max_sessions=max_sessions,
            backend="echo",
            backend_config={},
            encoder=EncoderSettings(),
            limits=Limits(**default_limits | limits),
        )
        self.sessions = SessionRegistry(
            ROUTE, keys, self.mux, self.ticker, load_codec(), CERTIFICATE, settings, self.clock
        )
        self.sessions._backends["fake"] = self._make_backend
        self.transceiver = SimpleNamespace(sessions=self.sessions, mux=self.mux)

    def _make_backend(self, _config: Any) -> FakeBackend:
        backend = FakeBackend()
        self.prepare(backend)
        self.backends.append(backend)
        return backend

    async def create(self, offer: str, **create: Any) -> dict[str, Any]:
        facts = {
            "request_id": secrets.token_hex(8),
            "offer": offer,
            "advertise": (AdvertisedAddress(listener=1, host="192.0.2.1", port=3478),),
            "tenant": "test",
            "backend": "fake",
        }
        return self.sessions.create(CreateSession.model_validate(facts | create)).model_dump()

    def close(self) -> None:
        self.ticker.stop()
