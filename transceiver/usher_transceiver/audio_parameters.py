"""From what an offer says of its audio to the parameters of the stream that answers it."""

import secrets
from dataclasses import replace

from usher_core.errors import RemoteError
from usher_transceiver.backends.protocol import AudioKind
from usher_transceiver.media.codec import MIN_BITRATE, EncoderSettings
from usher_transceiver.media.stream import WIDEBAND_RATE, StreamParameters
from usher_transceiver.sdp import AudioSection


def stream_parameters(audio: AudioSection, kind: AudioKind, encoder: EncoderSettings) -> StreamParameters:
    """Return the parameters of a new stream, with an SSRC and a CNAME of its own.

    Raises RemoteError `bad_sdp` when the backend cannot speak the codec of the offer.
    """
    if kind == "opus" and audio.encoding != "opus":
        raise RemoteError("bad_sdp", "SDP has no Opus, but this backend passes Opus packets on as they are")
    return StreamParameters(
        ssrc=secrets.randbelow(0xFFFF_FFFF) + 1,
        cname=secrets.token_hex(8),
        payload_type=audio.payload_type,
        red_payload_type=None if audio.red is None else audio.red.payload_type,
        encoding=audio.encoding,
        clock_rate=audio.clock_rate,
        mid=audio.mid or "",
        mid_extension_id=audio.mid_extension_id,
        level_extension_id=audio.level_extension_id,
        kind=kind,
        uses_inband_fec=audio.uses_inband_fec,
        answers_nack=audio.nack,
        encoder=_encoder_for(audio, encoder),
    )


def _encoder_for(audio: AudioSection, encoder: EncoderSettings) -> EncoderSettings:
    """RFC 7587 section 6.1: what the client wants of what it gets."""
    if audio.max_bitrate is not None:
        encoder = replace(encoder, bitrate=min(encoder.bitrate, max(audio.max_bitrate, MIN_BITRATE)))
    if audio.max_playback_rate is not None and audio.max_playback_rate <= WIDEBAND_RATE:
        encoder = replace(encoder, wideband=True)
    return encoder
