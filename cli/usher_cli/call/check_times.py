"""Times the connectivity checks of a call: each is a round trip to the transceiver and back (RFC 8445, RFC 7675).

aioice does not tell it. Like `steady_checks.py` this reaches into it, and a contract test fails when an upgrade changes
what is used here.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from aioice import ice, stun
from aiortc import RTCPeerConnection

MAX_TIMES = 100


class CheckTimes:
    """Notes from now on how long the checks of a connection take that are answered, in seconds; the last 100."""

    def __init__(self, connection: RTCPeerConnection) -> None:
        transport = connection.getTransceivers()[0].sender.transport.transport
        below: ice.Connection = transport._connection  # noqa: SLF001
        self._times: deque[float] = deque(maxlen=MAX_TIMES)
        for pair in below._nominated.values():  # noqa: SLF001
            self._watch(pair.protocol)

    def least(self) -> float | None:
        """Return the shortest round trip, which waited least for this client; None before the first."""
        return min(self._times, default=None)

    def _watch(self, protocol: ice.StunProtocol) -> None:
        request = protocol.request

        async def timed(message: stun.Message, *more: Any, **named: Any) -> tuple[stun.Message, tuple[str, int]]:
            began = time.monotonic()
            answer = await request(message, *more, **named)
            self._times.append(time.monotonic() - began)
            return answer

        protocol.request = timed  # type: ignore[method-assign,assignment]
