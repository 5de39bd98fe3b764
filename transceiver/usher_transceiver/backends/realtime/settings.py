"""Settings of the backend `realtime`; they are settings of `usher transceiver`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from usher_core.settings import ProgramSettings

Truncate = Literal["usher", "upstream"]


class RealtimeSettings(ProgramSettings):
    """The server of the Realtime protocol behind `--backend realtime`. Secrets come from files only."""

    # Its query may hold a key all the same, so it is shown nowhere.
    realtime_url: str | None = Field(
        default=None,
        repr=False,
        description="ws:// or wss:// address of the Realtime server, as wss://HOST/v1/realtime. No default:"
        " nobody's audio should go to a server that was not chosen",
    )
    realtime_api_key_file: Path | None = Field(
        default=None,
        description="file with the key that is sent as a Bearer token, one line; read again when it changes",
    )
    realtime_model: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="model of calls whose session names none; sent as `model` in the query of the address",
    )
    realtime_headers_file: Path | None = Field(
        default=None,
        description="file with a JSON object of more headers, a file because they may be secrets; read again when it"
        " changes",
    )
    realtime_truncate: Truncate = Field(
        default="usher",
        description="who tells the model how much of an interrupted answer was heard; upstream: the server finds out"
        " by itself, and twice would be wrong",
    )
    realtime_connect_limit: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description="seconds that connecting to the Realtime server may take; what the caller says meanwhile is kept",
    )

    @field_validator("realtime_url")
    @classmethod
    def _is_websocket(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            _ = parts.port
        except ValueError:
            raise ValueError("an address as wss://HOST/v1/realtime is expected") from None
        if parts.scheme not in ("ws", "wss") or not parts.hostname or parts.fragment:
            raise ValueError("an address as wss://HOST/v1/realtime is expected")
        if parts.username is not None or parts.password is not None:
            raise ValueError("a key does not belong into the address: use --realtime-api-key-file")
        return value
