"""Offers of real clients: what is read from each, and what every answer has, as aiortc's parser sees it."""

from dataclasses import dataclass, replace

import pytest
from aiortc import sdp as aiortc_sdp

from tests.sdp_samples import LOCAL, STORED, stored
from usher_transceiver.sdp import AudioSection, DataSection, RejectedSection, build_answer, parse_offer


@dataclass(frozen=True)
class Row:
    sections: str = "AD"  # Audio, Data, Rejected, in the order of the offer
    codec: str = "opus/48000/2"
    payload_type: int = 111
    profile: str = "UDP/TLS/RTP/SAVPF"
    direction: str = "sendrecv"
    level: int | None = None
    mid_extension: int | None = None
    red: int | None = None
    bundle: tuple[str, ...] = ("0", "1")
    ufrag: str = ""
    fmtp: str = "minptime=10;useinbandfec=1"
    fingerprint: str = "sha-256"
    setup: str = "passive"
    data_profile: str = "UDP/DTLS/SCTP"
    max_message_size: int = 262144


CHROMIUM = Row(level=1, mid_extension=4, red=63)
FIREFOX = Row(
    payload_type=109,
    level=1,
    mid_extension=3,
    fmtp="maxplaybackrate=48000;stereo=1;useinbandfec=1",
    max_message_size=1073741823,
)
GSTREAMER = Row(codec="OPUS/48000", payload_type=97, bundle=("audio0", "application1"), fmtp="", max_message_size=65536)
AIORTC = Row(payload_type=96, level=2, mid_extension=1, fmtp="", fingerprint="sha-512")
PION = Row(max_message_size=1073741823)
WERIFT = Row(codec="OPUS/48000/2", payload_type=96, fmtp="", max_message_size=65536)
DEVICE = Row(profile="UDP/TLS/RTP/SAVP", fmtp="", ufrag="k7Qd", bundle=("audio", "datachannel"))


def rejecting_the_second(row: Row, ufrag: str) -> Row:
    return replace(row, sections="ARD", bundle=("0", "2"), ufrag=ufrag)


EXPECTED = {
    "aiortc": replace(AIORTC, ufrag="TWTs"),
    "aiortc-video": rejecting_the_second(AIORTC, "iC3m"),
    "chromium": replace(CHROMIUM, ufrag="1DLm"),
    "chromium-audio-only": replace(CHROMIUM, ufrag="h2aL", sections="A", bundle=("0",)),
    "chromium-gathered": replace(CHROMIUM, ufrag="bEVv"),
    "chromium-ice-restart": replace(CHROMIUM, ufrag="/GYc"),
    "chromium-mdns": replace(CHROMIUM, ufrag="hInd", direction="sendonly", red=None),
    "chromium-recvonly": replace(CHROMIUM, ufrag="8dGx", direction="sendonly", red=None),
    "chromium-sendonly": replace(CHROMIUM, ufrag="zGwB", direction="recvonly"),
    "chromium-two-audio": rejecting_the_second(CHROMIUM, "IGe5"),
    "chromium-video": rejecting_the_second(CHROMIUM, "WHLW"),
    "chromium-video-vp9": rejecting_the_second(CHROMIUM, "nbxo"),
    "firefox": replace(FIREFOX, ufrag="2c645d6a"),
    "firefox-gathered": replace(FIREFOX, ufrag="9a12d5ac"),
    "firefox-recvonly-mdns": replace(FIREFOX, ufrag="1a2240da", direction="sendonly"),
    "firefox-two-audio": rejecting_the_second(FIREFOX, "2c47a6a5"),
    "firefox-video": rejecting_the_second(FIREFOX, "40d7e055"),
    "gstreamer-max-bundle": replace(GSTREAMER, ufrag="SQ6LCsnMHx/jjBpfT/o5bdeRzZgkr6au"),
    "gstreamer-max-compat": replace(GSTREAMER, ufrag="6+AIGbL1bUI7hLs83mfg/Ejr6KIvj3pT"),
    "gstreamer-none": replace(GSTREAMER, ufrag="fzFXYpmVdV+fZIS5GDyCQHKwILlLWxi1", sections="AR", bundle=()),
    "libdatachannel": Row(
        bundle=("audio", "0"),
        ufrag="MCiM",
        fmtp="minptime=10;maxaveragebitrate=96000;stereo=1;sprop-stereo=1;useinbandfec=1",
    ),
    "pion": replace(PION, ufrag="KXcJZqyfUuOjovdh"),
    "pion-video": rejecting_the_second(PION, "YALlpzwHrBmmlbjJ"),
    "shape-device-no-mids": replace(DEVICE, payload_type=96, bundle=(), max_message_size=65536),
    "shape-esp32-passive": replace(DEVICE, codec="opus/16000/1", setup="active"),
    "shape-esp32-video-first": replace(DEVICE, sections="RAD"),
    "shape-old-sctpmap": Row(
        profile="RTP/SAVPF",
        level=1,
        bundle=("audio", "data"),
        ufrag="kBpDO36IJK7N0AY2",
        fmtp="minptime=10; useinbandfec=1",
        data_profile="DTLS/SCTP",
        max_message_size=65536,
    ),
    "shape-safari": replace(CHROMIUM, ufrag="XSmV"),
    "werift": replace(WERIFT, ufrag="098d"),
    "werift-video": rejecting_the_second(WERIFT, "7bc6"),
    "wrtc": replace(CHROMIUM, ufrag="TyF5"),
    "wrtc-video": rejecting_the_second(CHROMIUM, "7AKw"),
}


def test_every_stored_offer_has_a_row() -> None:
    assert tuple(sorted(EXPECTED)) == STORED


@pytest.mark.parametrize("name", STORED)
def test_a_stored_offer_is_read_as_its_client_meant_it(name: str) -> None:
    row, offer = EXPECTED[name], parse_offer(stored(name))
    assert "".join(type(section).__name__[0] for section in offer.sections) == row.sections
    assert (offer.ufrag, offer.bundle) == (row.ufrag, row.bundle)
    assert f"a=ice-pwd:{offer.pwd}" in stored(name)
    assert [fingerprint.algorithm for fingerprint in offer.fingerprints] == [row.fingerprint]
    audio = offer.audio
    assert (audio.codec, audio.payload_type, audio.profile) == (row.codec, row.payload_type, row.profile)
    assert (audio.direction, audio.fmtp) == (row.direction, row.fmtp)
    assert (audio.red.payload_type if audio.red else None) == row.red
    assert (audio.level_extension_id, audio.mid_extension_id) == (row.level, row.mid_extension)
    if "D" in row.sections:
        assert offer.data is not None
        assert (offer.data.sctp_port, offer.data.profile) == (5000, row.data_profile)
        assert offer.data.max_message_size == row.max_message_size
    else:
        assert offer.data is None


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
def test_the_answer_has_what_every_client_needs(name: str, line_end: str) -> None:
    row, offer = EXPECTED[name], parse_offer(stored(name).replace("\r\n", line_end))
    answer = build_answer(offer, LOCAL)
    parsed = aiortc_sdp.SessionDescription.parse(answer)
    asked = aiortc_sdp.SessionDescription.parse(stored(name))

    assert [(m.kind, m.rtp.muxId) for m in parsed.media] == [(m.kind, m.rtp.muxId) for m in asked.media]
    assert [(group.semantic, tuple(group.items)) for group in parsed.group] == (
        [("BUNDLE", row.bundle)] if row.bundle else []
    )
    for media, section in zip(parsed.media, offer.sections, strict=True):
        assert media.dtls is not None
        assert media.ice is not None
        assert (media.ice.usernameFragment, media.ice.password) == (LOCAL.ufrag, LOCAL.pwd)
        assert [(f.algorithm, f.value) for f in media.dtls.fingerprints] == [("sha-256", LOCAL.fingerprint)]
        assert media.dtls.role == {"passive": "server", "active": "client"}[row.setup]
        assert media.ice.iceLite
        if isinstance(section, RejectedSection):
            assert (media.port, media.direction, media.ice_candidates) == (0, "inactive", [])
            continue
        assert (media.host, media.port) == ("203.0.113.10", 3478)
        assert [(c.ip, c.port, c.protocol, c.type) for c in media.ice_candidates] == [
            ("203.0.113.10", 3478, "udp", "host"),
            ("2001:db8::10", 3478, "udp", "host"),
        ]
        assert media.ice_candidates_complete
    [audio] = [m for m, s in zip(parsed.media, offer.sections, strict=True) if isinstance(s, AudioSection)]
    assert (audio.profile, audio.direction, audio.rtcp_mux) == (row.profile, row.direction, offer.audio.rtcp_mux)
    opus = (row.payload_type, {"minptime": 10, "useinbandfec": 1})
    red = [] if row.red is None else [(row.red, {"111/111": None})]
    assert [(c.payloadType, c.parameters) for c in audio.rtp.codecs] == [opus, *red]
    # libwebrtc sends RED only where it stands before Opus.
    assert audio.fmt == [*([] if row.red is None else [row.red]), row.payload_type]
    assert f"a=rtpmap:{row.payload_type} {row.codec}\r\n" in answer
    sent = [] if row.direction == "recvonly" else [(LOCAL.ssrc, "usher", "usher audio")]
    assert [(s.ssrc, s.cname, s.msid) for s in audio.ssrc] == sent
    assert audio.msid == ("usher audio" if sent else None)
    for media, section in zip(parsed.media, offer.sections, strict=True):
        if isinstance(section, DataSection):
            assert media.profile == row.data_profile
            assert (media.sctp_port or int(media.fmt[0])) == 5000
            assert media.sctpCapabilities is not None
            assert media.sctpCapabilities.maxMessageSize == LOCAL.max_message_size


def test_the_answer_to_chromium_reads_as_written_here() -> None:
    security = f"a=ice-ufrag:{LOCAL.ufrag}\na=ice-pwd:{LOCAL.pwd}\na=fingerprint:sha-256 {LOCAL.fingerprint}\n"
    candidates = """a=setup:passive
a=candidate:1 1 udp 2130706431 203.0.113.10 3478 typ host
a=candidate:2 1 udp 2130706175 2001:db8::10 3478 typ host
a=end-of-candidates
"""
    expected = f"""v=0
o=- 9223372036854775807 1 IN IP4 0.0.0.0
s=-
t=0 0
a=group:BUNDLE 0 2
a=ice-lite
a=ice-options:trickle ice2
a=msid-semantic:WMS *
m=audio 3478 UDP/TLS/RTP/SAVPF 63 111
c=IN IP4 203.0.113.10
a=mid:0
a=sendrecv
a=rtcp-mux
a=rtpmap:111 opus/48000/2
a=fmtp:111 minptime=10;useinbandfec=1
a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level
a=extmap:4 urn:ietf:params:rtp-hdrext:sdes:mid
a=rtpmap:63 red/48000/2
a=fmtp:63 111/111
a=msid:usher audio
a=ssrc:4000000001 cname:usher
a=ssrc:4000000001 msid:usher audio
{security}{candidates}m=video 0 UDP/TLS/RTP/SAVPF 98
c=IN IP4 0.0.0.0
a=mid:1
a=rtpmap:98 VP9/90000
a=inactive
{security}a=setup:passive
m=application 3478 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 203.0.113.10
a=mid:2
a=sctp-port:5000
a=max-message-size:65536
{security}{candidates}"""
    answer = build_answer(parse_offer(stored("chromium-video-vp9")), LOCAL)
    assert answer == expected.replace("\n", "\r\n")
