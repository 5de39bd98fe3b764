"""The Opus codec of a process: libopus where it is, else the one in PyAV."""

from __future__ import annotations

from typing import Literal

import structlog

from usher_core.errors import LocalError
from usher_transceiver.media.codec import Codec
from usher_transceiver.media.opus import LibOpus
from usher_transceiver.media.opus_pyav import PyAvOpus

CodecPreference = Literal["auto", "libopus", "pyav"]

log = structlog.get_logger()


def load_codec(preference: CodecPreference = "auto") -> Codec:
    """Return the best codec there is, and say in the log which. Raises LocalError when there is none."""
    if preference != "pyav":
        try:
            codec = LibOpus()
        except LocalError as error:
            if preference == "libopus":
                raise
            log.warning(
                "libopus not found, using the slower PyAV codec: no packet loss concealment beyond repetition",
                problem=error.message,
                fix=error.fix,
            )
        else:
            log.info("opus codec", codec=codec.name)
            return codec
    return PyAvOpus()
