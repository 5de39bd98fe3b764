"""Which flows send an RTP or RTCP SSRC, so that a client whose address changed can be found again (design D4a).

Rules:
* An SSRC is a guess, never a proof: it only says to which transceivers a packet of an unknown address may go
  *tentatively*. SRTP authentication there decides.
* Several flows may share an SSRC: the paths of one client, and small devices that all use the same constant. At
  most 4 candidates are named, those of the same client IP first, within them the latest.
* A flow stands here under one SSRC, so the index is as bounded as the flow map.
"""

from __future__ import annotations

from itertools import chain, islice

from usher_relay.flow import Flow

MAX_CANDIDATES = 4


class SsrcIndex:
    """SSRC (4 bytes) → flows, and SSRC and client IP → flows.

    Nearly every key has one flow, which then stands there by itself: a collection for each would double what the
    garbage collector has to look at.
    """

    def __init__(self) -> None:
        self._flows: dict[bytes, Flow | dict[Flow, None]] = {}

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._flows)

    def learn(self, flow: Flow, ssrc: bytes) -> None:
        """Note that `flow` sends `ssrc`; what it sent before is forgotten."""
        self.forget(flow)
        flow.ssrc = ssrc
        for key in _keys(flow):
            known = self._flows.get(key)
            if known is None:
                self._flows[key] = flow
            elif isinstance(known, dict):
                known[flow] = None
            else:
                self._flows[key] = {known: None, flow: None}

    def forget(self, flow: Flow) -> None:
        """Take `flow` out."""
        if not flow.ssrc:
            return
        for key in _keys(flow):
            known = self._flows[key]
            if isinstance(known, dict):
                del known[flow]
            if not isinstance(known, dict) or not known:
                del self._flows[key]
        flow.ssrc = b""

    def candidates(self, ssrc: bytes, address: bytes) -> list[Flow]:
        """Return at most 4 flows that send `ssrc`, those of client IP `address` (16 bytes) first."""
        merged = dict.fromkeys(chain(self._latest(ssrc + address), self._latest(ssrc)))
        return list(islice(merged, MAX_CANDIDATES))

    def _latest(self, key: bytes) -> list[Flow]:
        known = self._flows.get(key)
        if known is None:
            return []
        return list(islice(reversed(known), MAX_CANDIDATES)) if isinstance(known, dict) else [known]


def _keys(flow: Flow) -> tuple[bytes, bytes]:
    return flow.ssrc, flow.ssrc + flow.address
