"""Read single media sections of an offer: mid, audio, data channels.

Everything an answer repeats is checked against a closed character set here.
"""

import re
from dataclasses import dataclass
from typing import Final

from usher_core.sdplines import TOKEN, Document, Level, MediaLine, checked_mid
from usher_transceiver.sdp.model import (
    AUDIO_LEVEL_URI,
    MID_URI,
    AudioSection,
    DataSection,
    Direction,
    Extension,
    Red,
    RejectedSection,
)

# RFC 8829 §5.1.2 lists the profiles that must be understood; small devices send SAVP without F.
_AUDIO_PROFILES: Final = frozenset(
    f"{transport}RTP/{profile}" for transport in ("UDP/TLS/", "TCP/DTLS/", "") for profile in ("SAVPF", "SAVP")
)
_DATA_PROFILES: Final = frozenset({"UDP/DTLS/SCTP", "TCP/DTLS/SCTP", "DTLS/SCTP"})

# RFC 7587 §7 allows 48000/2 only; SIP stacks and small devices write what they capture.
_OPUS = re.compile(r"([0-9]{1,3}) (opus/(8000|12000|16000|24000|48000)(?:/([12]))?)", re.ASCII | re.IGNORECASE)
# Telephones and the smallest devices have nothing else. RFC 3551 table 4: payload types 0 and 8 need no rtpmap.
_G711 = re.compile(r"([0-9]{1,3}) (PCM[UA]/(8000)(?:/1)?)", re.ASCII | re.IGNORECASE)
_STATIC: Final = {"0": "0 PCMU/8000", "8": "8 PCMA/8000"}
_RED = re.compile(r"([0-9]{1,3}) (red/([0-9]{4,5})(?:/[12])?)", re.ASCII | re.IGNORECASE)
_RTPMAP = re.compile(rf"([0-9]{{1,3}}) {TOKEN}/[0-9]{{1,9}}(?:/[0-9]{{1,9}})?")
_FMTP = re.compile(r"([0-9]{1,3}) (.+)")
_EXTMAP = re.compile(r"([0-9]{1,3})(?:/sendrecv)? ([^ ]+)(?: .*)?")
_PORT = re.compile(r"[0-9]{1,5}")
_SIZE = re.compile(r"[0-9]{1,19}")

# RFC 8285 §4.2: the one-byte form has ids 1 to 14 and holds up to 16 bytes.
_ONE_BYTE_IDS: Final = range(1, 15)
_ONE_BYTE_DATA: Final = 16
# RFC 5761 §4: with the marker bit these payload types look like RTCP.
_LOOKS_LIKE_RTCP: Final = range(64, 96)

_DIRECTIONS: Final[tuple[Direction, ...]] = ("sendrecv", "sendonly", "recvonly", "inactive")
_MIRRORED: Final[dict[Direction, Direction]] = {
    "sendrecv": "sendrecv",
    "sendonly": "recvonly",
    "recvonly": "sendonly",
    "inactive": "inactive",
}


@dataclass(frozen=True, slots=True)
class OfferedSection:
    """A media section of the offer, not yet judged."""

    media: MediaLine
    level: Level
    mid: str | None

    @property
    def is_on(self) -> bool:
        """Port 0 switches a section off (RFC 3264 §8.2), unless it rides on a bundle (RFC 9143 §6)."""
        return self.media.port != 0 or bool(self.level.own("bundle-only"))


def read_sections(document: Document) -> list[OfferedSection]:
    """The sections with their mids. Raises RemoteError for a mid that is malformed or used twice."""
    sections = []
    seen: set[str] = set()
    for media, level in document.sections:
        mid = None
        if lines := level.own("mid"):
            mid = checked_mid(lines[0])
            if mid in seen:
                raise lines[0].error("expected a mid that no other section has")
            seen.add(mid)
        sections.append(OfferedSection(media, level, mid))
    return sections


def read_audio(section: OfferedSection) -> AudioSection:
    """An audio section we can serve. Raises RemoteError that says why another one cannot be."""
    media, level = section.media, section.level
    if not section.is_on:
        raise media.line.error("expected an audio section that is on (port not 0)")
    if media.profile not in _AUDIO_PROFILES:
        raise media.line.error("expected an SRTP profile such as UDP/TLS/RTP/SAVPF")
    codec = _find_codec(section)
    payload_type = codec[1]
    direction = _answered_direction(level)
    return AudioSection(
        mid=section.mid,
        profile=media.profile,
        payload_type=int(payload_type),
        codec=codec[2],
        clock_rate=int(codec[3]),
        fmtp=_fmtp(section, payload_type),
        direction=direction,
        rtcp_mux=bool(level.own("rtcp-mux")),
        extensions=_kept_extensions(section),
        red=_find_red(section, codec) if direction in ("sendrecv", "recvonly") else None,
        nack=media.profile.endswith("F") and _asks_for_lost_packets(section, payload_type),
    )


def read_data(section: OfferedSection) -> DataSection | None:
    """A data channel section, None if it is anything else. Raises RemoteError for a malformed one."""
    media, level = section.media, section.level
    if media.media != "application" or media.profile not in _DATA_PROFILES or not section.is_on:
        return None
    old_style = _PORT.fullmatch(media.formats[0]) is not None
    if old_style:
        port, source = media.formats[0], media.line
    elif media.formats[0] == "webrtc-datachannel":
        line = level.first("sctp-port")
        # RFC 8841 §5 demands the line; 5000 is what everybody means.
        port, source = (line.argument, line) if line else ("5000", media.line)
    else:
        return None
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise source.error("expected an SCTP port of 1 to 65535")
    size = level.first("max-message-size")
    if size and not _SIZE.fullmatch(size.argument):
        raise size.error("expected a message size in bytes")
    return DataSection(
        mid=section.mid,
        profile=media.profile,
        sctp_port=int(port),
        max_message_size=int(size.argument) if size else 65536,  # RFC 8841 §6.1
        old_style=old_style,
    )


def reject(section: OfferedSection) -> RejectedSection:
    """The section as the answer repeats it."""
    media = section.media
    maps = (_RTPMAP.fullmatch(line.argument) for line in section.level.own("rtpmap"))
    return RejectedSection(
        mid=section.mid,
        media=media.media,
        profile=media.profile,
        format=media.formats[0],
        rtpmap=next((match[0] for match in maps if match and match[1] == media.formats[0]), None),
    )


def _find_codec(section: OfferedSection) -> re.Match[str]:
    """The rtpmap of the client's most preferred Opus; without one, of its most preferred G.711."""
    formats = section.media.formats
    said = [line.argument for line in section.level.own("rtpmap")]
    mapped = {argument.partition(" ")[0] for argument in said}
    static = [_STATIC[name] for name in formats if name in _STATIC and name not in mapped]
    for pattern, arguments in ((_OPUS, said), (_G711, said + static)):
        maps: dict[str, re.Match[str]] = {}
        for argument in arguments:
            if match := pattern.fullmatch(argument):
                maps.setdefault(match[1], match)
        for payload_type in formats:
            if payload_type in maps and _is_usable(payload_type):
                return maps[payload_type]
    raise section.media.line.error("expected Opus (a=rtpmap:<n> opus/48000/2), PCMU or PCMA")


def _find_red(section: OfferedSection, codec: re.Match[str]) -> Red | None:
    """Redundancy of Opus and nothing else, on the same clock."""
    for line in section.level.own("rtpmap"):
        match = _RED.fullmatch(line.argument)
        if match is None or match[3] != codec[3] or match[1] not in section.media.formats or not _is_usable(match[1]):
            continue
        # RFC 2198 §5: the payload types of a packet's blocks.
        if set(_fmtp(section, match[1]).split("/")) == {codec[1]}:
            return Red(int(match[1]), match[2])
    return None


def _asks_for_lost_packets(section: OfferedSection, payload_type: str) -> bool:
    asked = {line.argument for line in section.level.own("rtcp-fb")}
    return bool(asked & {f"{payload_type} nack", "* nack"})


def _fmtp(section: OfferedSection, payload_type: str) -> str:
    lines = (_FMTP.fullmatch(line.argument) for line in section.level.own("fmtp"))
    return next((match[2] for match in lines if match and match[1] == payload_type), "")


def _is_usable(payload_type: str) -> bool:
    return int(payload_type) < 128 and int(payload_type) not in _LOOKS_LIKE_RTCP


def _answered_direction(level: Level) -> Direction:
    """The offered direction seen from our side (RFC 3264 §6.1); sendrecv where none is said."""
    for attributes in (level.own, level.all):
        for direction in _DIRECTIONS:
            if attributes(direction):
                return _MIRRORED[direction]
    return "sendrecv"


def _kept_extensions(section: OfferedSection) -> tuple[Extension, ...]:
    """The header extensions we really send: audio level, and MID where a mid exists and fits."""
    wanted = {AUDIO_LEVEL_URI}
    if section.mid is not None and len(section.mid) <= _ONE_BYTE_DATA:
        wanted.add(MID_URI)
    kept: dict[int, str] = {}
    for line in section.level.all("extmap"):
        match = _EXTMAP.fullmatch(line.argument)
        if match is None or match[2] not in wanted or int(match[1]) not in _ONE_BYTE_IDS:
            continue
        if int(match[1]) not in kept and match[2] not in kept.values():
            kept[int(match[1])] = match[2]
    return tuple(Extension(number, uri) for number, uri in kept.items())
