"""What is accepted of an offer, one rule at a time."""

from dataclasses import replace

import pytest

from tests.sdp_samples import CREDENTIALS, FINGERPRINT, LOCAL, audio, data, offer
from usher_core.errors import RemoteError
from usher_transceiver.sdp import (
    AUDIO_LEVEL_URI,
    MID_URI,
    Candidate,
    DataSection,
    Fingerprint,
    RejectedSection,
    build_answer,
    parse_offer,
)

OTHER = ("a=ice-ufrag:efgh", "a=ice-pwd:zyxwvutsrqponmlkjihgfedc", f"a=fingerprint:sha-256 {':'.join(['EF'] * 32)}")
ACTPASS = "a=setup:actpass"


def test_a_call_without_a_data_channel_is_a_call() -> None:
    assert parse_offer(offer(audio(), session=())).data is None


def test_an_unusable_audio_section_does_not_hide_the_next_one() -> None:
    g722 = audio(media="m=audio 9 UDP/TLS/RTP/SAVPF 9", mid="0", codec=("a=rtpmap:9 G722/8000",))
    parsed = parse_offer(offer(g722, audio(mid="1")))
    assert (parsed.audio.mid, parsed.bundle) == ("1", ("1",))
    assert parsed.sections[0] == RejectedSection("0", "audio", "UDP/TLS/RTP/SAVPF", "9", "9 G722/8000")


def test_a_second_data_section_is_rejected() -> None:
    sections = parse_offer(offer(audio(), data(), data(mid="2"), session=("a=group:BUNDLE 0 1 2",))).sections
    assert [type(section) for section in sections[1:]] == [DataSection, RejectedSection]


@pytest.mark.parametrize(
    "media",
    [
        "m=application 9 UDP/BFCP *",
        "m=application 9 UDP/DTLS/SCTP other",
        "m=application 0 UDP/DTLS/SCTP webrtc-datachannel",
        "m=text 9 RTP/AVP 98",
        "m=image 9 udptl t38",
    ],
)
def test_what_is_no_data_channel_is_rejected_with_what_it_asked_for(media: str) -> None:
    parsed = parse_offer(offer(audio(), data(media=media)))
    assert parsed.data is None
    kind, _, profile, form = media[2:].split()
    assert f"m={kind} 0 {profile} {form}\r\n" in build_answer(parsed, LOCAL)


def test_a_bundle_only_section_with_port_0_is_on() -> None:
    section = data("a=bundle-only", media="m=application 0 UDP/DTLS/SCTP webrtc-datachannel", transport=())
    assert parse_offer(offer(audio(), section)).data is not None


def test_a_data_section_outside_the_bundle_is_rejected() -> None:
    parsed = parse_offer(offer(audio(), data(), session=("a=group:BUNDLE 0",)))
    assert (parsed.data, parsed.bundle) == (None, ("0",))


def test_the_bundle_that_holds_the_audio_section_counts() -> None:
    parsed = parse_offer(offer(audio(), data(), session=("a=group:LS 0", "a=group:BUNDLE 7", "a=group:BUNDLE 1 0 9")))
    assert parsed.bundle == ("1", "0")


def test_without_a_bundle_one_pair_of_credentials_means_one_transport() -> None:
    assert parse_offer(offer(audio(), data(), session=())).data is not None
    assert parse_offer(offer(audio(), data(transport=(*OTHER, ACTPASS)), session=())).data is None


def test_sections_need_no_mids() -> None:
    parsed = parse_offer(offer(audio(mid=None), data(mid=None), session=()))
    answer = build_answer(parsed, LOCAL)
    assert parsed.data is not None
    assert "a=mid:" not in answer
    assert "BUNDLE" not in answer


def test_of_several_ufrags_that_of_the_first_accepted_section_in_the_bundle_counts() -> None:
    video = ["m=video 9 UDP/TLS/RTP/SAVPF 96", "a=mid:v", "a=ice-ufrag:video", "a=ice-pwd:" + "v" * 22]
    sections = (audio(), data(transport=(*OTHER, "a=setup:passive")), video)
    first_audio = parse_offer(offer(*sections, session=("a=group:BUNDLE v 0 1",)))
    first_data = parse_offer(offer(*sections, session=("a=group:BUNDLE v 1 0",)))
    assert (first_audio.ufrag, first_audio.role) == ("abcd", "server")
    assert (first_data.ufrag, first_data.role) == ("efgh", "client")


def test_a_rejected_section_lends_its_transport_to_bundle_only_sections() -> None:
    video = ["m=video 9 UDP/TLS/RTP/SAVPF 96", "a=mid:v", *OTHER, ACTPASS]
    bare = audio("a=bundle-only", media="m=audio 0 UDP/TLS/RTP/SAVPF 111", transport=())
    assert parse_offer(offer(video, bare, session=("a=group:BUNDLE v 0",))).ufrag == "efgh"


def test_the_transport_may_stand_at_session_level() -> None:
    session = ("a=group:BUNDLE 0 1", *CREDENTIALS, "a=setup:passive", "a=sendonly")
    parsed = parse_offer(offer(audio(transport=()), data(transport=()), session=session))
    assert (parsed.ufrag, parsed.pwd, parsed.role) == ("abcd", "abcdefghijklmnopqrstuvwx", "client")
    assert parsed.fingerprints == (Fingerprint("sha-256", FINGERPRINT),)
    assert parsed.audio.direction == "recvonly"


@pytest.mark.parametrize(
    ("line", "role", "answered"),
    [
        ("a=setup:actpass", "server", "passive"),
        ("a=setup:active", "server", "passive"),
        ("a=setup:passive", "client", "active"),
        ("b=AS:64", "server", "passive"),  # no a=setup means active
    ],
)
def test_we_are_the_dtls_server_wherever_the_client_lets_us(line: str, role: str, answered: str) -> None:
    parsed = parse_offer(offer(audio(transport=(*CREDENTIALS, line)), session=()))
    assert parsed.role == role
    assert f"a=setup:{answered}\r\n" in build_answer(parsed, LOCAL)


@pytest.mark.parametrize(
    ("offered", "ours"),
    [
        ("sendrecv", "sendrecv"),
        ("sendonly", "recvonly"),
        ("recvonly", "sendonly"),
        ("inactive", "inactive"),
        ("x-other", "sendrecv"),
    ],
)
def test_the_direction_is_mirrored_and_a_stream_named_only_if_we_send(offered: str, ours: str) -> None:
    parsed = parse_offer(offer(audio(f"a={offered}"), session=()))
    answer = build_answer(parsed, LOCAL)
    assert parsed.audio.direction == ours
    assert ("a=ssrc:" in answer, "a=msid:" in answer) == (parsed.audio.sends, parsed.audio.sends)


def test_the_strongest_hash_function_counts_with_all_its_fingerprints() -> None:
    values = {"SHA-256": "AA:" * 31 + "aa", "sha-384": "bb:" * 47 + "BB", "sha-1": "cc:" * 19 + "cc", "sha-3": "dd"}
    lines = [f"a=fingerprint:{name} {value}" for name, value in values.items()]
    second = "a=fingerprint:sha-384 " + "EE:" * 47 + "EE"
    parsed = parse_offer(offer(audio(transport=(*CREDENTIALS[:2], *lines, second)), session=()))
    assert parsed.fingerprints == (
        Fingerprint("sha-384", "BB:" * 47 + "BB"),
        Fingerprint("sha-384", "EE:" * 47 + "EE"),
    )


@pytest.mark.parametrize("codec", ["opus/48000/2", "OPUS/48000/2", "opus/48000", "opus/16000/1", "opus/24000/2"])
def test_the_spelling_of_opus_is_kept(codec: str) -> None:
    parsed = parse_offer(offer(audio(codec=(f"a=rtpmap:111 {codec}",)), session=()))
    assert f"a=rtpmap:111 {codec}\r\n" in build_answer(parsed, LOCAL)
    assert parsed.audio.clock_rate == int(codec.split("/")[1])


@pytest.mark.parametrize("codec", ["opu\u017f/48000/2", "\uff4fpus/48000/2", "opus/4800\u0660/2", "opus/48000/\u0662"])
def test_letters_and_digits_of_other_alphabets_are_no_opus(codec: str) -> None:
    with pytest.raises(RemoteError, match="expected Opus"):
        parse_offer(offer(audio(codec=(f"a=rtpmap:111 {codec}",)), session=()))


def test_the_clients_preferred_opus_is_taken() -> None:
    codecs = ("a=rtpmap:111 opus/48000/2", "a=rtpmap:96 opus/16000/1", "a=fmtp:96 stereo=0", "a=fmtp:111 stereo=1")
    parsed = parse_offer(offer(audio(media="m=audio 9 UDP/TLS/RTP/SAVPF 72 0 96 111", codec=codecs), session=()))
    assert (parsed.audio.payload_type, parsed.audio.fmtp) == (96, "stereo=0")


@pytest.mark.parametrize(
    ("formats", "maps", "payload_type", "codec"),
    [
        ("0", (), 0, "PCMU/8000"),  # RFC 3551: a static payload type needs no rtpmap
        ("13 8 0 101", (), 8, "PCMA/8000"),
        ("0 8", ("a=rtpmap:0 PCMU/8000", "a=rtpmap:8 PCMA/8000"), 0, "PCMU/8000"),
        ("97 8", ("a=rtpmap:97 pcmu/8000/1",), 97, "pcmu/8000/1"),
        ("0 8", ("a=rtpmap:0 G726-32/8000",), 8, "PCMA/8000"),
        ("0 8 111", ("a=rtpmap:111 opus/48000/2",), 111, "opus/48000/2"),
    ],
)
def test_g711_is_taken_where_there_is_no_opus(
    formats: str, maps: tuple[str, ...], payload_type: int, codec: str
) -> None:
    section = audio(media=f"m=audio 9 RTP/SAVPF {formats}", codec=maps)
    parsed = parse_offer(offer(section, session=()))
    assert (parsed.audio.payload_type, parsed.audio.codec) == (payload_type, codec)
    assert parsed.audio.encoding == codec.partition("/")[0].lower()
    assert parsed.audio.clock_rate == int(codec.split("/")[1])
    answer = build_answer(parsed, LOCAL)
    assert f"m=audio 3478 RTP/SAVPF {payload_type}\r\n" in answer
    assert f"a=rtpmap:{payload_type} {codec}\r\n" in answer
    assert ("a=fmtp" in answer) == codec.startswith("opus")


@pytest.mark.parametrize(
    ("formats", "lines", "red"),
    [
        ("111 63", ["a=rtpmap:63 red/48000/2", "a=fmtp:63 111/111"], 63),
        ("63 111", ["a=rtpmap:63 RED/48000", "a=fmtp:63 111/111/111"], 63),
        ("111 63", ["a=rtpmap:63 red/48000/2"], None),
        ("111 63", ["a=rtpmap:63 red/48000/2", "a=fmtp:63 111/0"], None),
        ("111 63", ["a=rtpmap:63 red/8000", "a=fmtp:63 111/111"], None),
        ("111", ["a=rtpmap:63 red/48000/2", "a=fmtp:63 111/111"], None),
        ("111 70", ["a=rtpmap:70 red/48000/2", "a=fmtp:70 111/111"], None),
        ("111 63", ["a=rtpmap:63 red/48000/2", "a=fmtp:63 111/111", "a=recvonly"], None),
        ("0 63", ["a=rtpmap:63 red/8000", "a=fmtp:63 0/0"], 63),
    ],
)
def test_copies_of_the_codec_are_accepted_from_a_client_that_sends(
    formats: str, lines: list[str], red: int | None
) -> None:
    section = audio(*lines, media=f"m=audio 9 UDP/TLS/RTP/SAVPF {formats}")
    parsed = parse_offer(offer(section, session=()))
    answer = build_answer(parsed, LOCAL)
    assert (parsed.audio.red.payload_type if parsed.audio.red else None) == red
    assert ("red" in answer.lower()) == (red is not None)
    assert f"SAVPF {'' if red is None else f'{red} '}{parsed.audio.payload_type}\r\n" in answer


@pytest.mark.parametrize(
    ("lines", "profile", "agreed"),
    [
        (["a=rtcp-fb:111 nack"], "UDP/TLS/RTP/SAVPF", True),
        (["a=rtcp-fb:111 transport-cc", "a=rtcp-fb:* nack"], "UDP/TLS/RTP/SAVPF", True),
        (["a=rtcp-fb:111 nack pli"], "UDP/TLS/RTP/SAVPF", False),
        (["a=rtcp-fb:112 nack"], "UDP/TLS/RTP/SAVPF", False),
        (["a=rtcp-fb:111 nack"], "UDP/TLS/RTP/SAVP", False),
        ([], "UDP/TLS/RTP/SAVPF", False),
    ],
)
def test_lost_packets_are_sent_again_where_the_client_asks_for_it(lines: list[str], profile: str, agreed: bool) -> None:
    parsed = parse_offer(offer(audio(*lines, media=f"m=audio 9 {profile} 111"), session=()))
    assert parsed.audio.nack is agreed
    assert ("a=rtcp-fb:111 nack\r\n" in build_answer(parsed, LOCAL)) is agreed


@pytest.mark.parametrize(
    "fmtp,most",
    [
        ("minptime=10;maxaveragebitrate=20000", 20_000),
        ("maxaveragebitrate=20000; useinbandfec=1", 20_000),
        ("xmaxaveragebitrate=20000", None),
        ("maxaveragebitrate=much", None),
        ("maxaveragebitrate=" + "9" * 5000, None),
        ("useinbandfec=1", None),
    ],
)
def test_the_most_that_a_client_wants_to_get_is_read(fmtp: str, most: int | None) -> None:
    parsed = parse_offer(offer(audio(codec=("a=rtpmap:111 opus/48000/2", f"a=fmtp:111 {fmtp}")), session=()))
    assert parsed.audio.max_bitrate == most


def test_an_opus_payload_type_that_looks_like_rtcp_is_passed_over() -> None:
    codecs = ("a=rtpmap:72 opus/48000/2", "a=rtpmap:111 opus/48000/2")
    parsed = parse_offer(offer(audio(media="m=audio 9 UDP/TLS/RTP/SAVPF 72 111", codec=codecs), session=()))
    assert parsed.audio.payload_type == 111


@pytest.mark.parametrize(
    ("lines", "mid", "kept"),
    [
        ([f"a=extmap:3 {AUDIO_LEVEL_URI}", f"a=extmap:9 {MID_URI}"], "0", {3: AUDIO_LEVEL_URI, 9: MID_URI}),
        ([f"a=extmap:3/sendrecv {AUDIO_LEVEL_URI} vad=on"], "0", {3: AUDIO_LEVEL_URI}),
        ([f"a=extmap:3/recvonly {AUDIO_LEVEL_URI}"], "0", {}),
        ([f"a=extmap:15 {AUDIO_LEVEL_URI}", f"a=extmap:0 {MID_URI}"], "0", {}),
        ([f"a=extmap:3 {AUDIO_LEVEL_URI}", f"a=extmap:4 {AUDIO_LEVEL_URI}"], "0", {3: AUDIO_LEVEL_URI}),
        ([f"a=extmap:3 {AUDIO_LEVEL_URI}", f"a=extmap:3 {MID_URI}"], "0", {3: AUDIO_LEVEL_URI}),
        ([f"a=extmap:9 {MID_URI}"], "m" * 17, {}),
        ([f"a=extmap:9 {MID_URI}"], None, {}),
        (["a=extmap:5 urn:ietf:params:rtp-hdrext:toffset"], "0", {}),
    ],
)
def test_only_extensions_we_really_send_are_kept(lines: list[str], mid: str | None, kept: dict[int, str]) -> None:
    parsed = parse_offer(offer(audio(*lines, mid=mid), session=()))
    assert {extension.id: extension.uri for extension in parsed.audio.extensions} == kept


def test_rtcp_mux_is_answered_only_where_it_was_offered() -> None:
    text = offer(audio(), session=())
    assert "a=rtcp-mux" in build_answer(parse_offer(text), LOCAL)
    assert "a=rtcp-mux" not in build_answer(parse_offer(text.replace("a=rtcp-mux\r\n", "")), LOCAL)


@pytest.mark.parametrize(
    ("media", "lines", "port", "size"),
    [
        ("m=application 9 UDP/DTLS/SCTP webrtc-datachannel", ["a=sctp-port:5001", "a=max-message-size:0"], 5001, 0),
        ("m=application 9 TCP/DTLS/SCTP webrtc-datachannel", [], 5000, 65536),
        ("m=application 9 DTLS/SCTP webrtc-datachannel", ["a=sctp-port:5000"], 5000, 65536),
        ("m=application 9 DTLS/SCTP 5002", ["a=sctpmap:5002 webrtc-datachannel 1024"], 5002, 65536),
    ],
)
def test_data_channels_of_all_ages_are_answered_in_kind(media: str, lines: list[str], port: int, size: int) -> None:
    parsed = parse_offer(offer(audio(), data(*lines, media=media)))
    assert parsed.data is not None
    assert (parsed.data.sctp_port, parsed.data.max_message_size) == (port, size)
    answer = build_answer(parsed, LOCAL)
    profile = media.split()[2]
    if parsed.data.old_style:
        assert f"m=application 3478 {profile} 5000\r\n" in answer
        assert "a=sctpmap:5000 webrtc-datachannel 65535\r\n" in answer
    else:
        assert f"m=application 3478 {profile} webrtc-datachannel\r\n" in answer
        assert "a=sctp-port:5000\r\n" in answer


def test_blank_lines_spaces_at_the_end_and_text_in_other_alphabets_are_harmless() -> None:
    text = offer(audio(), data()).replace("\r\n", " \r\r\n\r\n").replace("s=-", "s=Gespräch 電話")
    assert parse_offer(text) == parse_offer(offer(audio(), data())) == parse_offer(text.encode())


def test_the_first_candidate_fills_the_media_and_connection_lines() -> None:
    candidates = (
        Candidate("2001:db8::10", 3478),
        Candidate("203.0.113.10", 3478),
        Candidate("203.0.113.10", 443),
        Candidate("203.0.113.11", 443),
    )
    answer = build_answer(parse_offer(offer(audio(), session=())), replace(LOCAL, candidates=candidates))
    lines = answer.splitlines()
    assert "m=audio 3478 UDP/TLS/RTP/SAVPF 111" in lines
    assert "c=IN IP6 2001:db8::10" in lines
    assert [line for line in lines if line.startswith("a=candidate:")] == [
        # RFC 8445 §5.1.2.1: 126 * 2^24 + local preference * 2^8 + 255; one foundation per address.
        f"a=candidate:1 1 udp {126 * 2**24 + 65535 * 2**8 + 255} 2001:db8::10 3478 typ host",
        f"a=candidate:2 1 udp {126 * 2**24 + 65534 * 2**8 + 255} 203.0.113.10 3478 typ host",
        f"a=candidate:2 1 udp {126 * 2**24 + 65533 * 2**8 + 255} 203.0.113.10 443 typ host",
        f"a=candidate:3 1 udp {126 * 2**24 + 65532 * 2**8 + 255} 203.0.113.11 443 typ host",
    ]


def test_an_answer_without_candidates_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="at least one candidate"):
        build_answer(parse_offer(offer(audio(), session=())), replace(LOCAL, candidates=()))


@pytest.mark.parametrize(
    ("host", "port"), [("example.com", 1), ("fe80::1%eth0", 1), ("203.0.113.1", 0), ("203.0.113.1", 65536), ("", 1)]
)
def test_a_candidate_is_an_ip_address_and_a_port(host: str, port: int) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        Candidate(host, port)


def test_passwords_stay_out_of_what_is_printed() -> None:
    parsed = parse_offer(offer(audio(), session=()))
    assert parsed.pwd not in repr(parsed)
    assert LOCAL.pwd not in repr(LOCAL)
