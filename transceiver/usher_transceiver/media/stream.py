"""The audio of one call, both ways, without I/O: decrypted packets and the time in, plain packets out.

    session                     AudioStream                         backend
    on_rtp(now, packet)  ──────► receiver: jitter buffer, decoder ──► sink(AudioFrame)   at each tick
    tick(now) -> packets ◄────── sender: queue, encoder, RTP      ◄── play(), play_opus(), clear()
    on_rtcp(now, packet) ──────► reports: loss, jitter, round trip

Within one tick the received frame goes to the sink before the sender looks at its queue, so a backend that plays
from within `on_audio` adds no delay of its own.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class StreamParameters:
    """What the negotiation decided, for one audio section."""

    ssrc: int
    """Ours, as in the answer's a=ssrc; the same for the life of the call, ICE restarts included."""
    cname: str
    """Ours, 1 to 255 bytes of UTF-8 (RFC 3550 section 6.5.1)."""
    payload_type: int
    """Of Opus, as offered; used in both directions."""
    clock_rate: int = 48_000
    """RTP clock in Hz: 48000 by RFC 7587, 16000 for devices that offered opus/16000/1."""
    mid: str = ""
    mid_extension_id: int | None = None
    """Header extension id 1-14 under which every packet says its mid (RFC 9143); None when not negotiated."""
    level_extension_id: int | None = None
    """Header extension id 1-14 of the audio level (RFC 6464); None when not negotiated."""
    kind: Literal["pcm", "opus"] = "pcm"
    """What the backend wants to get and give."""
    max_queue_ms: int = 120_000
    """Bound of the play queue: models give a whole answer at once, faster than it is spoken."""

# EARLY SIGNATURES (implementation follows in the next commits)
#
# class AudioStream:
#     def __init__(self, parameters: StreamParameters, codec: Codec, sink: AudioSink, now: float,
#                  random: random.Random | None = None) -> None: ...
#     def on_rtp(self, now: float, packet: bytes) -> None      # decrypted, authenticated RTP; never raises, drops are counted
#     def on_rtcp(self, now: float, packet: bytes) -> None     # decrypted RTCP compound; never raises
#     def tick(self, now: float) -> list[bytes]                # every 20 ms; RTP and RTCP, tell apart by rtp.is_rtcp(packet)
#     def play(self, pcm: bytes) -> int                        # ms accepted
#     def play_opus(self, packet: bytes) -> int                # ms accepted
#     def clear(self) -> int                                   # ms dropped
#     queued_ms: int (property); played_ms: int (property)
#     def goodbye(self, now: float) -> bytes                   # RTCP compound with BYE, at the end of the call
#     def stats(self) -> StreamStats                           # frozen dataclass
#
# codec.load_codec(preference: Literal["auto","libopus","pyav"] = "auto") -> Codec   # once per process
# ticker.Ticker(clock=loop.time): .add(callback: Callable[[float], None]) -> Callable[[], None] (remove); start()/await stop()
# backends.registry.create(name: str, config: BackendConfig) -> Backend   # LocalError naming the known ones; names() -> list[str]
