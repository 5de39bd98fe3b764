"""Puts packets in order and decides, every time audio is needed, what to play: the jitter buffer, without I/O.

The rules, from the point of view of `pull`:

1. *Position* is the media time that is needed next. *Lag* is how much later than at the network's best it is played.
   The lag should lie between the target (`delay.DelayEstimator`) and one frame above it.
2. The packet for the position is there: play it.
3. It is missing, and a later one is there: it is lost, and the gap is filled at once, from the later packet's
   redundancy if it is the next. Position moves on, so that a lost packet costs neither a stall nor delay.
   If the lag is a frame or more above the target, the gap is cut out instead.
4. Nothing is there: make something up, but stay. If the packet comes after all, nothing of what it says is lost, and
   the lag has grown by what was made up; if a later one comes, the time made up counts against the gap.
5. After a pause (the start, DTX, rule 4) the first packet waits until its lag reaches the target.
6. Too much lag for some time: one packet is decoded but not played (`Action.SKIP`); at once when it is quiet.
7. A copy of a packet (RED) comes with a later one and takes its place, unless what was made up fills that already.
   Where 1 % and more are lost, the lag grows until copies come in time, and in-band FEC of the next packet likewise.

A lag beyond `_MAX_LAG` can only come from a stall of our own; it is cut at once. Packets held are bounded.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from usher_transceiver.media.codec import PayloadFormat
from usher_transceiver.media.delay import DelayEstimator
from usher_transceiver.media.frame import FRAME_SECONDS
from usher_transceiver.media.opus_packet import OPUS_CLOCK, OPUS_FORMAT
from usher_transceiver.media.sequence import Unwrapper

_MAX_PACKETS: Final = 64
_MAX_LAG: Final = 0.5
_MAX_CONCEALED: Final = 0.100
"""Seconds of made-up audio in a row; then the decoder's guess is noise, and silence is better."""
_EXCESS: Final = 0.010
_PATIENCE: Final = 0.3
_MAX_JUMP: Final = 3000  # RFC 3550 appendix A.1, MAX_DROPOUT
_MAX_MISORDER: Final = 100  # the same, MAX_MISORDER
_MAX_TIME_JUMP: Final = 2.0
_MAX_TIME_JUMP_AFTER_SILENCE: Final = 0.3  # some devices stop their RTP clock while they are mute
_SILENCE: Final = 0.5
_CLOCK_VOTES: Final = 3


class Action(Enum):
    """What the decoder has to do."""

    PLAY = auto()
    SKIP = auto()  # decode `payload`, so that the decoder stays right, and throw the audio away
    RECOVER = auto()  # make up a lost packet with the redundancy in `payload`, the packet that follows
    CONCEAL = auto()
    SILENCE = auto()


class Step(NamedTuple):
    """`samples` is the duration at 48 kHz of the audio that this step gives."""

    action: Action
    samples: int
    payload: bytes = b""


@dataclass(slots=True)
class BufferCounts:
    """Packets, since the beginning."""

    late: int = 0
    """Came after their place was filled, or twice."""
    lost: int = 0
    """Never came before their place had to be filled."""
    jumps: int = 0
    """Sequence or time jumped; the buffer started anew."""
    overflow: int = 0
    """Dropped because the buffer was full or our own loop had stalled."""
    skipped: int = 0
    """Not played, to lower the delay."""
    repaired: int = 0
    """Lost, and replaced by a copy."""


class _Held(NamedTuple):
    time: int  # unwrapped RTP time, at 48 kHz
    samples: int
    payload: bytes


_FRAME: Final = round(FRAME_SECONDS * OPUS_CLOCK)


class JitterBuffer:
    """For one SSRC. `clock_rate` is the negotiated one; all durations inside are at 48 kHz."""

    def __init__(self, clock_rate: int, payload_format: PayloadFormat = OPUS_FORMAT) -> None:
        self._format = payload_format
        self.counts = BufferCounts()
        self.delay = DelayEstimator()
        self._scale = OPUS_CLOCK // clock_rate
        self._packets: dict[int, _Held] = {}
        self._sequence: Unwrapper | None = None
        self._timestamp: Unwrapper | None = None
        self._suspect: int | None = None  # the sequence number that would confirm a jump
        self._fresh = True  # nothing played since the (re)start
        self._before: tuple[int, int, int] = (0, 0, 0)  # sequence, raw time and duration of the last arrival
        self._clock_votes = 0
        self._expected = 0  # unwrapped sequence number
        self._position = 0  # media time, 48 kHz
        self._made_up = 0  # since position last moved, 48 kHz
        self._paused = True  # rule 5
        self._quiet_pause = False  # the client said that it stops (DTX)
        self._excess_since: float | None = None

    @property
    def started(self) -> bool:
        """Whether any packet has come."""
        return self._timestamp is not None

    @property
    def excess(self) -> bool:
        """Whether more is waiting than there should be, so that `pull` would like to skip."""
        return self._excess_since is not None

    def lag(self, now: float) -> float:
        """Return how much later than at the network's best the next sample would be played, in seconds."""
        return self._lag_of(now, self._position + self._made_up) if self.started else 0.0

    def start_over(self) -> None:
        """Forget the source, not the network: the next packet is another SSRC's first."""
        self._sequence = None
        self._packets.clear()

    def put(self, now: float, sequence: int, timestamp: int, payload: bytes) -> None:
        """Take a packet as it arrives. Raises RemoteError (reason ``opus_packet``…) when it cannot be the codec's."""
        samples = self._format.duration(payload)
        if self._sequence is None or self._timestamp is None:
            self._restart(now, sequence, timestamp)
        elif not -_MAX_MISORDER <= self._sequence.distance(sequence) <= _MAX_JUMP:
            # RFC 3550 appendix A.1: one wild packet is an accident, two in a row are a new beginning.
            if sequence != self._suspect:
                self._suspect = sequence + 1 & 0xFFFF
                self.counts.jumps += 1
                return
            self._restart(now, sequence, timestamp)
        assert self._sequence is not None
        assert self._timestamp is not None
        self._learn_clock(now, sequence, timestamp, samples)
        number = self._sequence.last + self._sequence.distance(sequence)
        newest = number >= self._sequence.last
        time = self._timestamp.unwrap(timestamp) * self._scale
        if abs(now - time / OPUS_CLOCK - self.delay.base) > self._max_time_jump():
            self.counts.jumps += 1
            if not newest:
                return
            self._restart(now, sequence, timestamp)
            number, time = sequence, timestamp * self._scale
        self._sequence.last = max(self._sequence.last, number)
        self.delay.observe(now, time / OPUS_CLOCK)
        if self._fresh and number < self._expected:
            self._expected, self._position = number, time
        if number < self._expected or number in self._packets:
            self.counts.late += 1
            return
        self._packets[number] = _Held(time, samples, payload)
        before = number - 1
        if before >= self._expected and before not in self._packets and self._format.has_redundancy(payload):
            self.delay.observe_repair(now, (time - samples) / OPUS_CLOCK)
        if len(self._packets) > _MAX_PACKETS:
            self._drop_oldest()

    def put_copy(self, now: float, sequence: int, timestamp: int, payload: bytes) -> None:
        """Take the copy of a packet that a later one brought, after that one (rule 7). Raises RemoteError as `put`."""
        samples = self._format.duration(payload)
        if self._sequence is None or self._timestamp is None:
            return
        number = self._sequence.last + self._sequence.distance(sequence)
        if number < self._expected or number in self._packets:
            return
        time = (self._timestamp.last + self._timestamp.distance(timestamp)) * self._scale
        self.delay.observe_repair(now, time / OPUS_CLOCK)
        if self._position + self._made_up < time + samples:
            self._packets[number] = _Held(time, samples, payload)
            self.counts.repaired += 1

    def pull(self, now: float, *, quiet: bool = False) -> Step:
        """Return what comes next. `quiet`: the audio just played was quiet, so a skip would not be heard."""
        if not self._packets:
            return self._make_up()
        while len(self._packets) > 1 and self._lag_of(now, self._head().time) > _MAX_LAG:
            self._drop_oldest()
        number = self._expected if self._expected in self._packets else min(self._packets)
        head = self._packets[number]
        slack = self._lag_of(now, head.time) - self.delay.target
        if self._paused:
            # Within speech a lag a little below the target is not worth another made-up frame.
            enough = 0 if self._fresh or self._quiet_pause else -_EXCESS
            return self._play(now, number, quiet=quiet) if slack >= enough else self._make_up()  # rules 4, 5
        if head.time <= self._position or slack >= _EXCESS:
            return self._play(now, number, quiet=quiet)  # rules 2, 3
        if number == self._expected:
            return self._make_up()  # a pause in the client's media time: DTX
        return self._fill(number, head, now)

    def _play(self, now: float, number: int, *, quiet: bool) -> Step:
        held = self._packets.pop(number)
        if number > self._expected:
            self.counts.lost += number - self._expected
        self._expected = number + 1
        self._position = held.time + held.samples
        self._made_up = 0
        self._paused = self._fresh = False
        self._quiet_pause = self._format.is_dtx(held.payload)
        if self._too_late(now, held, quiet=quiet):
            self.counts.skipped += 1
            return Step(Action.SKIP, 0, held.payload)
        return Step(Action.PLAY, held.samples, held.payload)

    def _too_late(self, now: float, held: _Held, *, quiet: bool) -> bool:
        """Rule 6."""
        after = self._lag_of(now, held.time) - held.samples / OPUS_CLOCK
        if after < self.delay.target + _EXCESS or not self._packets:
            self._excess_since = None
            return False
        if self._excess_since is None:
            self._excess_since = now
        # Not twice at one time: the next packet may be the beginning of a word.
        if now - self._excess_since >= _PATIENCE or (quiet and now > self._excess_since):
            self._excess_since = now
            return True
        return False

    def _fill(self, number: int, head: _Held, now: float) -> Step:
        """Rule 3: `number` is there, the expected packet before it is not."""
        missing = number - self._expected
        repaired = missing == 1 and self._format.has_redundancy(head.payload)
        if self._lag_of(now, self._position) < self.delay.target - (_EXCESS if repaired else 0):
            return self._make_up()  # early enough to wait for it
        samples = (head.time - self._position) // missing
        if not 0 < samples <= 6 * _FRAME or samples % 120:
            return self._make_up()  # lost packets within a pause: what they said cannot be known
        self._expected += 1
        self._position += samples
        self.counts.lost += 1
        if missing == 1 and samples == head.samples:
            return Step(Action.RECOVER, samples, head.payload)
        return Step(Action.CONCEAL, samples)

    def _make_up(self) -> Step:
        """Rule 4."""
        self._paused = True
        self._made_up += _FRAME
        if self._fresh or self._quiet_pause or self._made_up > _MAX_CONCEALED * OPUS_CLOCK:
            return Step(Action.SILENCE, _FRAME)
        return Step(Action.CONCEAL, _FRAME)

    def _head(self) -> _Held:
        return self._packets[min(self._packets)]

    def _drop_oldest(self) -> None:
        number = min(self._packets)
        held = self._packets.pop(number)
        self._expected = number + 1
        self._position = held.time + held.samples
        self.counts.overflow += 1

    def _lag_of(self, now: float, time: int) -> float:
        return now - self.delay.base - time / OPUS_CLOCK

    def _max_time_jump(self) -> float:
        silent = not self._packets and self._made_up > _SILENCE * OPUS_CLOCK
        return _MAX_TIME_JUMP_AFTER_SILENCE if silent else _MAX_TIME_JUMP

    def _restart(self, now: float, sequence: int, timestamp: int) -> None:
        self._sequence = Unwrapper(16, sequence)
        self._timestamp = Unwrapper(32, timestamp)
        self._packets.clear()
        self._suspect = None
        self._expected = sequence
        self._position = timestamp * self._scale
        self._paused = self._fresh = True
        self.delay.restart()
        self.delay.observe(now, self._position / OPUS_CLOCK)

    def _learn_clock(self, now: float, sequence: int, timestamp: int, samples: int) -> None:
        """Correct the clock rate after a few packets in a row that all contradict it.

        Devices that offer opus/16000/1 are of two minds about RFC 7587: some count at 48 kHz all the same.
        """
        before, time, duration = self._before
        self._before = (sequence, timestamp, samples)
        if sequence != (before + 1 & 0xFFFF) or samples != duration:
            return
        step = timestamp - time & 0xFFFFFFFF
        if step * self._scale == samples or step not in (samples, samples // 3):
            self._clock_votes = 0
            return
        self._clock_votes += 1
        if self._clock_votes == _CLOCK_VOTES:
            self._clock_votes = 0
            self._scale = samples // step
            self._restart(now, sequence, timestamp)
