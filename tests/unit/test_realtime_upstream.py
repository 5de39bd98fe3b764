"""Settings and files of the Realtime backend, and what may be said of what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.http11 import Response

from usher_core.errors import LocalError
from usher_transceiver.backends.realtime import faults
from usher_transceiver.backends.realtime.connection import fault_of
from usher_transceiver.backends.realtime.settings import RealtimeSettings
from usher_transceiver.backends.realtime.upstream import Upstream
from usher_transceiver.settings import TransceiverSettings

URL = "wss://model.example/v1/realtime"


def upstream(**settings: Any) -> Upstream:
    return Upstream(RealtimeSettings(realtime_url=URL, **settings))


def test_the_settings_are_flags_and_environment_of_the_transceiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USHER_REALTIME_URL", URL)
    monkeypatch.setenv("USHER_REALTIME_TRUNCATE", "upstream")
    needed = ["--keys-file", "k", "--token-file", "t", "--pod", "1"]
    settings = TransceiverSettings.from_command_line([*needed, "--realtime-model", "gpt", "--backend", "realtime"])
    assert (settings.realtime_url, settings.realtime_model, settings.realtime_truncate) == (URL, "gpt", "upstream")
    assert settings.realtime_connect_limit == 5.0


@pytest.mark.parametrize(
    "url", ["https://h/v1", "h", "ws://", "wss://h/#x", "wss://h:port/", "wss://me:secret@h/", "", "wss://[::1/"]
)
def test_an_address_that_is_none_or_holds_a_key_ends_the_start(url: str) -> None:
    with pytest.raises(LocalError, match="--realtime-url") as caught:
        TransceiverSettings.from_command_line(
            ["--keys-file", "k", "--token-file", "t", "--pod", "1", f"--realtime-url={url}"]
        )
    assert "secret" not in str(caught.value)


def test_the_address_is_not_shown_with_the_settings() -> None:
    assert "model.example" not in repr(RealtimeSettings(realtime_url=URL))


def test_without_an_address_the_backend_says_what_to_set() -> None:
    with pytest.raises(LocalError, match="USHER_REALTIME_URL"):
        Upstream(RealtimeSettings(realtime_url=None))


def test_key_and_headers_come_from_files_and_follow_their_changes(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    (tmp_path / "headers").write_text('{"OpenAI-Beta": "realtime=v1"}')
    made = upstream(realtime_api_key_file=tmp_path / "key", realtime_headers_file=tmp_path / "headers")
    target = made.target(None)
    assert target.headers == {"Authorization": "Bearer sk-1", "OpenAI-Beta": "realtime=v1"}
    assert "sk-1" not in repr(target)
    assert target.secrets == ("Bearer sk-1", URL), "a key of four characters is none, and a version is public"
    (tmp_path / "key").write_text("sk-2\n")
    for broken in ("broken", "[" * 100_000):
        (tmp_path / "headers").write_text(broken)
        assert made.target(None).headers == {"Authorization": "Bearer sk-2", "OpenAI-Beta": "realtime=v1"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("key", ""),
        ("key", "two\nlines"),
        ("key", "sk-é"),
        ("headers", "[]"),
        ("headers", '{"A"'),
        ("headers", '{"A": 1}'),
        ("headers", '{"A": "x\\r\\nB: y"}'),
        ("headers", '{"A b": "x"}'),
        ("headers", '{"": "x"}'),
        ("headers", '{"é": "x"}'),
        ("headers", "[" * 100_000),
        ("headers", '{"A":' * 100_000),
        ("headers", "1" * 5_000),
        ("headers", json.dumps({f"A{number}": "x" for number in range(101)})),
    ],
)
def test_a_file_that_is_wrong_ends_the_start_and_is_not_quoted(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "file").write_text(text)
    field = {"key": "realtime_api_key_file", "headers": "realtime_headers_file"}[name]
    with pytest.raises(LocalError) as caught:
        upstream(**{field: tmp_path / "file"})
    assert not text.strip() or text.strip() not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "model", "default", "expected"),
    [
        (URL, "gpt", None, f"{URL}?model=gpt"),
        (URL, "a b&c=d", None, f"{URL}?model=a+b%26c%3Dd"),
        (URL, None, "default", f"{URL}?model=default"),
        (URL, "realtime", "default", f"{URL}?model=default"),
        (URL, 7, "default", f"{URL}?model=default"),
        (URL, None, None, URL),
        (f"{URL}?api-version=1&model=old", "gpt", None, f"{URL}?api-version=1&model=gpt"),
        (f"{URL}?model=old", None, None, f"{URL}?model=old"),
    ],
)
def test_the_model_is_that_of_the_session_or_else_of_the_settings(
    url: str, model: Any, default: str | None, expected: str
) -> None:
    made = Upstream(RealtimeSettings(realtime_url=url, realtime_model=default))
    assert made.target(model).url == expected


def status(code: int, body: bytes = b"") -> InvalidStatus:
    return InvalidStatus(Response(code, "", Headers(), body))


@pytest.mark.parametrize(
    ("error", "code", "outcome"),
    [
        (status(401, b'{"error": {"code": "invalid_api_key", "message": "sk-1"}}'), "invalid_api_key", "refused"),
        (status(403, b'{"error": {"code": null, "type": "forbidden"}}'), "forbidden", "refused"),
        (status(429), "upstream_http_429", "rate_limited"),
        (status(500, b'{"error": "text"}'), "upstream_http_500", "upstream_error"),
        (status(503, b'{"error": {"code": "sk-1 is wrong"}}'), "upstream_http_503", "upstream_error"),
        (status(302, b"[" * 100_000), "upstream_http_302", "refused"),
        (TimeoutError(), "upstream_timeout", "timeout"),
        (ConnectionRefusedError(111, "Connect call failed ('10.0.0.1', 443)"), "upstream_unreachable", "unreachable"),
        (InvalidHandshake("…"), "upstream_handshake", "refused"),
    ],
)
def test_a_fault_has_the_servers_code_and_quotes_nothing(error: Exception, code: str, outcome: str) -> None:
    fault = fault_of(error)
    assert (fault.code, fault.outcome, fault.end) == (code, outcome, "upstream_failed")
    assert "sk-1" not in f"{fault.code}{fault.message}"
    assert "10.0.0.1" not in fault.message


def test_faults_of_a_call_that_was_connected_say_so() -> None:
    assert {fault.end for fault in (faults.STALLED, faults.OVERFULL, faults.INTERNAL, faults.closed(None))} == {
        "upstream_closed"
    }
