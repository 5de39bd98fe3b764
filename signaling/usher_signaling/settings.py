"""Settings of `usher signaling`."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from usher_core.errors import LocalError, describe
from usher_core.ids import split_host_port
from usher_core.internal_api import AdvertisedAddress
from usher_core.settings import ProgramSettings, TextList
from usher_signaling.loopback import is_loopback_host

MAX_ADVERTISED = 16


class SignalingSettings(ProgramSettings):
    """What signaling is told. Secrets come from files; `api_key` is the exception, for one machine (design D20)."""

    program: ClassVar[str] = "signaling"

    http: str = Field(
        default="127.0.0.1:8080",
        description="HOST:PORT of the public HTTP API; port 0 takes a free one. Put TLS in front of it",
    )
    keys_file: Path = Field(
        description="key file with the seal keys, the same for all replicas: they open each other's call ids"
    )
    token_file: Path = Field(description="file with the internal token, which opens the transceivers' internal API")
    routes_file: Path = Field(
        description="route file with the transceivers; read again when it changes, the last good one is kept"
    )
    advertise: TextList = Field(
        default=(),
        description="ID=IP:PORT (repeatable): a public relay address and its listener id, in order of preference; "
        "they become the candidates of every answer",
    )

    api_keys_file: Path | None = Field(
        default=None,
        description="file with API keys, one `name:key` or `key` a line; read again when it changes. The name is the "
        "tenant: a call is seen by its own tenant only. Keys without a name share the tenant `default`",
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="one API key, for a single machine; better as USHER_API_KEY, since flags show in process lists",
    )
    keyless: bool = Field(
        default=False,
        description="ask for no API key. Only on a loopback address, and only for pages of this machine; "
        "this is the default there when no key is given",
    )
    cors_origins: TextList = Field(
        default=("*",),
        description="origins whose pages may call the API; `*` is safe, since keys travel in a header and never in a "
        "cookie. Without keys only loopback origins may, whatever stands here",
    )
    demo: bool = Field(default=True, description="serve the demo page at /")
    backend: str | None = Field(
        default=None, max_length=64, description="backend of every call; none: each transceiver's own default"
    )

    answer_deadline: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description="seconds within which an offer is answered or refused, all tries included: a person is waiting",
    )
    attempt_timeout: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="seconds one transceiver may take over an offer before the next is tried; 5 ms are usual",
    )
    max_attempts: int = Field(
        default=5,
        ge=1,
        le=100,
        description="transceivers that one offer is tried at, so that a sick fleet is not asked in full",
    )
    load_interval: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="seconds between two questions for a transceiver's load; calls placed here count at once",
    )
    load_timeout: float = Field(default=1.0, gt=0, le=60, description="seconds a transceiver has to tell its load")
    load_life: float = Field(
        default=5.0,
        gt=0,
        le=600,
        description="seconds after which a transceiver that told nothing gets no new calls; a few intervals, "
        "so that one lost answer does not matter",
    )
    body_deadline: float = Field(
        default=10.0,
        gt=0,
        le=600,
        description="seconds a request's header, and then its body, may take: slow senders must not hold places",
    )
    max_requests: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="requests under way at once; more get 503, so that memory is bounded",
    )
    max_connections: int = Field(
        default=5000,
        ge=1,
        le=1_000_000,
        description="open client connections; more are closed at once. Stay below the limit on descriptors",
    )
    secret_seconds: int = Field(
        default=600, ge=10, le=7200, description="life in seconds of an ephemeral key whose request names none"
    )
    grace: float = Field(
        default=10.0, ge=0, le=600, description="seconds that requests under way may still take after SIGTERM"
    )

    @field_validator("http")
    @classmethod
    def _has_port(cls, value: str) -> str:
        try:
            split_host_port(value)
        except LocalError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("advertise")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > MAX_ADVERTISED:
            raise ValueError(f"at most {MAX_ADVERTISED} addresses fit into an answer")
        for text in value:
            parse_advertised(text)
        return value

    @model_validator(mode="after")
    def _keys_or_loopback(self) -> Self:
        has_key = self.api_keys_file is not None or self.api_key is not None
        if self.keyless and has_key:
            raise ValueError("keyless and an API key exclude each other: give one of them")
        if not has_key and not is_loopback_host(self.http_address[0]):
            raise ValueError(
                f"http: {self.http} can be reached from other machines, so callers need an API key: give "
                "--api-keys-file or USHER_API_KEY, or serve this machine only with --http 127.0.0.1:8080"
            )
        return self

    @property
    def http_address(self) -> tuple[str, int]:
        """(host, port) to listen on."""
        return split_host_port(self.http)

    @property
    def is_keyless(self) -> bool:
        """Whether callers need no key: told so, or no key given (the validator has made sure of loopback)."""
        return self.api_keys_file is None and self.api_key is None

    @property
    def advertised(self) -> tuple[AdvertisedAddress, ...]:
        """The public relay addresses, in order of preference."""
        return tuple(parse_advertised(text) for text in self.advertise)


def parse_advertised(text: str) -> AdvertisedAddress:
    """Parse `ID=IP:PORT`. Raises ValueError that says what was expected."""
    listener, equals, address = text.partition("=")
    if not equals or not listener.isascii() or not listener.isdigit():
        raise ValueError(f"{text!r} is not ID=IP:PORT with the listener's number as ID")
    try:
        host, port = split_host_port(address)
        ipaddress.ip_address(host)
        return AdvertisedAddress(listener=int(listener), host=host, port=port)
    except ValidationError as error:
        raise ValueError(f"{text!r}: {describe(error)}") from None
    except LocalError as error:
        raise ValueError(str(error)) from None
    except ValueError:
        raise ValueError(f"{host!r} in {text!r} is no IP address: answers carry addresses, not names") from None
