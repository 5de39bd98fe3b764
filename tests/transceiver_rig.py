"""A transceiver in this process, a minimal relay with faults on demand, and stock aiortc as the client."""

from __future__ import annotations

import asyncio
import contextlib
import fractions
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCRtpSender, RTCSessionDescription
from aiortc.mediastreams import MediaStreamTrack
from av import AudioFrame

from usher_core import hop
from usher_core.datagram import DatagramClass, classify
from usher_core.hop import HopType, Outer, Record, RecordFlag
from usher_core.ids import ClientPath, pack_address
from usher_core.internal_api import BASE_PATH
from usher_core.ufrag import PASSWORD_KEY_LENGTH, UFRAG_KEY_LENGTH
from usher_transceiver.main import Transceiver
from usher_transceiver.session import EndReason, Session
from usher_transceiver.settings import TransceiverSettings

TOKEN = "test-token-of-32-characters-0000"
POD = 17
HOP_KEY_ID = 3
TONE_HZ = 440
DEADLINE = 10.0


async def until(condition: Callable[[], Any], what: str, deadline: float = DEADLINE) -> Any:
    """Wait for a condition; fail with its name after the deadline."""
    end = time.monotonic() + deadline
    while not (value := condition()):
        assert time.monotonic() < end, f"after {deadline} s still not: {what}"
        await asyncio.sleep(0.005)
    return value


def write_files(folder: Path, hop_key: bytes) -> None:
    import base64

    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    ice = {
        "letter": "a",
        "clusters": [1],
        "ufrag_key": text(secrets.token_bytes(UFRAG_KEY_LENGTH)),
        "password_key": text(secrets.token_bytes(PASSWORD_KEY_LENGTH)),
    }
    keys = {"version": 1, "ice": [ice], "hop": [{"id": HOP_KEY_ID, "key": text(hop_key)}]}
    (folder / "transceiver.json").write_text(json.dumps(keys))
    (folder / "token").write_text(TOKEN + "\n")


class _Endpoint(asyncio.DatagramProtocol):
    def __init__(self, handler: Callable[[bytes, Any], None]) -> None:
        self.handler = handler

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.handler(data, addr)


Filter = Callable[[bytes], bool]


@dataclass
class RelayLog:
    """What passed, newest last: (time, client path, payload, flags)."""

    up: list[tuple[float, ClientPath, bytes]] = field(default_factory=list)
    down: list[tuple[float, ClientPath, bytes, int]] = field(default_factory=list)
    unknown_flow: list[ClientPath] = field(default_factory=list)
    here: list[Record] = field(default_factory=list)


class MiniRelay:
    """Forwards everything to one transceiver, `delay_s` later. `keep_up` and `keep_down` may drop; `rename` fakes NAT
    rebinding.
    """

    def __init__(self, hop_key: bytes, mtu: int = 1400, listener: int = 1) -> None:
        self.hop_key = hop_key
        self.mtu = mtu
        self.listener = listener
        self.return_slot = 0
        self.log = RelayLog()
        self.keep_up: Callable[[ClientPath, bytes], bool] = lambda _path, _payload: True
        self.keep_down: Callable[[ClientPath, bytes], bool] = lambda _path, _payload: True
        self.rename: dict[tuple[str, int], tuple[str, int]] = {}
        self.delay_s = 0.0
        self.swap_halves = False
        self.sinks: dict[ClientPath, Callable[[bytes], None]] = {}
        self.tentative: set[tuple[str, int]] = set()
        self._split_id = 0

    async def start(self, transceiver: str) -> None:
        host, _, port = transceiver.rpartition(":")
        self._to = (host, int(port))
        loop = asyncio.get_running_loop()
        self._public, _ = await loop.create_datagram_endpoint(
            lambda: _Endpoint(self._on_client), local_addr=("127.0.0.1", 0)
        )
        self._upstream, _ = await loop.create_datagram_endpoint(
            lambda: _Endpoint(self._on_transceiver), local_addr=("127.0.0.1", 0)
        )
        self.port = self._public.get_extra_info("sockname")[1]

    def close(self) -> None:
        self._public.close()
        self._upstream.close()

    def _on_client(self, data: bytes, addr: tuple[str, int]) -> None:
        host, port = self.rename.get(addr, addr)
        path = ClientPath(pack_address(host), port, self.listener)
        if self.keep_up(path, data):
            self._later(self.forward, path, data, RecordFlag.TENTATIVE if (host, port) in self.tentative else 0)

    def _later(self, pass_on: Callable[..., None], *what: Any) -> None:
        if self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, pass_on, *what)
        else:
            pass_on(*what)

    def forward(self, path: ClientPath, data: bytes, flags: int = 0) -> None:
        """Send a client's datagram to the transceiver, in two halves where it does not fit."""
        self.log.up.append((time.monotonic(), path, data))
        halves = hop.split(data, self.mtu - hop.OVERHEAD) if len(data) > self.mtu - hop.OVERHEAD else None
        if halves is None:
            self.send(Record(path, data, flags))
            return
        self._split_id += 1
        records = [
            Record(path, halves[0], flags | RecordFlag.SPLIT, self._split_id),
            Record(path, halves[1], flags | RecordFlag.SPLIT | RecordFlag.LAST_PART, self._split_id),
        ]
        for record in reversed(records) if self.swap_halves else records:
            self.send(record)

    def send(self, *records: Record, kind: HopType = HopType.DATA, **changes: Any) -> None:
        self._upstream.sendto(self.encode(*records, kind=kind, **changes), self._to)

    def encode(self, *records: Record, kind: HopType = HopType.DATA, key: bytes | None = None, **changes: Any) -> bytes:
        facts: dict[str, Any] = {
            "to_client": False,
            "cluster": 1,
            "pod": POD,
            "worker": 0,
            "key_id": HOP_KEY_ID,
            "time_ms": int(time.time() * 1000),
            "return_slot": self.return_slot,
        }
        return hop.encode(Outer(kind, **(facts | changes)), records, key or self.hop_key)

    def send_raw(self, datagram: bytes) -> None:
        self._upstream.sendto(datagram, self._to)

    def _on_transceiver(self, data: bytes, _addr: Any) -> None:
        parsed = hop.parse(data)
        assert hop.verify(parsed, self.hop_key)
        assert parsed.outer.to_client
        assert (parsed.outer.cluster, parsed.outer.pod, parsed.outer.worker) == (1, POD, 0)
        assert parsed.outer.return_slot == self.return_slot
        for record in parsed.records:
            match parsed.outer.type:
                case HopType.DATA:
                    self._later(self._to_client, record)
                case HopType.UNKNOWN_FLOW:
                    self.log.unknown_flow.append(record.path)
                case HopType.HERE:
                    self.log.here.append(record)

    def _to_client(self, record: Record) -> None:
        self.log.down.append((time.monotonic(), record.path, record.payload, record.flags))
        assert len(record.payload) <= 1200
        if not self.keep_down(record.path, record.payload):
            return
        if record.path in self.sinks:
            self.sinks[record.path](record.payload)
            return
        address = (record.path.host, record.path.port)
        back = {new: old for old, new in self.rename.items()}
        if address in back:
            self._public.sendto(record.payload, back[address])
        elif address not in self.rename:
            self._public.sendto(record.payload, address)

    def down_to(self, path: ClientPath, kind: DatagramClass | None = None) -> list[bytes]:
        return [p for _, to, p, _ in self.log.down if to == path and (kind is None or classify(p) is kind)]


class ToneTrack(MediaStreamTrack):
    """48 kHz mono sine, 20 ms frames on time."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._position = 0
        self._start = 0.0

    async def recv(self) -> AudioFrame:
        now = time.monotonic()
        self._start = self._start or now
        await asyncio.sleep(max(0.0, self._start + self._position / 48_000 - now))
        phase = 2 * np.pi * TONE_HZ * (self._position + np.arange(960)) / 48_000
        frame = AudioFrame.from_ndarray((np.sin(phase) * 12_000).astype(np.int16)[None, :], "s16", "mono")
        frame.sample_rate = 48_000
        frame.pts = self._position
        frame.time_base = fractions.Fraction(1, 48_000)
        self._position += 960
        return frame


class Client:
    """Stock aiortc, which never sees more than an answer."""

    def __init__(
        self, rig: Rig, *, channel: str | None = "oai-events", audio: bool = True, codec: str | None = None
    ) -> None:
        self.rig = rig
        self.pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.events: list[dict[str, Any]] = []
        self.frames: list[tuple[float, Any]] = []
        self.heard_rate = self.heard_channels = 0
        self.session_id = ""
        self._reader: asyncio.Task[None] | None = None
        self.channel: RTCDataChannel | None = None
        if channel is not None:
            self.channel = self.pc.createDataChannel(channel)
            self.channel.on("message", lambda text: self.events.append(json.loads(text)))
        if audio:
            self.pc.addTrack(ToneTrack())
        else:
            self.pc.addTransceiver("audio", direction="recvonly")
        if codec is not None:
            known = RTCRtpSender.getCapabilities("audio").codecs
            self.pc.getTransceivers()[0].setCodecPreferences([found for found in known if found.mimeType == codec])
        self.pc.on("track", self._on_track)

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._reader = asyncio.ensure_future(self._read(track))

    async def _read(self, track: MediaStreamTrack) -> None:
        with contextlib.suppress(Exception):
            while True:
                frame: Any = await track.recv()
                self.frames.append((time.monotonic(), frame.to_ndarray()))
                self.heard_rate, self.heard_channels = frame.sample_rate, len(frame.layout.channels)

    async def offer(self) -> str:
        await self.pc.setLocalDescription(await self.pc.createOffer())
        return self.pc.localDescription.sdp

    async def call(self, change: Callable[[str], str] = lambda sdp: sdp, **create: Any) -> Session:
        """Place a call and wait until it is connected."""
        created = await self.rig.create(change(await self.offer()), **create)
        self.session_id = created["session_id"]
        self.answer = created["answer"]
        await self.pc.setRemoteDescription(RTCSessionDescription(created["answer"], "answer"))
        session = self.session
        await until(lambda: session.state == "connected", "connected")
        return session

    @property
    def session(self) -> Session:
        session = self.rig.transceiver.sessions.get(self.session_id)
        assert session is not None
        return session

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def hears_tone(self, seconds: float = 0.3) -> bool:
        """Whether the last part of what came is the tone."""
        count = round(seconds / 0.02)
        if len(self.frames) < count:
            return False
        samples = np.concatenate([frame[0, :: self.heard_channels] for _, frame in self.frames[-count:]]).astype(float)
        spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
        peak = np.argmax(spectrum) * self.heard_rate / len(samples)
        return bool(abs(peak - TONE_HZ) < 15 and np.abs(samples).max() > 3000)

    @property
    def remote_path(self) -> ClientPath:
        sending = self.session.participant.agent.sending
        assert sending is not None
        return sending.address

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        await self.pc.close()


class Rig:
    """One transceiver, one relay, any number of clients."""

    def __init__(self, transceiver: Transceiver, relay: MiniRelay, http: httpx.AsyncClient) -> None:
        self.transceiver = transceiver
        self.relay = relay
        self.http = http
        self.clients: list[Client] = []

    @property
    def drops(self) -> Any:
        return self.transceiver.mux.drops

    @property
    def checks(self) -> Any:
        return self.transceiver.mux.checks

    def client(self, **options: Any) -> Client:
        client = Client(self, **options)
        self.clients.append(client)
        return client

    def body(self, offer: str, **create: Any) -> dict[str, Any]:
        return {
            "request_id": secrets.token_hex(8),
            "offer": offer,
            "advertise": [{"listener": 1, "host": "127.0.0.1", "port": self.relay.port}],
            "tenant": "test",
            **create,
        }

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        return await self.http.post(BASE_PATH + path, json=body)

    async def create(self, offer: str, **create: Any) -> dict[str, Any]:
        answer = await self.post("/sessions", self.body(offer, **create))
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created


@contextlib.asynccontextmanager
async def rig(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    """Run everything in the test's loop, and leave nothing behind."""
    hop_key = secrets.token_bytes(16)
    write_files(folder, hop_key)
    facts: dict[str, Any] = {
        "udp": "127.0.0.1:0",
        "http": "127.0.0.1:0",
        "keys_file": folder / "transceiver.json",
        "token_file": folder / "token",
        "cluster": 1,
        "pod": POD,
        "socket_buffer": 212_992,
    }
    transceiver = Transceiver(TransceiverSettings(**(facts | settings)))
    await transceiver.start()
    relay = MiniRelay(hop_key)
    await relay.start(transceiver.udp)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=transceiver.http, headers=headers, trust_env=False) as http:
        built = Rig(transceiver, relay, http)
        try:
            yield built
        finally:
            await asyncio.gather(*(client.close() for client in built.clients), return_exceptions=True)
    await transceiver.stop(EndReason.SHUTDOWN)
    relay.close()
