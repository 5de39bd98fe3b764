"""SDP offers in, answers out (RFC 8866, 8829, 8839, 8841, 8842, 9143): pure, no I/O."""

from usher_core.ice_attributes import Candidate
from usher_transceiver.sdp.answer import build_answer
from usher_transceiver.sdp.model import (
    AUDIO_LEVEL_URI,
    MID_URI,
    AudioSection,
    DataSection,
    Direction,
    DtlsRole,
    Extension,
    Fingerprint,
    LocalDescription,
    Offer,
    RejectedSection,
    Section,
)
from usher_transceiver.sdp.offer import parse_offer

__all__ = [
    "AUDIO_LEVEL_URI",
    "MID_URI",
    "AudioSection",
    "Candidate",
    "DataSection",
    "Direction",
    "DtlsRole",
    "Extension",
    "Fingerprint",
    "LocalDescription",
    "Offer",
    "RejectedSection",
    "Section",
    "build_answer",
    "parse_offer",
]
