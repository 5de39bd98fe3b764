"""From RTP packets to the frames that a backend hears."""

from collections import Counter
from typing import Final

import numpy as np

from usher_core.errors import RemoteError
from usher_transceiver.media.codec import Decoder, PayloadFormat
from usher_transceiver.media.frame import FRAME_BYTES, FRAME_MS, FRAME_SAMPLES, SILENCE, AudioFrame, Origin
from usher_transceiver.media.level import level_dbov
from usher_transceiver.media.opus_packet import OPUS_CLOCK, OPUS_FORMAT
from usher_transceiver.media.red import split_red
from usher_transceiver.media.reorder import Action, JitterBuffer, Step
from usher_transceiver.media.reports import Reception
from usher_transceiver.media.rtp import RtpPacket, parse_rtp

_QUIET_DBOV: Final = -50.0
_FADE: Final = 120  # samples: 5 ms hide the joint where a packet was skipped
_SSRC_HOLD: Final = 1.0  # seconds
_FRAME: Final = OPUS_CLOCK * FRAME_MS // 1000

_ORIGIN: Final = {
    Action.PLAY: Origin.RECEIVED,
    Action.RECOVER: Origin.CONCEALED,
    Action.CONCEAL: Origin.CONCEALED,
    Action.SILENCE: Origin.SILENCE,
}


class AudioReceiver:
    """One client's audio. With a decoder frames are PCM, without one they are the Opus packets themselves.

    Packets that are refused are counted in `dropped` by a bounded set of reasons.
    """

    def __init__(
        self,
        payload_type: int,
        clock_rate: int,
        decoder: Decoder | None,
        payload_format: PayloadFormat = OPUS_FORMAT,
        red_payload_type: int | None = None,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self.reception: Reception | None = None
        self.concealed_samples = 0
        """Of audio made up, at 48 kHz."""
        self.recovered = 0
        """Packets made from the redundancy of the next."""
        self.buffer = JitterBuffer(clock_rate, payload_format)
        self._payload_type = payload_type
        self._red_payload_type = red_payload_type
        self._clock_rate = clock_rate
        self._decoder = decoder
        self._last_packet = 0.0
        self._retired_ssrc: int | None = None
        self._pcm = bytearray()
        self._last_pcm = SILENCE
        self._ahead = 0  # samples at 48 kHz given to the backend before their time; only without a decoder
        self._position_ms = 0

    def on_packet(self, now: float, packet: bytes) -> None:
        """Take a decrypted RTP packet; nothing is raised, what is wrong is counted."""
        try:
            rtp = parse_rtp(packet)
            if rtp.payload_type == self._payload_type:
                if self._accepts_source(now, rtp):
                    self.buffer.put(now, rtp.sequence, rtp.timestamp, rtp.payload)
            elif rtp.payload_type == self._red_payload_type:
                self._on_red(now, rtp)
            else:
                self.dropped["payload_type"] += 1
        except RemoteError as error:
            self.dropped[error.reason] += 1

    def _on_red(self, now: float, rtp: RtpPacket) -> None:
        payload, copies = split_red(rtp.payload, self._payload_type)
        if not self._accepts_source(now, rtp):
            return
        self.buffer.put(now, rtp.sequence, rtp.timestamp, payload)
        for copy in copies:
            sequence, timestamp = rtp.sequence - copy.packets & 0xFFFF, rtp.timestamp - copy.time & 0xFFFFFFFF
            self.buffer.put_copy(now, sequence, timestamp, copy.payload)

    def _accepts_source(self, now: float, rtp: RtpPacket) -> bool:
        """A new SSRC takes over at once; the one before comes back only when the new one is silent."""
        reception = self.reception
        if reception is None or reception.ssrc != rtp.ssrc:
            if rtp.ssrc == self._retired_ssrc and now - self._last_packet < _SSRC_HOLD:
                self.dropped["old_ssrc"] += 1
                return False
            if reception is not None:
                self._retired_ssrc = reception.ssrc
                self.buffer.start_over()
            reception = self.reception = Reception(rtp.ssrc, self._clock_rate, rtp.sequence)
        self._last_packet = now
        reception.on_packet(now, rtp.sequence, rtp.timestamp)
        return True

    def tick(self, now: float) -> list[AudioFrame]:
        """Return what the backend gets for the next 20 ms; nothing before the first packet."""
        if not self.buffer.started:
            return []
        frames = self._packets(now) if self._decoder is None else [self._frame(now, self._decoder)]
        self._position_ms += FRAME_MS
        return frames

    def _packets(self, now: float) -> list[AudioFrame]:
        frames = []
        while self._ahead < _FRAME:
            step = self._pull(now)
            if step.action is not Action.SKIP:
                data = step.payload if step.action is Action.PLAY else b""
                frames.append(AudioFrame(data, self._position_ms, _ORIGIN[step.action]))
            self._ahead += step.samples
        self._ahead -= _FRAME
        return frames

    def _frame(self, now: float, decoder: Decoder) -> AudioFrame:
        origin: Origin | None = None
        skipped = b""
        while len(self._pcm) < FRAME_BYTES:
            step = self._pull(now)
            pcm = self._decode(decoder, step)
            if step.action is Action.SKIP:
                skipped = skipped or pcm
                continue
            if skipped:
                pcm = _join(skipped, pcm)
                skipped = b""
            self._pcm += pcm
            if origin is not Origin.RECEIVED:
                origin = _ORIGIN[step.action]
        data = bytes(self._pcm[:FRAME_BYTES])
        del self._pcm[:FRAME_BYTES]
        self._last_pcm = data
        return AudioFrame(data, self._position_ms, origin or Origin.RECEIVED)

    def _pull(self, now: float) -> Step:
        # The level is only asked for when there is something to gain from it.
        quiet = self.buffer.excess and level_dbov(self._last_pcm) < _QUIET_DBOV
        step = self.buffer.pull(now, quiet=quiet)
        if step.action in (Action.CONCEAL, Action.RECOVER):
            self.concealed_samples += step.samples
            self.recovered += step.action is Action.RECOVER
        return step

    def _decode(self, decoder: Decoder, step: Step) -> bytes:
        samples = step.samples * FRAME_SAMPLES // _FRAME
        match step.action:
            case Action.PLAY | Action.SKIP:
                try:
                    return decoder.decode(step.payload)
                except RemoteError as error:
                    self.dropped[error.reason] += 1
                    return decoder.conceal(samples) if samples else b""
            case Action.RECOVER:
                return decoder.recover(step.payload, samples)
            case Action.CONCEAL:
                return decoder.conceal(samples)
            case Action.SILENCE:
                return bytes(2 * samples)


def _join(skipped: bytes, following: bytes) -> bytes:
    """Cross-fade from the audio that was skipped into what follows it, so that the cut is not a click."""
    old = np.frombuffer(skipped, np.int16)[:_FADE].astype(np.float32)
    new = np.frombuffer(following, np.int16).astype(np.float32)
    length = min(len(old), len(new))
    ramp = np.linspace(0, 1, length, dtype=np.float32)
    new[:length] = old[:length] * (1 - ramp) + new[:length] * ramp
    return new.astype(np.int16).tobytes()
