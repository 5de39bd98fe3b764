"""What all sessions of a process did and hold, those that have ended too: the numbers that metrics.py shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from usher_core.internal_api import SessionInfo
from usher_transceiver.call_histograms import CallHistograms
from usher_transceiver.media.stream import StreamStats
from usher_transceiver.session import Session


class Totals:
    """See the module. A number of a live session is read when it is asked for; that of an ended one was kept.

    Args:
        live: the sessions that run.
        clock: seconds, monotonic.
    """

    def __init__(self, live: Callable[[], Iterable[Session]], clock: Callable[[], float]) -> None:
        self._live = live
        self._clock = clock
        self.ended: Counter[str] = Counter()
        """Sessions by the reason of their end."""
        self.histograms = CallHistograms()
        self._past_unsent = 0
        self._past_lost_events = 0
        self._past_not_allowed = 0
        self._past_audio: Counter[str] = Counter()

    def keep(self, session: Session, info: SessionInfo, now: float) -> None:
        """A session has ended, and is not live any more. `info`: what is said of it at its end, which is `now`."""
        assert session.end_reason is not None
        stats = session.stream.stats(now)
        self.ended[session.end_reason] += 1
        self._past_unsent += session.participant.unsent
        self._past_audio.update(_audio_counts(stats))
        self._past_lost_events += session.events.dropped
        self._past_not_allowed += session.events.not_allowed
        self.histograms.note(info.timings, stats)

    @property
    def unsent(self) -> int:
        """Datagrams that could not be sent, of all sessions so far."""
        return self._past_unsent + sum(session.participant.unsent for session in self._live())

    @property
    def lost_events(self) -> int:
        """Events that could not be sent, of all sessions so far."""
        return self._past_lost_events + sum(session.events.dropped for session in self._live())

    @property
    def refused_events(self) -> int:
        """Events that a policy did not allow, of all sessions so far."""
        return self._past_not_allowed + sum(session.events.not_allowed for session in self._live())

    @property
    def channel_bytes(self) -> int:
        """What waits to be sent on the data channels of all sessions."""
        return sum(session.participant.channel_bytes for session in self._live())

    @property
    def play_queue_ms(self) -> int:
        """Audio that waits to be played in all sessions."""
        return sum(session.stream.queued_ms for session in self._live())

    @property
    def audio(self) -> Counter[str]:
        """What happened to the audio of all sessions so far; see metrics.py."""
        now = self._clock()
        total = self._past_audio.copy()
        for session in self._live():
            total.update(_audio_counts(session.stream.stats(now)))
        return total

    @property
    def transaction_ids(self) -> int:
        """How many ids of checks are remembered for all live sessions."""
        return sum(len(session.participant.agent.memory) for session in self._live())

    @property
    def observers(self) -> int:
        """How many look on at all sessions together."""
        return sum(session.events.observers for session in self._live())


def _audio_counts(stats: StreamStats) -> dict[str, int]:
    return {
        "received": stats.packets_received,
        "sent": stats.packets_sent,
        "resent": stats.resent,
        "lost": max(0, stats.lost),
        "late": stats.late,
        "recovered": stats.recovered,
        "skipped": stats.skipped,
        "refused": sum(stats.dropped.values()),
        "concealed_ms": stats.concealed_ms,
        "played_ms": stats.played_ms,
        "unplayed_ms": stats.queue_dropped_ms,
    }
