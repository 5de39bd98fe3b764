"""What a session object says of audio, in the names of today and of the beta, and audio turned into that form.

Formats: PCM16 at 24 kHz, which is ours, and G.711 at 8 kHz. A format that is not known here is taken for PCM16, as the
service does when nothing is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from usher_transceiver.media.codec import Decoder, Encoder, EncoderSettings
from usher_transceiver.media.g711 import G711

Format = Literal["pcm", "pcmu", "pcma"]
Direction = Literal["input", "output"]

_FORMATS: dict[str, Format] = {
    "audio/pcm": "pcm",
    "audio/pcmu": "pcmu",
    "audio/pcma": "pcma",
    "pcm16": "pcm",
    "g711_ulaw": "pcmu",
    "g711_alaw": "pcma",
}
_SAMPLE_BYTES = 2
MAX_CODED = 32_000
"""Bytes of G.711 that are decoded at a time, 4 s: all other calls stand still meanwhile. Ten times as many take fifty
times as long.
"""
PCM_BYTES_PER_CODED = 6
"""Of ours, for a byte of G.711."""
MAX_UPDATES = 16
"""Of a session, unanswered; of more, the oldest count as answered."""


def audio_format(session: Mapping[str, Any], direction: Direction) -> Format | None:
    """Return the format of a direction, or None when the object does not say."""
    beta = session.get(f"{direction}_audio_format")
    name = beta if beta is not None else _at(session, "audio", direction, "format", "type")
    return None if name is None else _FORMATS.get(str(name), "pcm")


def interrupts(session: Mapping[str, Any]) -> bool | None:
    """Return whether speech interrupts what is said, or None when the object does not say."""
    for detection in (_at(session, "audio", "input", "turn_detection"), session.get("turn_detection")):
        if isinstance(detection, Mapping):
            return detection.get("interrupt_response") is not False
    return None


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


class InputFormat:
    """Which format the server expects of the audio that is written to it now.

    It reads in order: an update counts from where it was written. What it says of its session counts from where no
    later update is unanswered: a `session.created` may have been on its way when the first update was written. An
    update that was refused counts for nothing.
    """

    def __init__(self) -> None:
        self._told: Format = "pcm"
        self._asked: deque[tuple[object, Format | None]] = deque(maxlen=MAX_UPDATES)

    @property
    def now(self) -> Format:
        """The format to write."""
        return next((wanted for _, wanted in reversed(self._asked) if wanted is not None), self._told)

    def ask(self, update: Mapping[str, Any]) -> None:
        """A `session.update` was written."""
        session = update.get("session")
        wanted = audio_format(session, "input") if isinstance(session, Mapping) else None
        self._asked.append((update.get("event_id"), wanted))

    def tell(self, session: Mapping[str, Any], *, answers: bool) -> None:
        """The server told its session; whether it answers an update by it."""
        if answers and self._asked:
            self._asked.popleft()
        self._told = audio_format(session, "input") or self._told

    def refuse(self, event_id: object) -> None:
        """The server's error names this event, None: no event."""
        refused = next((asked for asked in self._asked if asked[0] == event_id), None)
        if refused is not None:
            self._asked.remove(refused)


class ToUpstream:
    """Turns frames of the client into the format of the session."""

    def __init__(self) -> None:
        self.format: Format = "pcm"
        self._encoder: Encoder | None = None

    def use(self, wanted: Format) -> None:
        """Change the format of what comes from now on."""
        if wanted != self.format:
            self.format = wanted
            self._encoder = None if wanted == "pcm" else G711(wanted).encoder(EncoderSettings())

    def __call__(self, pcm: bytes) -> bytes:
        return pcm if self._encoder is None else self._encoder.encode(pcm)


class FromUpstream:
    """Turns the model's audio into PCM16, whole samples. A sample may be cut in two by the pieces it comes in."""

    def __init__(self) -> None:
        self.format: Format = "pcm"
        self._decoder: Decoder | None = None
        self._source: object = None
        self._rest = b""

    def use(self, wanted: Format) -> None:
        """Change the format of what comes from now on."""
        if wanted != self.format:
            self.format = wanted
            self._decoder = None if wanted == "pcm" else G711(wanted).decoder()

    @property
    def most_at_once(self) -> int | None:
        """Bytes that should be turned at a time, None: any number."""
        return None if self._decoder is None else MAX_CODED

    def __call__(self, source: object, data: bytes) -> bytes:
        """Return the samples that `data` completes; `source` is what they belong to."""
        if self._decoder is not None:
            return self._decoder.decode(data) if data else b""
        if source != self._source:
            # The half of a sample that ends a source would turn the next one into noise.
            self._source, self._rest = source, b""
        whole = self._rest + data if self._rest else data
        cut = len(whole) - len(whole) % _SAMPLE_BYTES
        self._rest = whole[cut:]
        return whole[:cut]
