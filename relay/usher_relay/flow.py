"""One entry of the flow map; what moves and ends it is in `flows`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Flow:
    """One client path and its owner. Times are monotonic seconds.

    `route` is the 7 bytes of cluster, pod and worker in a hop datagram. `local` is the local address that the engine
    saw (None where the socket implies it).
    """

    key: bytes
    route: bytes
    local: object
    verified_at: float
    alive_at: float = float("-inf")
    ufrag: bytes = b""
    """Of the request that made it; empty when a transceiver's word did."""
    probation_until: float = 0.0
    """0 when confirmed."""
    ended: bool = False
    ordered_at: float = 0.0
    """When it last went to the end of its line: confirmed with life, or ended."""
    ssrc: bytes = b""
    limit_full_at: float = 0.0
    """State of the flow's rate limit."""
    record: bytes = field(init=False)
    """Its record header after the length, with no flags."""

    def __post_init__(self) -> None:
        """Build what the hot path needs."""
        self.record = b"\0" + self.key + b"\0\0"

    @property
    def address(self) -> bytes:
        """The client's IP, 16 bytes."""
        return self.key[4:]

    @property
    def heard_at(self) -> float:
        """When it last showed life."""
        return max(self.verified_at, self.alive_at)
