"""Packets sent a moment ago, for a client that misses some (NACK, RFC 4585 section 6.2.1).

They are sent again as they were, with the same SSRC and sequence number. Only the newest are kept, since older ones
would come too late to be heard, and none is sent more than twice, so that nobody makes us send without end.
"""

from typing import Final

_KEPT: Final = 20  # 400 ms of speech
_TIMES: Final = 2


class SentPackets:
    """Keeps plain RTP packets of one SSRC by their sequence numbers."""

    def __init__(self) -> None:
        self.resent = 0
        self._kept: dict[int, tuple[bytes, int]] = {}

    def keep(self, packets: list[bytes]) -> None:
        for packet in packets:
            self._kept[int.from_bytes(packet[2:4])] = (packet, _TIMES)
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

    def take(self, sequences: tuple[int, ...]) -> list[bytes]:
        """Return those of the packets that are still there and may go again, each once."""
        found = []
        for sequence in dict.fromkeys(sequences):
            packet, times = self._kept.get(sequence, (b"", 0))
            if times:
                self._kept[sequence] = (packet, times - 1)
                found.append(packet)
        self.resent += len(found)
        return found
