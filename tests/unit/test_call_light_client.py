"""The light client against a server made of the parts that the transceiver is made of."""

import struct

import pytest

from usher_cli.call.api import CallError
from usher_cli.call.light_client import CONSENT_S, LightClient
from usher_cli.call.steady_checks import CHECK_INTERVAL_S
from usher_core import stun
from usher_core.ids import pack_address
from usher_core.stun import StunMessage
from usher_transceiver.certificate import Certificate
from usher_transceiver.dtls import Dtls, DtlsState
from usher_transceiver.sdp import Fingerprint, parse_offer

CLIENT_CERTIFICATE = Certificate()
SERVER_CERTIFICATE = Certificate()
PASSWORD = "serverpasswordserverpassword"
ANSWER = "\r\n".join(
    [
        "v=0",
        "o=- 1 1 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "m=audio 9 UDP/TLS/RTP/SAVPF 111",
        "a=ice-ufrag:serverufrag",
        f"a=ice-pwd:{PASSWORD}",
        f"a=fingerprint:sha-256 {SERVER_CERTIFICATE.fingerprint}",
        "a=setup:passive",
        "a=candidate:1 1 udp 2130706431 127.0.0.1 3478 typ host",
        "",
    ]
)


def answered(now: float = 0.0) -> LightClient:
    client = LightClient(CLIENT_CERTIFICATE, phase=0)
    assert client.accept(ANSWER, now) == ("127.0.0.1", 3478)
    return client


def reply(check: bytes, password: str = PASSWORD) -> bytes:
    return stun.build_success(stun.parse(check), pack_address("127.0.0.1"), 4444, password.encode())


def connect(client: LightClient, now: float = 0.0) -> Dtls:
    server = Dtls(SERVER_CERTIFICATE, "server", (Fingerprint("sha-256", CLIENT_CERTIFICATE.fingerprint),))
    server.start()
    (check,) = client.on_timer(now)
    to_server = client.on_datagram(now, reply(check))
    for _ in range(10):
        for datagram in to_server:
            server.receive(datagram)
        to_server = [out for datagram in server.take() for out in client.on_datagram(now, datagram)]
    assert server.state is DtlsState.CONNECTED
    return server


def test_our_transceiver_understands_the_offer() -> None:
    offer = parse_offer(LightClient(CLIENT_CERTIFICATE, phase=0).offer)
    assert offer.audio is not None
    assert offer.audio.codec == "opus/48000/2"


def test_checks_nominate_the_only_pair_until_one_is_answered() -> None:
    client = answered()
    checks: list[StunMessage] = [stun.parse(datagram) for now in (0.0, 0.01, 0.06) for datagram in client.on_timer(now)]
    assert len(checks) == 2
    assert all(check.use_candidate and check.verify_integrity(PASSWORD.encode()) for check in checks)
    assert checks[0].server_ufrag == b"serverufrag"
    assert checks[0].transaction_id != checks[1].transaction_id


def test_an_answer_with_the_wrong_password_counts_for_nothing() -> None:
    client = answered()
    (check,) = client.on_timer(0.0)
    assert client.on_datagram(0.01, reply(check, "x" * 28)) == []
    assert client.record.ice_at is None


def test_a_server_with_full_ice_gets_its_checks_answered_when_they_are_for_us() -> None:
    client = answered()
    username = (stun.Attribute.USERNAME, b"ours:serverufrag")
    password = next(line for line in client.offer.splitlines() if line.startswith("a=ice-pwd:")).partition(":")[2]
    check = stun.build(stun.StunClass.REQUEST, bytes(12), [username], password.encode())
    (answer,) = client.on_datagram(0.0, check)
    message = stun.parse(answer)
    assert message.cls is stun.StunClass.SUCCESS
    assert message.transaction_id == bytes(12)
    assert message.verify_integrity(password.encode())
    assert client.on_datagram(0.0, stun.build(stun.StunClass.REQUEST, bytes(12), [username], b"another")) == []


def test_a_server_that_is_active_begins_the_handshake() -> None:
    client = LightClient(CLIENT_CERTIFICATE, phase=0)
    client.accept(ANSWER.replace("setup:passive", "setup:active"), 0.0)
    server = Dtls(SERVER_CERTIFICATE, "client", (Fingerprint("sha-256", CLIENT_CERTIFICATE.fingerprint),))
    (check,) = client.on_timer(0.0)
    assert client.on_datagram(0.0, reply(check)) == []
    server.start()
    for _ in range(10):
        to_server = [out for datagram in server.take() for out in client.on_datagram(0.0, datagram)]
        for datagram in to_server:
            server.receive(datagram)
    assert server.state is DtlsState.CONNECTED
    assert client.is_connected


def test_after_the_handshake_packets_are_protected_and_counted_up() -> None:
    client = answered()
    server = connect(client, 1.0)
    assert client.is_connected
    srtp = server.make_srtp()
    assert srtp is not None
    packets = [client.next_audio((b"one", b"two")) for _ in range(3)]
    plain = [srtp.unprotect(packet).plain for packet in packets if packet is not None]
    assert [packet[12:] for packet in plain] == [b"one", b"two", b"one"]
    first, second = (struct.unpack("!BBHII", packet[:12]) for packet in plain[:2])
    assert (second[2] - first[2]) & 0xFFFF == 1
    assert (second[3] - first[3]) & 0xFFFFFFFF == 960
    assert client.record.sent == 3


def test_before_the_handshake_nothing_is_sent() -> None:
    assert answered().next_audio((b"one",)) is None


def rtp(sequence: int) -> bytes:
    return struct.pack("!BBHII", 0x80, 111, sequence & 0xFFFF, 0, 7) + b"encrypted"


def test_loss_and_gaps_are_read_from_what_is_in_clear() -> None:
    client = answered()
    for index, sequence in enumerate((65_534, 65_535, 1, 0, 4)):
        client.on_datagram(10 + index * 0.02, rtp(sequence))
    client.on_datagram(10.5, bytes([0x80, 200]) + bytes(26))  # RTCP is no audio
    assert (client.record.received, client.record.lost) == (5, 2)
    assert client.record.longest_gap_s == pytest.approx(0.02)
    assert client.record.first_packet_at == 10


def test_consent_is_asked_for_every_2_5_s_and_runs_out() -> None:
    client = answered()
    connect(client, 0.0)
    sent = [now for now in range(1, 60) if client.on_timer(now / 2)]
    assert [now / 2 for now in sent][:2] == [CHECK_INTERVAL_S, 2 * CHECK_INTERVAL_S]
    client.on_timer(CONSENT_S + 0.1)
    assert client.record.ended == "consent expired"
    assert not client.is_connected
    assert client.next_audio((b"one",)) is None


def test_a_goodbye_of_the_server_ends_it() -> None:
    client = answered()
    server = connect(client)
    server.close()
    for datagram in server.take():
        client.on_datagram(5.0, datagram)
    assert client.record.ended is not None


@pytest.mark.parametrize("missing", ["a=candidate", "a=ice-pwd", "a=fingerprint", "m=audio"])
def test_an_answer_that_lacks_something_is_told(missing: str) -> None:
    answer = "\r\n".join(line for line in ANSWER.split("\r\n") if not line.startswith(missing))
    with pytest.raises(CallError, match="our client can't use the answer"):
        LightClient(CLIENT_CERTIFICATE, phase=0).accept(answer, 0.0)
