"""Addresses, routes, datagram classes and the route file."""

from __future__ import annotations

import pytest

from usher_core.datagram import DatagramClass, classify
from usher_core.errors import LocalError
from usher_core.hop import is_timely, split, time_offset_ms
from usher_core.ids import ClientPath, Route, join_host_port, pack_address, split_host_port, unpack_address
from usher_core.routes import parse_route_file
from usher_core.rtp import is_rtcp, peek_ssrc
from usher_core.settings import ProgramSettings, TextList


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:3478", ("127.0.0.1", 3478)),
        ("[::1]:0", ("::1", 0)),
        ("relay.example:65535", ("relay.example", 65535)),
    ],
)
def test_host_and_port_are_split_and_joined(text: str, expected: tuple[str, int]) -> None:
    assert split_host_port(text) == expected
    assert join_host_port(*expected) == text


@pytest.mark.parametrize("text", ["host", "::1", "[::1]", "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:-1", "1.2.3.4:٣", ""])
def test_what_has_no_port_is_refused(text: str) -> None:
    with pytest.raises(LocalError):
        split_host_port(text)


@pytest.mark.parametrize("text", ["127.0.0.1", "::1", "[::1]"])
def test_default_port_is_used_when_there_is_none(text: str) -> None:
    assert split_host_port(text, 3478) == (text.strip("[]"), 3478)


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "::"])
def test_address_survives_packing(host: str) -> None:
    assert unpack_address(pack_address(host)) == host


def test_path_says_its_family() -> None:
    assert not ClientPath(pack_address("192.0.2.1"), 5, 1).is_ipv6
    assert ClientPath(pack_address("::1"), 5, 1).is_ipv6
    assert str(ClientPath(pack_address("::1"), 5, 1)) == "[::1]:5 via listener 1"


@pytest.mark.parametrize("fields", [(0, 1, 0), (65536, 1, 0), (1, -1, 0), (1, 2**32, 0), (1, 1, 256)])
def test_route_out_of_range_is_refused(fields: tuple[int, int, int]) -> None:
    with pytest.raises(LocalError):
        Route(*fields)


def test_classes_follow_rfc_7983_and_9443() -> None:
    borders = {
        0: DatagramClass.STUN,
        3: DatagramClass.STUN,
        4: DatagramClass.UNKNOWN,
        15: DatagramClass.UNKNOWN,
        16: DatagramClass.ZRTP,
        19: DatagramClass.ZRTP,
        20: DatagramClass.DTLS,
        63: DatagramClass.DTLS,
        64: DatagramClass.TURN,
        79: DatagramClass.TURN,
        80: DatagramClass.QUIC,
        127: DatagramClass.QUIC,
        128: DatagramClass.RTP,
        191: DatagramClass.RTP,
        192: DatagramClass.QUIC,
        255: DatagramClass.QUIC,
    }
    assert {first: classify(bytes([first])) for first in borders} == borders
    assert classify(b"") is DatagramClass.UNKNOWN


def test_ssrc_is_read_from_rtp_and_rtcp() -> None:
    assert peek_ssrc(bytes.fromhex("806f0001 00000000 11223344")) == 0x11223344
    assert peek_ssrc(bytes.fromhex("80c80001 11223344")) == 0x11223344
    assert is_rtcp(bytes.fromhex("80c8"))
    assert not is_rtcp(bytes.fromhex("806f"))
    assert peek_ssrc(bytes.fromhex("806f0001 00000000 112233")) is None
    assert peek_ssrc(bytes.fromhex("406f0001 00000000 11223344")) is None
    assert peek_ssrc(b"") is None


def test_time_window_wraps_with_its_32_bits() -> None:
    assert time_offset_ms(5, 2**32 - 5) == 10
    assert time_offset_ms(2**32 - 5, 5) == -10
    assert is_timely(59_000, 2**32 - 1_000)
    assert not is_timely(59_001, 2**32 - 1_000)


def test_datagram_is_cut_in_the_middle_so_that_both_halves_fit() -> None:
    payload = bytes(range(256)) * 5 + bytes(129)
    halves = split(payload, 705)
    assert halves is not None
    assert [len(half) for half in halves] == [705, 704]
    assert b"".join(halves) == payload
    assert split(payload, 704) is None


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('{"cluster": 0, "pod": 1, "udp": "1.2.3.4:5"}', "cluster"),
        ('{"cluster": 1, "pod": 1, "udp": "1.2.3.4"}', "udp"),
        ('{"cluster": 1, "pod": 1, "udp": "host:5"}', "udp"),
        ('{"cluster": 1, "pod": 1, "udp": "1.2.3.4:0"}', "udp"),
        ('{"cluster": 1, "pod": 1, "udp": "[fe80::1%eth0]:5"}', "udp: an address with a zone"),
        ('{"cluster": 1, "pod": 1, "udp": "[::ffff:1.2.3.4%1]:5"}', "udp: an address with a zone"),
        ('{"cluster": 1, "pod": 1, "udp": "1.2.3.4:5", "typo": 1}', "typo"),
        ('{"cluster": 1, "pod": 1, "udp": "1.2.3.4:5", "http": "http://1.2.3.4:99999"}', "http: .* is no base URL"),
        ('{"cluster": 1, "pod": 1, "udp": "1.2.3.4:5", "http": "http://1.2.3.4:x"}', "http: .* is no base URL"),
        ('{"cluster": 1, "pod": 1, "udp": "1.2.3.4:5", "http": "http://1.2.3.4:0"}', "http: .* is no base URL"),
        ('{"cluster": 1, "pod": 1, "udp": "1.2.3.4:5", "http": "http://[::1"}', "http: .* is no base URL"),
        ('{"cluster": 1, "pod": 1, "udp": "1.2.3.4:5", "http": "1.2.3.4:80"}', "http: .* is no base URL"),
        ('{"cluster": 1, "pod": 1, "udp": "1.2.3.4:5", "http": "http://a b"}', "http: .* is no base URL"),
        ('{"cluster": 1, "pod": 1, "udp": "1.2.3.4:5"}, {"cluster": 1, "pod": 1, "udp": "1.2.3.4:6"}', "twice"),
    ],
)
def test_wrong_route_file_names_the_field(entry: str, says: str) -> None:
    with pytest.raises(LocalError, match=says):
        parse_route_file(f'{{"version": 1, "transceivers": [{entry}]}}')


@pytest.mark.parametrize("text", ["", "{}", "null", '{"version": 2, "transceivers": []}', "[" * 100_000])
def test_what_is_no_route_file_is_a_local_error(text: str) -> None:
    with pytest.raises(LocalError):
        parse_route_file(text)


class _Settings(ProgramSettings):
    """Settings of a test."""

    listen: TextList = ()


def test_list_setting_is_a_repeatable_flag_and_a_comma_list_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _Settings.from_command_line(["--listen", "1=a:1", "--listen", "2=b:2"]).listen == ("1=a:1", "2=b:2")
    monkeypatch.setenv("USHER_LISTEN", "1=a:1, 2=b:2")
    assert _Settings.from_command_line([]).listen == ("1=a:1", "2=b:2")


def test_wrong_setting_is_a_local_error_that_points_at_the_help() -> None:
    with pytest.raises(LocalError, match=r"--log-level.*--help"):
        _Settings.from_command_line(["--log-level", "loud"])
