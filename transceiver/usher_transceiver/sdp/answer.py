"""Write the SDP answer of an ICE-lite server (RFC 8829 §5.3.1, RFC 8839 §4.2.2).

Rules, each from a client that fails without (design D11):
* Every accepted section repeats credentials, fingerprint, setup and candidates. At session level
  only: pion and GStreamer fail. In the first section only: aiortc, Firefox and GStreamer do.
* `a=ssrc` is said: without it Chromium, pion, werift and str0m stay silent.
* `a=msid` has a real stream id: the OpenAI SDK plays `event.streams[0]`.
* RED stands before its codec: libwebrtc sends it only then.
* BUNDLE holds the accepted mids and no other. rtcp-mux is said.
* A rejected section keeps its place with port 0 (RFC 3264 §6). It names one format with its
  rtpmap, since pion and werift refuse the whole answer otherwise, and repeats credentials,
  fingerprint and setup, since GStreamer does. It has no candidates.
"""

from typing import Final, assert_never

from usher_core.ice_attributes import candidate_values
from usher_transceiver.sdp.model import AudioSection, DataSection, LocalDescription, Offer, RejectedSection

LOCAL_SCTP_PORT: Final = 5000
_SETUP: Final = {"server": "passive", "client": "active"}
# RFC 7587 §6.1: what we like to receive: 10 ms or more a packet, with in-band FEC.
_OPUS_PARAMETERS: Final = "minptime=10;useinbandfec=1"


def build_answer(offer: Offer, local: LocalDescription) -> str:
    """The answer, with CRLF lines and one section per section of the offer, in its order.

    Raises ValueError if `local` has no candidate.
    """
    if not local.candidates:
        raise ValueError("an answer needs at least one candidate")
    security = _security(offer, local)
    candidates = [*(f"a=candidate:{value}" for value in candidate_values(local.candidates)), "a=end-of-candidates"]
    lines = [
        "v=0",
        f"o=- {local.session_id} {local.version} IN IP4 0.0.0.0",
        "s=-",
        "t=0 0",
    ]
    if offer.bundle:
        lines.append(f"a=group:BUNDLE {' '.join(offer.bundle)}")
    lines += ["a=ice-lite", "a=ice-options:trickle ice2", "a=msid-semantic:WMS *"]
    for section in offer.sections:
        match section:
            case AudioSection():
                lines += [*_audio(section, local), *security, *candidates]
            case DataSection():
                lines += [*_data(section, local), *security, *candidates]
            case RejectedSection():
                lines += [*_rejected(section), *security]
            case _:
                assert_never(section)
    return "\r\n".join(lines) + "\r\n"


def _audio(section: AudioSection, local: LocalDescription) -> list[str]:
    payload_type = section.payload_type
    red = section.red
    formats = f"{payload_type}" if red is None else f"{red.payload_type} {payload_type}"
    lines = [
        f"m=audio {local.candidates[0].port} {section.profile} {formats}",
        _connection(local),
        *_mid(section.mid),
        f"a={section.direction}",
    ]
    if section.rtcp_mux:  # RFC 5761 §5.1.1: only where it was offered
        lines.append("a=rtcp-mux")
    lines += [
        f"a=rtpmap:{payload_type} {section.codec}",
        *([f"a=fmtp:{payload_type} {_OPUS_PARAMETERS}"] if section.encoding == "opus" else []),
        *([f"a=rtcp-fb:{payload_type} nack"] if section.nack else []),
        *(f"a=extmap:{extension.id} {extension.uri}" for extension in section.extensions),
    ]
    if red is not None:
        lines += [
            f"a=rtpmap:{red.payload_type} {red.codec}",
            f"a=fmtp:{red.payload_type} {payload_type}/{payload_type}",
        ]
    if section.sends:
        lines += [
            f"a=msid:{local.stream_id} {local.track_id}",
            f"a=ssrc:{local.ssrc} cname:{local.cname}",
            # RFC 8830 replaced this form; GStreamer and libwebrtc before 2019 read no other.
            f"a=ssrc:{local.ssrc} msid:{local.stream_id} {local.track_id}",
        ]
    return lines


def _data(section: DataSection, local: LocalDescription) -> list[str]:
    port = local.candidates[0].port
    if section.old_style:
        media = f"m=application {port} {section.profile} {LOCAL_SCTP_PORT}"
        association = f"a=sctpmap:{LOCAL_SCTP_PORT} webrtc-datachannel 65535"
    else:
        media = f"m=application {port} {section.profile} webrtc-datachannel"
        association = f"a=sctp-port:{LOCAL_SCTP_PORT}"
    return [
        media,
        _connection(local),
        *_mid(section.mid),
        association,
        f"a=max-message-size:{local.max_message_size}",
    ]


def _rejected(section: RejectedSection) -> list[str]:
    return [
        f"m={section.media} 0 {section.profile} {section.format}",
        "c=IN IP4 0.0.0.0",
        *_mid(section.mid),
        *([f"a=rtpmap:{section.rtpmap}"] if section.rtpmap else []),
        "a=inactive",
    ]


def _security(offer: Offer, local: LocalDescription) -> list[str]:
    return [
        f"a=ice-ufrag:{local.ufrag}",
        f"a=ice-pwd:{local.pwd}",
        f"a=fingerprint:sha-256 {local.fingerprint}",
        f"a=setup:{_SETUP[offer.role]}",
    ]


def _connection(local: LocalDescription) -> str:
    candidate = local.candidates[0]
    return f"c=IN IP{candidate.version} {candidate.host}"


def _mid(mid: str | None) -> list[str]:
    return [] if mid is None else [f"a=mid:{mid}"]
