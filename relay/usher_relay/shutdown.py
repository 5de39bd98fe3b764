"""When a relay is ready, and when it goes (design D15). No I/O: times are monotonic seconds.

Rules after SIGTERM (or SIGINT), with `grace` seconds until Kubernetes kills the process:
* It stays ready and forwards: termination alone keeps new flows away, while kube-proxy deletes the UDP conntrack
  entries of endpoints that stop being ready, which would cut live calls.
* 10 s before the end of its grace it turns unready, still forwarding, so that flows move to other relays.
* It exits 1 s before the end; earlier when no flow showed life for 10 s after the signal.
* Grace 0 (outside Kubernetes): it exits at once. So does a second signal.
"""

from __future__ import annotations

from enum import StrEnum

from usher_core.internal_api import RELAY_IDLE_S

UNREADY_BEFORE_END = 10.0
EXIT_BEFORE_END = 1.0


class Phase(StrEnum):
    """Where in its life a relay is."""

    SERVING = "serving"
    ENDING = "ending"
    """Told to end, still ready."""
    LEAVING = "leaving"
    """Unready, still forwarding."""
    OVER = "over"


class Shutdown:
    """Counts signals and time."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._signals = 0
        self._signalled_at = 0.0

    def on_signal(self, now: float) -> None:
        """Take note of SIGTERM or SIGINT."""
        if not self._signals:
            self._signalled_at = now
        self._signals += 1

    def phase(self, now: float, idle: float) -> Phase:
        """Return the phase; `idle` is how many seconds ago any flow last showed life."""
        if not self._signals:
            return Phase.SERVING
        elapsed = now - self._signalled_at
        if self._signals > 1 or self._grace == 0 or elapsed >= self._grace - EXIT_BEFORE_END:
            return Phase.OVER
        if min(idle, elapsed) >= RELAY_IDLE_S:
            return Phase.OVER
        return Phase.LEAVING if elapsed >= self._grace - UNREADY_BEFORE_END else Phase.ENDING
