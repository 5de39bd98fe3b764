"""Settings of signaling: what is refused at the start, and what the person reads then."""

from __future__ import annotations

from pathlib import Path

import pytest

from usher_core.errors import LocalError
from usher_core.internal_api import AdvertisedAddress
from usher_signaling.regions import RegionalAddress
from usher_signaling.settings import SignalingSettings

FILES = ["--keys-file", "k", "--token-file", "t", "--routes-file", "r"]


def read(*flags: str) -> SignalingSettings:
    return SignalingSettings.from_command_line([*FILES, *flags])


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USHER_API_KEY", raising=False)


def test_loopback_without_a_key_is_keyless() -> None:
    for address in ("127.0.0.1:8080", "localhost:0", "[::1]:8080", "127.9.9.9:1"):
        assert read("--http", address).is_keyless
    assert read("--keyless").is_keyless


@pytest.mark.parametrize("address", ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:80", ":8080", "example.org:80"])
@pytest.mark.parametrize("flags", [(), ("--keyless",)])
def test_without_a_key_nothing_but_loopback_is_served(address: str, flags: tuple[str, ...]) -> None:
    with pytest.raises(LocalError, match="--api-keys-file or USHER_API_KEY, or serve this machine only"):
        read("--http", address, *flags)


def test_with_a_key_any_address_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not read("--http", "0.0.0.0:80", "--api-keys-file", "a").is_keyless
    monkeypatch.setenv("USHER_API_KEY", "secret-key")
    settings = read("--http", "0.0.0.0:80")
    assert not settings.is_keyless
    assert "secret-key" not in repr(settings)


def test_keyless_and_a_key_exclude_each_other() -> None:
    with pytest.raises(LocalError, match="exclude each other"):
        read("--keyless", "--api-keys-file", "a")


def test_a_key_file_and_a_key_of_the_environment_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USHER_API_KEY", "secret-key")
    with pytest.raises(LocalError, match="exclude each other: put the key into the file") as refused:
        read("--api-keys-file", "a")
    assert "secret-key" not in str(refused.value)


def test_advertised_addresses_are_read_in_order() -> None:
    settings = read("--advertise", "1=192.0.2.1:3478", "--advertise", "65535=[2001:db8::1]:9@eu-west")
    assert settings.advertised == (
        RegionalAddress(AdvertisedAddress(listener=1, host="192.0.2.1", port=3478)),
        RegionalAddress(AdvertisedAddress(listener=65535, host="2001:db8::1", port=9), "eu-west"),
    )


def test_advertised_addresses_come_from_the_environment_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USHER_ADVERTISE", "1=192.0.2.1:1,2=192.0.2.2:2")
    assert [entry.address.listener for entry in read().advertised] == [1, 2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("192.0.2.1:3478", "is not ID=IP:PORT"),
        ("x=192.0.2.1:3478", "is not ID=IP:PORT"),
        ("65536=192.0.2.1:3478", "listener"),
        ("1=192.0.2.1", "has no port"),
        ("1=192.0.2.1:0", "port"),
        ("1=relay.example.org:3478", "no IP address"),
        ("1=192.0.2.1:3478@", "is no region"),
        ("1=192.0.2.1:3478@eu west", "is no region"),
    ],
)
def test_a_wrong_advertised_address_is_named(text: str, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint) as caught:
        read("--advertise", text)
    assert "advertise" in str(caught.value)


def test_more_addresses_than_an_answer_carries_are_refused() -> None:
    flags = [flag for number in range(17) for flag in ("--advertise", f"{number}=192.0.2.1:3478")]
    with pytest.raises(LocalError, match="at most 16"):
        read(*flags)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--region", "eu west"], "no region"),
        (["--region-header", "X Region", "--trusted-proxies", "10.0.0.0/8"], "no name of a header"),
        (["--region-header", "X-Region"], "--region-header needs --trusted-proxies"),
        (["--trusted-proxies", "10.0.0.1/8"], "host bits"),
        (["--trusted-proxies", "proxy.example"], "does not appear to be"),
        (["--region-fallback", "eu", "--region-fallback", "eu"], "stands twice"),
        (["--region-fallback", "**"], "no region"),
        (["--relay-admin", "10.0.0.7:9478"], "no base URL"),
        (["--relay-admin", "http://10.0.0.7:9478/metrics"], "no base URL"),
        (["--relay-admin", "http://10.0.0.7:99999"], "1 to 65535 is expected"),
        (["--relay-admin", "http://me:secret@10.0.0.7:9478"], "neither user nor fragment"),
        (["--backends", "x" * 65], "no name of a backend"),
    ],
)
def test_wrong_settings_of_steering_and_fleet_are_refused(flags: list[str], complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint):
        read(*flags)


def test_regions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USHER_TRUSTED_PROXIES", "10.0.0.0/8,2001:db8::/32")
    regions = read("--region", "eu", "--region-header", "X-Region", "--region-fallback", "us").regions
    assert (regions.own, regions.header, regions.fallback) == ("eu", "X-Region", ("us",))
    assert [str(network) for network in regions.proxies] == ["10.0.0.0/8", "2001:db8::/32"]
    assert read().regions.fallback == ("*",)


def test_a_missing_file_flag_is_named() -> None:
    with pytest.raises(LocalError, match="routes"):
        SignalingSettings.from_command_line(["--keys-file", "k", "--token-file", "t"])


def test_every_setting_says_what_it_is_for() -> None:
    unsaid = [name for name, field in SignalingSettings.model_fields.items() if not field.description]
    assert unsaid == []


def test_paths_are_paths() -> None:
    assert read().keys_file == Path("k")


JWT = ("--jwks-file", "j", "--jwt-issuer", "https://id.example.org/", "--jwt-audience", "usher")


def test_jwts_are_a_key_too() -> None:
    settings = read("--http", "0.0.0.0:80", *JWT)
    assert not settings.is_keyless
    assert settings.jwt_algorithms == ("RS256", "ES256", "EdDSA")
    with pytest.raises(LocalError, match="exclude each other"):
        read("--keyless", *JWT)


@pytest.mark.parametrize("part", [0, 2, 4])
def test_a_part_of_what_jwts_need_is_refused(part: int) -> None:
    flags = [*JWT]
    del flags[part : part + 2]
    with pytest.raises(LocalError, match="JWTs need all three"):
        read("--api-keys-file", "a", *flags)


@pytest.mark.parametrize("algorithm", ["none", "HS256", "HS512", "RS512", "rs256"])
def test_no_algorithm_is_allowed_but_ours(algorithm: str) -> None:
    with pytest.raises(LocalError, match="one or more of RS256, ES256, EdDSA"):
        read(*JWT, "--jwt-algorithms", algorithm)
    with pytest.raises(LocalError, match="one or more of RS256, ES256, EdDSA"):
        read(*JWT, "--jwt-algorithms", "RS256", "--jwt-algorithms", algorithm)


def test_the_url_of_redis_is_no_other_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USHER_REDIS_URL", "redis://:secret-word@redis:6379/0")
    assert "secret-word" not in repr(read())
    monkeypatch.setenv("USHER_REDIS_URL", "http://:secret-word@redis:6379/0")
    with pytest.raises(LocalError, match=r"redis://, rediss://, unix://, redis\+sentinel://") as caught:
        read()
    assert "secret-word" not in str(caught.value)


def test_relay_pools_need_pods() -> None:
    with pytest.raises(LocalError, match="--relay-pools-namespace needs --pods-namespace"):
        read("--relay-pools-namespace", "voice")


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (("--regions-file=r",), "--regions-file and --region-token-file go together"),
        (("--region-token-file=t", "--region=us"), "--regions-file and --region-token-file go together"),
        (("--regions-file=r", "--region-token-file=t"), "--regions-file needs --region"),
    ],
)
def test_settings_of_other_regions_are_whole(flags: tuple[str, ...], fault: str) -> None:
    with pytest.raises(LocalError, match=fault):
        read(*flags)
    assert read("--regions-file=r", "--region-token-file=t", "--region=us").region_timeout == 1.5
