"""The server of the Realtime protocol as the process knows it: its address, its key, and what connecting needs.

Raises LocalError at the start for what is missing or wrong.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from usher_core.errors import LocalError
from usher_shell.watched_file import WatchedFile
from usher_transceiver.backends.realtime.masking import secrets_of
from usher_transceiver.backends.realtime.settings import RealtimeSettings

NAME = "realtime"
"""Of the backend. A caller that chose it by this name as the model has named no model of the server."""
MAX_SECRET = 8_192
"""Characters of a header: servers refuse longer ones."""
MAX_HEADERS = 100
"""Servers refuse more."""


@dataclass(frozen=True, slots=True)
class Target:
    """What one connection is made with. Not to be logged."""

    url: str
    headers: dict[str, str]
    tls: ssl.SSLContext | None
    connect_limit: float

    def __repr__(self) -> str:
        return "Target(…)"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no client may see, whoever quotes it."""
        return secrets_of(self.url, self.headers)


class Upstream:
    """See the module. Files are read again when they change."""

    def __init__(self, settings: RealtimeSettings) -> None:
        if settings.realtime_url is None:
            raise LocalError(
                "the backend realtime needs the address of its server",
                "set --realtime-url or USHER_REALTIME_URL, as wss://HOST/v1/realtime",
            )
        self.truncates = settings.realtime_truncate == "usher"
        self._url = settings.realtime_url
        self._model = settings.realtime_model
        self._connect_limit = settings.realtime_connect_limit
        self._key = _watch(settings.realtime_api_key_file, _parse_key, "Realtime API key file")
        self._headers = _watch(settings.realtime_headers_file, _parse_headers, "Realtime headers file")
        # Once: reading the certificates of all authorities takes longer than a frame of audio.
        self._tls = ssl.create_default_context() if self._url.startswith("wss:") else None

    def target(self, model: object) -> Target:
        """Return what to connect with for a session that names this model, or none."""
        headers: dict[str, str] = {}
        for file in (self._key, self._headers):
            if file is not None:
                file.look()
                headers |= file.value
        named = model if isinstance(model, str) and model not in ("", NAME) else self._model
        return Target(_with_model(self._url, named), headers, self._tls, self._connect_limit)


def _watch(path: Path | None, parse: Callable[[str], dict[str, str]], what: str) -> WatchedFile[dict[str, str]] | None:
    return None if path is None else WatchedFile(path, parse, what)


def _parse_key(text: str) -> dict[str, str]:
    key = text.strip()
    if not _is_header_value(key):
        raise LocalError("the Realtime API key file holds no key", "one line of printable ASCII is expected")
    return {"Authorization": f"Bearer {key}"}


def _parse_headers(text: str) -> dict[str, str]:
    wrong = LocalError(
        "the Realtime headers file is wrong", 'a JSON object of texts is expected, as {"OpenAI-Beta": "realtime=v1"}'
    )
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(headers, dict) or len(headers) > MAX_HEADERS:
        raise wrong
    for name, value in headers.items():
        if not (isinstance(value, str) and _is_header_value(value) and _is_header_name(name)):
            raise wrong
    return headers


def _is_header_name(text: str) -> bool:
    return text.isascii() and text.replace("-", "").isalnum()


def _is_header_value(text: str) -> bool:
    return 0 < len(text) <= MAX_SECRET and text.isascii() and text.isprintable()


def _with_model(url: str, model: str | None) -> str:
    if model is None:
        return url
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "model"]
    return urlunsplit(parts._replace(query=urlencode([*query, ("model", model)])))
