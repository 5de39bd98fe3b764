"""What an offer said and what an answer needs: plain values, no behaviour."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from usher_core.ice_attributes import Candidate

Direction = Literal["sendrecv", "sendonly", "recvonly", "inactive"]
DtlsRole = Literal["client", "server"]
Encoding = Literal["opus", "pcmu", "pcma"]

_PARAMETER_DIGITS = 6
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)

AUDIO_LEVEL_URI = "urn:ietf:params:rtp-hdrext:ssrc-audio-level"  # RFC 6464
MID_URI = "urn:ietf:params:rtp-hdrext:sdes:mid"  # RFC 9143 §15


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hash of the client's certificate (RFC 8122): `sha-256`, and upper-case hex bytes with colons."""

    algorithm: str
    value: str


@dataclass(frozen=True, slots=True)
class Extension:
    """An RTP header extension of the answer (RFC 8285): its id (1 to 14, one-byte form) and URI."""

    id: int
    uri: str


@dataclass(frozen=True, slots=True)
class Red:
    """Redundant audio (RFC 2198) of the accepted codec: its payload type, and its rtpmap as offered."""

    payload_type: int
    codec: str


@dataclass(frozen=True, slots=True)
class AudioSection:
    """The accepted audio section. `direction` is the answer's: ours, the offer's mirrored.

    `codec` is the rtpmap as offered, such as `opus/48000/2` or `PCMU/8000`; `clock_rate` (Hz) is
    what RTP timestamps count in. `fmtp` are the client's wishes for what it receives (RFC 7587 §6.1).
    `red` is what the client may send besides. `nack`: it asks for lost packets (RFC 4585 §4.2).
    """

    mid: str | None
    profile: str
    payload_type: int
    codec: str
    clock_rate: int
    fmtp: str
    direction: Direction
    rtcp_mux: bool
    extensions: tuple[Extension, ...]
    red: Red | None
    nack: bool

    @property
    def encoding(self) -> Encoding:
        """The codec, whatever its spelling."""
        return next(name for name in ENCODINGS if self.codec.lower().startswith(name))

    @property
    def sends(self) -> bool:
        """Whether we send audio."""
        return self.direction in ("sendrecv", "sendonly")

    @property
    def max_bitrate(self) -> int | None:
        """The most bit/s that the client wants to get, None where it does not say (`maxaveragebitrate`)."""
        return self._parameter("maxaveragebitrate")

    @property
    def max_playback_rate(self) -> int | None:
        """The highest sample rate that the client renders, in Hz, None where it does not say (`maxplaybackrate`)."""
        return self._parameter("maxplaybackrate")

    @property
    def uses_inband_fec(self) -> bool:
        """Whether the client makes anything of Opus' redundancy; RFC 7587 §6.1: not unless it says so."""
        return self._parameter("useinbandfec") == 1

    def _parameter(self, name: str) -> int | None:
        for parameter in self.fmtp.split(";"):
            key, _, value = parameter.strip().partition("=")
            if key.lower() == name and len(value) <= _PARAMETER_DIGITS and value.isascii() and value.isdigit():
                return int(value)
        return None

    @property
    def level_extension_id(self) -> int | None:
        """Id of the audio-level extension (RFC 6464), None if not offered."""
        return self._extension_id(AUDIO_LEVEL_URI)

    @property
    def mid_extension_id(self) -> int | None:
        """Id of the MID extension (RFC 9143 §15); if there is one, every packet we send carries it."""
        return self._extension_id(MID_URI)

    def _extension_id(self, uri: str) -> int | None:
        return next((e.id for e in self.extensions if e.uri == uri), None)


@dataclass(frozen=True, slots=True)
class DataSection:
    """The accepted data channel section (RFC 8841).

    `sctp_port` is the client's; `max_message_size` (bytes) is what the client takes, 0 = no limit.
    `old_style` is the form before RFC 8841: `DTLS/SCTP 5000` with `a=sctpmap`.
    """

    mid: str | None
    profile: str
    sctp_port: int
    max_message_size: int
    old_style: bool


@dataclass(frozen=True, slots=True)
class RejectedSection:
    """A section we answer with port 0. One format is enough there (RFC 3264 §6): the first offered.

    `rtpmap` is that format's, such as `96 VP8/90000`, None if it has none.
    """

    mid: str | None
    media: str
    profile: str
    format: str
    rtpmap: str | None


Section = AudioSection | DataSection | RejectedSection


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer that can be answered.

    `ufrag` and `pwd` are the client's, of the first accepted section of the BUNDLE group;
    a client with several ufrags may use any of them in its checks, so they prove nothing.
    `fingerprints` are all of one hash function, the strongest offered; a certificate that
    matches any of them is the client's (RFC 8122 §5.1). `role` is our DTLS role.
    `sections` has one entry per m-line in the offer's order; `audio` and `data` are among them.
    `bundle` are the mids of the accepted sections, empty if the offer had no BUNDLE group.
    """

    ufrag: str
    pwd: str = field(repr=False)
    fingerprints: tuple[Fingerprint, ...]
    role: DtlsRole
    audio: AudioSection
    data: DataSection | None
    sections: tuple[Section, ...]
    bundle: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LocalDescription:
    """Our side of the answer.

    `candidates` are the public addresses clients send to, most preferred first, at least one.
    `fingerprint` is the sha-256 of our certificate as upper-case hex with colons.
    `session_id` (0 to 2^63 - 1) and `version` go to the o= line (RFC 8866 §5.2).
    `max_message_size` (bytes) is the largest data channel message we take.
    """

    ufrag: str
    pwd: str = field(repr=False)
    fingerprint: str
    candidates: tuple[Candidate, ...]
    ssrc: int
    cname: str
    stream_id: str
    track_id: str
    session_id: int
    version: int = 1
    max_message_size: int = 65536
