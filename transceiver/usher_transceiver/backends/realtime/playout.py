"""What the model has said, and how much of it the client has been sent: the ledger behind barge-in, without I/O.

Rules:
* Audio comes faster than it is spoken. It waits here; `AHEAD_MS` of it are in the play queue of the call.
* What was played is told from what is left in that queue: handed over minus queued, in the order of arrival.
* A response begins with the first of its audio that is played. It stops when it is finished and all of it was played.
* An interruption drops the unplayed audio of responses. A part of an item that loses audio, or was not all received, is
  truncated at what was played of it, in whole milliseconds: never more than was received, 0 when it only waited. One
  without audio is not known here, and a part that was heard to its end is left alone.
* Audio that comes for an interrupted response is refused.
* Audio of other responses stays, in its order.
* Bounds: the audio that waits and the parts it belongs to (`is_full` tells the reader to read no more), the responses
  that were never finished, and the interrupted ones. Small pieces are put together, so that many cost no more than few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

BYTES_PER_MS = 48
AHEAD_MS = 400
"""In the play queue: enough for a timer that comes 100 ms late, little to take back."""
MAX_WAITING_MS = 300_000
"""14.4 MB. Longer than a model speaks at a time (4096 tokens are some 200 s): while it is not read, its
`speech_started` waits behind the audio.
"""
MAX_CANCELLED = 64
"""Interrupted responses that late audio is known by."""
MAX_PARTS = 1_024
"""Parts of which not all was received and played; an answer has one or a few."""
MAX_QUIET = 16
"""Responses without audio to play that are still to be finished. A server that never says so has each forgotten."""
MAX_PIECE = 200 * BYTES_PER_MS
"""Up to here pieces of a part are put together."""
MAX_PIECES = 8_192
"""That wait. Five minutes make 3,000 at most where parts do not alternate."""


class Part(NamedTuple):
    """A piece of content of an item, as `conversation.item.truncate` names it, and the response it belongs to."""

    response_id: str
    item_id: str
    content_index: int


class Truncation(NamedTuple):
    """How much of a part was heard."""

    item_id: str
    content_index: int
    audio_end_ms: int


class Change(NamedTuple):
    """The client began to hear a response, or has heard all of it."""

    kind: Literal["started", "stopped"]
    response_id: str


@dataclass(frozen=True, slots=True)
class Interruption:
    """What was dropped: the parts that lost audio, and the responses they belong to."""

    truncations: tuple[Truncation, ...]
    responses: tuple[str, ...]


@dataclass(slots=True)
class _Amount:
    received: int = 0
    played: int = 0
    complete: bool = False


@dataclass(slots=True)
class _Response:
    unplayed: int = 0
    begun: bool = False
    finished: bool = False


class _Piece(NamedTuple):
    part: Part
    pcm: memoryview


class Playout:
    """The audio of one call. All amounts are bytes of 24 kHz PCM16 unless their name says ms."""

    def __init__(self) -> None:
        self._parts: dict[Part, _Amount] = {}
        self._responses: dict[str, _Response] = {}
        self._handed: deque[_Piece] = deque()
        self._waiting: deque[_Piece] = deque()
        self._handed_bytes = 0
        self._waiting_bytes = 0
        self._cancelled: dict[str, None] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be played."""
        return not self._handed and not self._waiting

    @property
    def waiting_bytes(self) -> int:
        """Audio that was received and not handed over."""
        return self._waiting_bytes

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no more should be received."""
        return (
            self._waiting_bytes >= MAX_WAITING_MS * BYTES_PER_MS
            or len(self._waiting) >= MAX_PIECES
            or len(self._parts) >= MAX_PARTS
        )

    @property
    def is_about_to_begin(self) -> bool:
        """Whether the next audio played is the first of its response."""
        return bool(self._handed) and not self._responses[self._handed[0].part.response_id].begun

    # In

    def add(self, part: Part, pcm: bytes) -> bool:
        """Take received audio, whole samples; False when its response was interrupted."""
        if part.response_id in self._cancelled:
            return False
        if pcm:
            self._parts.setdefault(part, _Amount()).received += len(pcm)
            if part.response_id not in self._responses:
                self._forget_quiet()
            self._responses.setdefault(part.response_id, _Response()).unplayed += len(pcm)
            self._wait(part, pcm)
        return True

    def _wait(self, part: Part, pcm: bytes) -> None:
        self._waiting_bytes += len(pcm)
        if self._waiting:
            last = self._waiting[-1]
            if last.part == part and len(last.pcm) + len(pcm) <= MAX_PIECE:
                self._waiting[-1] = _Piece(part, memoryview(bytes(last.pcm) + pcm))
                return
        self._waiting.append(_Piece(part, memoryview(pcm)))

    def _forget_quiet(self) -> None:
        quiet = [response_id for response_id, response in self._responses.items() if not response.unplayed]
        self._forget(quiet[: max(0, len(quiet) - MAX_QUIET + 1)])

    def complete(self, part: Part) -> None:
        """All audio of a part has been received."""
        amount = self._parts.get(part)
        if amount is not None:
            amount.complete = True
            self._settle(part, amount)

    def finish(self, response_id: str) -> list[Change]:
        """All of a response has been received."""
        response = self._responses.get(response_id)
        if response is None:
            return []
        response.finished = True
        for part in [part for part in self._parts if part.response_id == response_id]:
            self.complete(part)
        return self._ended(response_id, response)

    def finish_all(self) -> list[Change]:
        """Nothing more will be received."""
        return [change for response_id in tuple(self._responses) for change in self.finish(response_id)]

    # Out

    def take(self, queued_ms: int) -> bytes:
        """Return what is to be handed to the play queue now, which holds `queued_ms`."""
        room = (AHEAD_MS - queued_ms) * BYTES_PER_MS
        taken: list[memoryview] = []
        while self._waiting and room > 0:
            part, pcm = self._waiting.popleft()
            if len(pcm) > room:
                self._waiting.appendleft(_Piece(part, pcm[room:]))
                pcm = pcm[:room]
            self._handed.append(_Piece(part, pcm))
            taken.append(pcm)
            room -= len(pcm)
        size = sum(map(len, taken))
        self._handed_bytes += size
        self._waiting_bytes -= size
        return b"".join(taken)

    def advance(self, queued_ms: int) -> list[Change]:
        """Note what was played, the play queue holding `queued_ms` now; return what that begins and ends."""
        played = self._handed_bytes - queued_ms * BYTES_PER_MS
        changes: list[Change] = []
        while played > 0 and self._handed:
            part, pcm = self._handed.popleft()
            if len(pcm) > played:
                self._handed.appendleft(_Piece(part, pcm[played:]))
                pcm = pcm[:played]
            played -= len(pcm)
            self._handed_bytes -= len(pcm)
            amount = self._parts[part]
            amount.played += len(pcm)
            self._settle(part, amount)
            response = self._responses[part.response_id]
            response.unplayed -= len(pcm)
            if not response.begun:
                response.begun = True
                changes.append(Change("started", part.response_id))
            changes += self._ended(part.response_id, response)
        return changes

    def _settle(self, part: Part, amount: _Amount) -> None:
        """Forget a part that was heard to its end: nothing is left to be said of it."""
        if amount.complete and amount.played == amount.received:
            del self._parts[part]

    def _ended(self, response_id: str, response: _Response) -> list[Change]:
        if not response.finished or response.unplayed:
            return []
        self._forget((response_id,))
        return [Change("stopped", response_id)]

    # Interruptions

    def interrupt(self, responses: Container[str] | None = None) -> Interruption:
        """Drop the unplayed audio of these responses, None: of all. First `advance`; then, if any was hit, clear the
        play queue, and hand it what `take(0)` returns.
        """
        hit = tuple(known for known in self._responses if responses is None or known in responses)
        if not hit:
            return Interruption((), ())
        truncations = tuple(
            Truncation(part.item_id, part.content_index, amount.played // BYTES_PER_MS)
            for part, amount in self._parts.items()
            if part.response_id in hit
        )
        kept = [piece for piece in (*self._handed, *self._waiting) if piece.part.response_id not in hit]
        self._handed.clear()
        self._handed_bytes = 0
        self._waiting = deque(kept)
        self._waiting_bytes = sum(len(piece.pcm) for piece in kept)
        self._forget(hit)
        self.cancel(hit)
        return Interruption(truncations, hit)

    def cancel(self, responses: Iterable[str]) -> None:
        """Refuse audio of these responses from now on."""
        for response_id in responses:
            # An upstream that names no responses would be silenced for good.
            if response_id:
                self._cancelled[response_id] = None
        while len(self._cancelled) > MAX_CANCELLED:
            del self._cancelled[next(iter(self._cancelled))]

    def _forget(self, responses: Container[str]) -> None:
        for part in [part for part in self._parts if part.response_id in responses]:
            del self._parts[part]
        for response_id in [known for known in self._responses if known in responses]:
            del self._responses[response_id]
