"""Who is this machine, and who only pretends to be."""

from __future__ import annotations

import pytest

from usher_shell.loopback_names import is_loopback_authority
from usher_signaling.loopback import is_loopback_origin, refusal


@pytest.mark.parametrize(
    "authority",
    [
        "127.0.0.1",
        "127.0.0.1:8080",
        "127.255.0.9:1",
        "localhost",
        "LocalHost:80",
        "localhost.:80",
        "demo.localhost:8080",
        "[::1]:8080",
        "[::1]",
        "[::ffff:127.0.0.1]:1",
    ],
)
def test_loopback_names_are_this_machine(authority: str) -> None:
    assert is_loopback_authority(authority)
    assert is_loopback_origin(f"http://{authority}")
    assert is_loopback_origin(f"https://{authority}")


@pytest.mark.parametrize(
    "authority",
    [
        "",
        ":8080",
        "0.0.0.0:8080",
        "192.168.1.1",
        "evil.example",
        "localhost.evil.example",
        "notlocalhost",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "evil.example/127.0.0.1",
        "127.0.0.1/x",
        "127.0.0.1:port",
        "127.0.0.1:99999",
        "127.1",
        "2130706433",
        "[::1",
        "::1",
        "[::2]",
        "local host",
        "127.0.0.1 ",
    ],
)
def test_all_else_is_not(authority: str) -> None:
    assert not is_loopback_authority(authority)
    assert not is_loopback_origin(f"http://{authority}")


@pytest.mark.parametrize(
    "origin", ["null", "", "file://", "file://localhost", "chrome-extension://abc", "http:localhost", "//localhost"]
)
def test_only_web_pages_have_an_origin_that_counts(origin: str) -> None:
    assert not is_loopback_origin(origin)


def test_a_refusal_says_what_to_do() -> None:
    assert refusal("127.0.0.1:8080", None) is None
    assert refusal("localhost:8080", "http://127.0.0.1:3000") is None
    for host, origin in (
        ("evil.example", None),
        (None, None),
        ("127.0.0.1", "https://evil.example"),
        ("[::1]", "null"),
    ):
        assert "API key" in (refusal(host, origin) or "")
