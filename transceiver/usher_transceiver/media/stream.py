"""The audio of one call, both ways, without I/O: decrypted packets and the time in, plain packets out.

    session                      AudioStream                          backend
    on_rtp(now, packet)  ──────► receiver: jitter buffer, decoder ──► sink(AudioFrame)   at each tick
    tick(now) -> packets ◄────── sender: queue, encoder, RTP      ◄── play(), play_opus(), clear()
    on_rtcp(now, packet) ──────► reports: loss, jitter, round trip

Within one tick the received frame goes to the sink before the sender looks at its queue, so a backend that plays
from within `on_audio` adds no delay of its own.

Authentication, replay and "is it newer" are the session's (SRTP); here a packet can only be wrong, and is counted.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random, SystemRandom
from typing import Final, Literal

from usher_core.errors import LocalError, RemoteError
from usher_transceiver.media.codec import Codec, EncoderSettings
from usher_transceiver.media.feed import OpusFeed, PcmFeed
from usher_transceiver.media.frame import AudioSink
from usher_transceiver.media.g711 import G711
from usher_transceiver.media.opus_packet import OPUS_CLOCK, OPUS_FORMAT
from usher_transceiver.media.receiver import AudioReceiver
from usher_transceiver.media.reports import ntp, round_trip
from usher_transceiver.media.resend import SentPackets
from usher_transceiver.media.rtcp import (
    Bye,
    Nack,
    Report,
    ReportBlock,
    build_bye,
    build_cname,
    build_report,
    parse_rtcp,
)
from usher_transceiver.media.sender import RtpSender

_REPORT_INTERVAL: Final = 2.0
WIDEBAND_RATE: Final = 16_000
_MAX_EXPECTED_LOSS: Final = 30
"""Per cent. Beyond it more redundancy takes more from the speech than it saves."""
_COPIES_FROM: Final = 2.0
_COPIES_UNTIL: Final = 0.5
"""Per cent of our packets lost, as the client's reports tell it: between these copies are sent as long as they were."""


@dataclass(frozen=True, slots=True)
class StreamParameters:
    """What the negotiation decided, for one audio section. Raises LocalError when it cannot be."""

    ssrc: int
    """Ours, as in the answer's a=ssrc; the same for the life of the call, ICE restarts included."""
    cname: str
    """Ours, 1 to 255 bytes of UTF-8 (RFC 3550 section 6.5.1)."""
    payload_type: int
    """Of the codec, as offered; used in both directions."""
    red_payload_type: int | None = None
    """Of packets that carry copies of earlier ones (`red`), in both directions; None if not agreed."""
    encoding: Literal["opus", "pcmu", "pcma"] = "opus"
    """The codec; only Opus where the backend's kind is ``opus``."""
    clock_rate: int = OPUS_CLOCK
    """RTP clock in Hz: 48000 by RFC 7587, 16000 for devices that offered opus/16000/1; 8000 of G.711."""
    mid: str = ""
    mid_extension_id: int | None = None
    """Header extension id 1-14 under which every packet says its mid (RFC 9143), 1-16 bytes; None if not agreed."""
    level_extension_id: int | None = None
    """Header extension id 1-14 of the audio level (RFC 6464); None if not agreed."""
    kind: Literal["pcm", "opus"] = "pcm"
    """What the backend wants to get and give."""
    uses_inband_fec: bool = True
    """Whether the client makes anything of Opus' redundancy."""
    answers_nack: bool = False
    """Whether the client asks for lost packets again."""
    max_queue_ms: int = 120_000
    """Bound of the play queue: models give a whole answer at once, faster than it is spoken."""
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    """`wideband` is set by itself where the client's clock shows that it decodes no more."""

    def __post_init__(self) -> None:
        if self.clock_rate not in (8_000, 12_000, 16_000, 24_000, OPUS_CLOCK):
            raise LocalError(f"an RTP clock of {self.clock_rate} Hz is not one of Opus' rates", "use 48000 or 16000")
        if not 0 <= self.payload_type <= 127:
            raise LocalError(f"an RTP payload type is 0 to 127, not {self.payload_type}")
        if self.encoding != "opus" and self.kind == "opus":
            raise LocalError(f"a backend of kind opus cannot speak {self.encoding}", "refuse the offer")


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Counters since the beginning, and values of this moment."""

    packets_received: int
    packets_sent: int
    resent: int
    """Packets sent again, because the client asked for them (NACK)."""
    octets_sent: int
    """Payload only, as in sender reports."""
    lost: int
    """Packets of the client that did not come (RFC 3550 appendix A.3)."""
    late: int
    """Packets that came after their place was filled."""
    concealed_ms: int
    """Audio made up for lost and late packets."""
    recovered: int
    """Lost packets made from the redundancy of the next one, or replaced by the copy in it."""
    skipped: int
    """Packets not played, to lower the delay."""
    dropped: dict[str, int]
    """Packets refused or without effect (a BYE), by a bounded set of reasons."""
    jitter_ms: float
    """Of arrival (RFC 3550 appendix A.8)."""
    delay_ms: float
    """That the jitter buffer adds now."""
    target_ms: float
    """That it aims for."""
    rtt_ms: float | None
    """Round trip by RTCP; None until a report has shown one."""
    remote_lost_percent: float
    """Of our packets, by the client's last report."""
    queue_ms: int
    """Waiting in the play queue."""
    played_ms: int
    queue_dropped_ms: int
    """Did not fit the queue, or was cleared."""


class AudioStream:
    """One per call; not thread-safe. `sink` gets the client's audio from within `tick` and must not block.

    Args:
        parameters: what was negotiated.
        opus: the Opus codec of this process.
        sink: see above.
        now: the time, as in every call.
        random: of start values and of the times of reports.
    """

    def __init__(
        self, parameters: StreamParameters, opus: Codec, sink: AudioSink, now: float, random: Random | None = None
    ) -> None:
        self._parameters = parameters
        self._sink = sink
        self._random = random or SystemRandom()
        self._started_at = now
        pcm = parameters.kind == "pcm"
        g711 = None if parameters.encoding == "opus" else G711(parameters.encoding)
        codec, payload_format = (opus, OPUS_FORMAT) if g711 is None else (g711, g711.format)
        wideband = parameters.encoder.wideband or parameters.clock_rate <= WIDEBAND_RATE
        self._feed = (
            PcmFeed(
                codec.encoder(replace(parameters.encoder, wideband=wideband)), parameters.max_queue_ms, payload_format
            )
            if pcm
            else OpusFeed(parameters.max_queue_ms)
        )
        mid = None if parameters.mid_extension_id is None else (parameters.mid_extension_id, parameters.mid)
        self._sender = RtpSender(
            parameters.ssrc,
            parameters.payload_type,
            parameters.clock_rate,
            self._feed,
            now,
            self._random,
            mid=mid,
            level_extension_id=parameters.level_extension_id,
        )
        decoder = codec.decoder() if pcm else None
        self._receiver = AudioReceiver(
            parameters.payload_type, parameters.clock_rate, decoder, payload_format, parameters.red_payload_type
        )
        self._sent = SentPackets() if parameters.answers_nack else None
        self._again: list[bytes] = []
        self._report_at = now + self._random.uniform(0.25, 0.75)
        self._reported_packets = 0
        self._rtcp_dropped: Counter[str] = Counter()
        self._rtt: float | None = None
        self._remote_lost = 0.0
        self._lost = 0.0  # per cent, half of it the newest report's
        self._copying = False
        self._expected_loss = 0

    @property
    def queued_ms(self) -> int:
        """Audio accepted and not yet sent."""
        return self._feed.queued_ms

    @property
    def played_ms(self) -> int:
        """Audio sent since the call began, silence between not counted."""
        return self._feed.played_ms

    @property
    def spoken(self) -> int:
        """Packets sent that have something to hear in them."""
        return self._sender.spoken

    def on_rtp(self, now: float, packet: bytes) -> None:
        """Take a decrypted, authenticated RTP packet; never raises."""
        self._receiver.on_packet(now, packet)

    def on_rtcp(self, now: float, packet: bytes) -> None:
        """Take a decrypted, authenticated RTCP compound packet; never raises, and nothing in it ends the stream."""
        try:
            items = parse_rtcp(packet)
        except RemoteError as error:
            self._rtcp_dropped[error.reason] += 1
            return
        for item in items:
            if isinstance(item, Bye):
                # Browsers say BYE on hold; the call's life is ICE's and DTLS' matter, not RTCP's.
                self._rtcp_dropped["rtcp_bye"] += 1
            elif isinstance(item, Nack):
                self._on_nack(item)
            else:
                self._on_report(now, item)

    def _on_nack(self, nack: Nack) -> None:
        if self._sent is not None and nack.ssrc == self._parameters.ssrc:
            self._again += self._sent.take(nack.sequences)

    def _on_report(self, now: float, report: Report) -> None:
        reception = self._receiver.reception
        if report.ntp is not None and reception is not None and reception.ssrc == report.ssrc:
            reception.on_sender_report(now, report.ntp)
        for block in report.blocks:
            if block.ssrc == self._parameters.ssrc:
                self._on_block(now, block)

    def _on_block(self, now: float, block: ReportBlock) -> None:
        rtt = round_trip(block, self._ntp(now))
        self._rtt = self._rtt if rtt is None else rtt
        self._remote_lost = block.fraction_lost * 100 / 256
        self._lost = (self._lost + self._remote_lost) / 2
        # Copies are the better means: the speech keeps its bits, and no encoder works harder for them.
        if self._parameters.red_payload_type is not None:
            self._copying = self._lost >= (_COPIES_UNTIL if self._copying else _COPIES_FROM)
            self._sender.send_copies(self._parameters.red_payload_type if self._copying else None)
        elif self._parameters.uses_inband_fec and isinstance(self._feed, PcmFeed):
            self._expect_loss(self._feed)

    def _expect_loss(self, feed: PcmFeed) -> None:
        # In steps of 5 %, so that one bad report does not change the codec's mode.
        expected = min(_MAX_EXPECTED_LOSS, round((self._expected_loss + self._remote_lost) / 2 / 5) * 5)
        if expected != self._expected_loss:
            feed.encoder.expect_loss(expected)
        self._expected_loss = expected

    def tick(self, now: float) -> list[bytes]:
        """Give the sink its frame and return the plain packets to protect and send now, RTP and RTCP.

        `usher_core.rtp.is_rtcp` tells the two apart. To be called every 20 ms, first when SRTP is ready.
        """
        for frame in self._receiver.tick(now):
            self._sink(frame)
        packets = self._sender.tick(now)
        if self._sent is not None:
            self._sent.keep(packets)
            packets += self._again
            self._again.clear()
        if now >= self._report_at:
            # RFC 3550 section 6.3.1: at random times, so that the reports of many calls do not come together.
            self._report_at = now + self._random.uniform(0.5, 1.5) * _REPORT_INTERVAL
            packets.append(self._report(now))
        return packets

    def play(self, pcm: bytes) -> int:
        """Queue s16le mono 24 kHz PCM; return the milliseconds accepted. Only for kind ``pcm``, else LocalError."""
        if not isinstance(self._feed, PcmFeed):
            raise LocalError("a backend of kind opus plays packets, not PCM", "call play_opus, or set audio = 'pcm'")
        return self._feed.play(pcm)

    def play_opus(self, packet: bytes) -> int:
        """Queue an Opus packet; return the milliseconds accepted. Only for kind ``opus``, else LocalError."""
        if not isinstance(self._feed, OpusFeed):
            raise LocalError("a backend of kind pcm plays PCM, not packets", "call play, or set audio = 'opus'")
        return self._feed.play_opus(packet)

    def clear(self) -> int:
        """Drop what is queued; return the milliseconds dropped."""
        return self._feed.clear()

    def goodbye(self, now: float) -> bytes:
        """Return the last RTCP packet of the call, with a BYE."""
        return self._report(now) + build_bye((self._parameters.ssrc,))

    def _report(self, now: float) -> bytes:
        reception = self._receiver.reception
        blocks = () if reception is None else (reception.block(now),)
        ssrc, sender = self._parameters.ssrc, self._sender
        # RFC 3550 section 6.4: a sender report only from those who have sent since the last.
        if sender.packets == self._reported_packets:
            report = Report(ssrc, blocks)
        else:
            report = Report(ssrc, blocks, self._ntp(now), sender.timestamp, sender.packets, sender.octets)
        self._reported_packets = sender.packets
        return build_report(report) + build_cname(ssrc, self._parameters.cname)

    def _ntp(self, now: float) -> int:
        # One second ahead, because a last SR of 0 means that there was none.
        return ntp(now - self._started_at + 1)

    def stats(self, now: float) -> StreamStats:
        """Return a snapshot."""
        receiver, sender, reception = self._receiver, self._sender, self._receiver.reception
        counts = receiver.buffer.counts
        clock = self._parameters.clock_rate
        return StreamStats(
            packets_received=reception.received if reception else 0,
            packets_sent=sender.packets,
            resent=0 if self._sent is None else self._sent.resent,
            octets_sent=sender.octets,
            lost=reception.lost if reception else 0,
            late=counts.late,
            concealed_ms=receiver.concealed_samples * 1000 // OPUS_CLOCK,
            recovered=receiver.recovered + counts.repaired,
            skipped=counts.skipped + counts.overflow,
            dropped=dict(receiver.dropped + self._rtcp_dropped + Counter(media_jump=counts.jumps)),
            jitter_ms=reception.jitter * 1000 / clock if reception else 0.0,
            delay_ms=receiver.buffer.lag(now) * 1000,
            target_ms=receiver.buffer.delay.target * 1000,
            rtt_ms=None if self._rtt is None else self._rtt * 1000,
            remote_lost_percent=self._remote_lost,
            queue_ms=self._feed.queued_ms,
            played_ms=self._feed.played_ms,
            queue_dropped_ms=self._feed.dropped_ms,
        )
