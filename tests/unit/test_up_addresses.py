import socket

import pytest

from usher_cli.up import addresses
from usher_core.errors import LocalError


def test_a_wildcard_advertises_loopback_and_the_primary_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "primary_address", lambda version: {4: "192.168.7.7", 6: "2001:db8::7"}[version])
    assert addresses.advertised_addresses("0.0.0.0", 3478, ()) == ["127.0.0.1:3478", "192.168.7.7:3478"]
    assert addresses.advertised_addresses("::", 3478, ()) == ["[::1]:3478", "[2001:db8::7]:3478"]


def test_without_a_network_loopback_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "primary_address", lambda version: None)
    assert addresses.advertised_addresses("0.0.0.0", 3478, ()) == ["127.0.0.1:3478"]


def test_one_address_listened_on_is_the_one_advertised() -> None:
    assert addresses.advertised_addresses("127.0.0.1", 5000, ()) == ["127.0.0.1:5000"]


def test_given_addresses_take_the_udp_port_unless_they_have_their_own() -> None:
    assert addresses.advertised_addresses("0.0.0.0", 3478, ["203.0.113.1", "203.0.113.2:443"]) == [
        "203.0.113.1:3478",
        "203.0.113.2:443",
    ]


def test_names_are_resolved() -> None:
    assert addresses.resolve("--udp", "localhost:3478") in ("127.0.0.1:3478", "[::1]:3478")
    assert addresses.resolve("--udp", "0.0.0.0:0") == "0.0.0.0:0"


@pytest.mark.parametrize(
    "given, said", [("no such host", "neither an IP address nor a name"), ("::1", "another IP version")]
)
def test_what_can_not_stand_in_an_answer_is_refused(given: str, said: str) -> None:
    with pytest.raises(LocalError, match=said):
        addresses.advertised_addresses("0.0.0.0", 3478, [given])


def test_the_primary_address_can_be_bound() -> None:
    found = addresses.primary_address(4)
    if found is not None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((found, 0))


def test_a_udp_port_shared_by_other_relays_counts_as_taken() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(LocalError, match=f"--udp {taken} can't be used: Address already in use"):
            addresses.check_port_is_free(socket.SOCK_DGRAM, "--udp", taken)


def test_a_tcp_port_in_use_counts_as_taken_and_a_free_one_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(LocalError, match="choose another one with --http HOST:PORT"):
            addresses.check_port_is_free(socket.SOCK_STREAM, "--http", taken)
    addresses.check_port_is_free(socket.SOCK_STREAM, "--http", taken)
