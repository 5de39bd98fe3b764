"""Settings of `usher signaling`."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from usher_core.errors import LocalError, RemoteError, describe
from usher_core.event_policy import EventPolicy, parse_event_policy_text
from usher_core.ids import is_loopback_host, split_host_port
from usher_core.internal_api import AdvertisedAddress
from usher_core.route_settings import MAX_NAMESPACES, RouteSettings, check_namespaces
from usher_core.settings import HostPort, RedisUrl, TextList
from usher_signaling.base_urls import parse_base_url
from usher_signaling.jwt_keys import ALGORITHMS
from usher_signaling.regions import EVERYBODY_ELSE, Network, RegionalAddress, Regions, check_region, is_region

MAX_ADVERTISED = 16
MAX_RELAY_ADMINS = 64
MAX_REGION_KEYS_FILES = 64

_HEADER = re.compile(r"[A-Za-z0-9_-]{1,64}")


class SignalingSettings(RouteSettings):
    """Answer the HTTP API and serve the pages. Secrets come from files or, on one machine, from the environment."""

    program: ClassVar[str] = "signaling"

    http: HostPort = Field(
        default="127.0.0.1:8080",
        description="HOST:PORT of the public HTTP API; port 0 takes a free one. Put TLS in front of it",
    )
    keys_file: Path = Field(
        description="key file with the seal keys, the same for all replicas: they open each other's call ids"
    )
    token_file: Path = Field(description="file with the internal token, which opens the transceivers' internal API")
    pods_settle: float = Field(
        default=0.5,
        ge=0,
        le=60,
        description="seconds that a pod's address must have been known before it gets new calls, so that the relays "
        "know it, too: they learn it within 0.3",
    )
    advertise: TextList = Field(
        default=(),
        description="ID=IP:PORT or ID=IP:PORT@REGION (repeatable): a public relay address and its listener id, in "
        "order of preference; they become the candidates of answers, one with a region only for clients near it",
    )
    relay_pools_namespace: TextList = Field(
        default=(),
        max_length=MAX_NAMESPACES,
        description="Kubernetes namespace (repeatable) whose RelayPools tell further public addresses: an answer names "
        "those of the pools that serve its transceiver, behind --advertise; needs to list and watch relaypools",
    )

    region: str = Field(
        default="",
        description="region of requests whose header names none, such as eu-west: that of this replica; none: no "
        "transceiver is nearer than another",
    )
    region_header: str = Field(
        default="",
        description="header in which a trusted proxy names the client's region; the proxy must overwrite what a client "
        "sends. None: all requests are of --region",
    )
    trusted_proxies: TextList = Field(
        default=(),
        description="networks, such as 10.0.0.0/8 (repeatable), whose connections are believed about --region-header",
    )
    region_fallback: TextList = Field(
        default=(EVERYBODY_ELSE,),
        description="regions (repeatable) that take a call when its own has no room, in this order; * is all others. "
        "Without * a call never goes to a region that is not named",
    )
    regions_file: Path | None = Field(
        default=None,
        description="JSON file of the regions that have a signaling of their own: names, URLs and cluster ids; read "
        "again when it changes. Calls are then placed where --region-header and --region-fallback say, and requests "
        "about a call reach its region from each. None: there is no other",
    )
    region_token_file: Path | None = Field(
        default=None,
        description="file with the token by which signaling of all regions know each other; read again when it "
        "changes. Of several lines the first is sent and all are taken",
    )
    region_keys_file: TextList = Field(
        default=(),
        max_length=MAX_REGION_KEYS_FILES,
        description="signaling's key file of another region (repeatable), where regions have seal keys of their own: "
        "call ids and ephemeral keys that they made are opened; read again when it changes",
    )
    region_ca_file: Path | None = Field(
        default=None,
        description="certificates in PEM that --regions-file's https:// URLs are checked by, in the place of those "
        "that this system trusts; read at the start",
    )
    region_timeout: float = Field(
        default=1.5,
        gt=0,
        le=30,
        description="seconds that another region may take over an offer before the next place is tried; a round trip "
        "around the world takes 0.3",
    )
    region_here_first: bool = Field(
        default=False,
        description="place a call here as long as there is room, also when its client is of another region",
    )
    debug_path: bool = Field(
        default=False,
        description="tell clients in the header Usher-Path where their call was placed; it names inner addresses",
    )
    relay_admin: TextList = Field(
        default=(),
        description="base URL of a relay's admin pages (repeatable), for GET /v1/fleet; nothing else needs it",
    )

    api_keys_file: Path | None = Field(
        default=None,
        description="file with API keys, one `name:sha256:HEX` (of `usher keys api`), `name:key` or `key` a line; read "
        "again when it changes. The name is the tenant: a call is seen by its own tenant only. Keys without a name "
        "share the tenant `default`",
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="one API key, for a single machine, in place of --api-keys-file; better as USHER_API_KEY, since "
        "flags show in process lists",
    )
    keyless: bool = Field(
        default=False,
        description="ask for no API key. Only on a loopback address, and only for pages of this machine; "
        "this is the default there when no key is given",
    )
    jwks_file: Path | None = Field(
        default=None,
        description="JWKS file with the public keys of an issuer of JWTs, which then may place calls; read again when "
        "it changes. None: no JWT is taken",
    )
    jwt_issuer: str = Field(default="", max_length=512, description="the `iss` that a JWT has to have")
    jwt_audience: str = Field(default="", max_length=512, description="what has to be in the `aud` of a JWT")
    jwt_algorithms: TextList = Field(
        default=ALGORITHMS,
        description="algorithms that a JWT may be signed with (repeatable), of RS256, ES256 and EdDSA",
    )
    jwt_leeway: float = Field(
        default=30.0, ge=0, le=300, description="seconds that the clocks of the issuer and of this machine may differ"
    )
    jwt_tenant_claim: str = Field(
        default="sub", min_length=1, max_length=128, description="claim of a JWT that has the tenant's name"
    )

    client_policy: str = Field(
        default="",
        max_length=4096,
        description="policy of events that binds all ephemeral keys and JWTs beside their own: browser, or lists as "
        "allow=response.*,acme.form deny=session.update private=instructions,tools. None: only their own",
    )

    rate_limit: float | None = Field(
        default=None,
        gt=0,
        le=100_000,
        description="requests a second of one tenant; `rate=` beside a key goes before. None: no limit",
    )
    rate_burst: int = Field(
        default=10, ge=1, le=100_000, description="requests that a tenant may have at once, after a pause"
    )
    call_limit: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="calls of one tenant at once; `calls=` beside a key goes before. None: no limit",
    )
    secrets_once: bool = Field(
        default=False,
        description="let an ephemeral key place one call only: exact with --redis-url, else per replica",
    )
    redis_url: RedisUrl | None = Field(
        default=None,
        description="redis://, rediss://, unix:// or redis+sentinel:// URL by which replicas share rates and used "
        "ephemeral keys; with a password better as USHER_REDIS_URL. It may fail: then each replica counts by itself",
    )
    redis_timeout: float = Field(
        default=0.1,
        gt=0,
        le=5,
        description="seconds that Redis may take: a person is waiting. In one zone it takes about 0.001",
    )

    cors_origins: TextList = Field(
        default=("*",),
        description="origins whose pages may call the API; `*` is safe, since keys travel in a header and never in a "
        "cookie. Without keys only loopback origins may, whatever stands here",
    )
    traces: bool = Field(
        default=False,
        description="send OpenTelemetry traces of requests by OTLP; needs the extra `usher[otel]`. Where to and how "
        "many is said by the standard variables, such as OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_TRACES_SAMPLER",
    )
    demo: bool = Field(default=True, description="serve the demo page at /")
    backend: str | None = Field(
        default=None,
        max_length=64,
        description="backend of calls that choose none; none: each transceiver's own default",
    )
    backends: TextList = Field(
        default=(),
        description="backends (repeatable) that a caller may choose by naming one as the model; "
        "all other model names mean the default",
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
        description="open client connections; when all are taken, one without a request makes room for a new one. "
        "Fewer where the limit on descriptors is low",
    )
    max_side_bands: int = Field(
        default=1000,
        ge=0,
        le=100_000,
        description="side-bands (WebSockets on calls) open at once; more get 503. Each takes two descriptors",
    )
    secret_seconds: int = Field(
        default=600, ge=10, le=7200, description="life in seconds of an ephemeral key whose request names none"
    )
    linger: float = Field(
        default=0.0,
        ge=0,
        le=600,
        description="seconds that it goes on serving after SIGTERM, unready and without keeping connections alive: "
        "give a load balancer the time to notice, and no request is lost",
    )
    grace: float = Field(
        default=10.0, ge=1, le=600, description="seconds that requests under way may still take after SIGTERM"
    )

    @field_validator("advertise")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > MAX_ADVERTISED:
            raise ValueError(f"at most {MAX_ADVERTISED} addresses fit into an answer")
        for text in value:
            parse_advertised(text)
        return value

    @field_validator("region")
    @classmethod
    def _is_region(cls, value: str) -> str:
        return check_region(value) if value else value

    @field_validator("region_header")
    @classmethod
    def _is_header(cls, value: str) -> str:
        if value and not _HEADER.fullmatch(value):
            raise ValueError(f"{value!r} is no name of a header, as X-Client-Region is")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ipaddress.ip_network(text)  # its ValueError says what is wrong
        return value

    @field_validator("region_fallback")
    @classmethod
    def _are_regions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if text != EVERYBODY_ELSE:
                cls._is_region(text)
        if len(set(value)) != len(value):
            raise ValueError("a region stands twice")
        return value

    @field_validator("relay_admin")
    @classmethod
    def _are_base_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > MAX_RELAY_ADMINS:
            raise ValueError(f"at most {MAX_RELAY_ADMINS} relays are asked for a page")
        return tuple(parse_base_url(text) for text in value)

    @field_validator("backends")
    @classmethod
    def _are_backends(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if len(name) > 64 or not name.isprintable():
                raise ValueError(f"{name!r} is no name of a backend")
        return value

    @field_validator("relay_pools_namespace")
    @classmethod
    def _are_pool_namespaces(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_namespaces(value)

    @model_validator(mode="after")
    def _pools_serve_pods(self) -> Self:
        if self.relay_pools_namespace and not self.pods_namespace:
            raise ValueError("--relay-pools-namespace needs --pods-namespace: RelayPools name their pods by labels")
        return self

    @model_validator(mode="after")
    def _header_from_somebody(self) -> Self:
        if self.region_header and not self.trusted_proxies:
            raise ValueError("--region-header needs --trusted-proxies: the proxies whose header is believed")
        return self

    @model_validator(mode="after")
    def _regions_are_whole(self) -> Self:
        if (self.regions_file is None) != (self.region_token_file is None):
            raise ValueError("--regions-file and --region-token-file go together: regions know each other by the token")
        if self.regions_file is not None and not self.region:
            raise ValueError("--regions-file needs --region: the name that this one has in the file")
        return self

    @field_validator("client_policy")
    @classmethod
    def _is_event_policy(cls, value: str) -> str:
        try:
            parse_event_policy_text(value)
        except RemoteError as error:
            raise ValueError(error.message) from None
        return value

    @field_validator("jwt_algorithms")
    @classmethod
    def _are_algorithms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not set(value) <= set(ALGORITHMS):
            raise ValueError(f"one or more of {', '.join(ALGORITHMS)} are expected")
        return value

    @model_validator(mode="after")
    def _jwt_is_whole(self) -> Self:
        if (self.jwks_file is not None) != bool(self.jwt_issuer and self.jwt_audience):
            raise ValueError("JWTs need all three: jwks_file, jwt_issuer and jwt_audience")
        return self

    @model_validator(mode="after")
    def _one_source_of_keys(self) -> Self:
        if self.api_keys_file is not None and self.api_key is not None:
            raise ValueError(
                "api_key (USHER_API_KEY) and api_keys_file exclude each other: put the key into the file, as a line"
            )
        return self

    @model_validator(mode="after")
    def _keys_or_loopback(self) -> Self:
        has_key = not self.is_keyless
        if self.keyless and has_key:
            raise ValueError("keyless and an API key or JWTs exclude each other: give one of them")
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
    def region_key_files(self) -> tuple[Path, ...]:
        """Where the seal keys of other regions are."""
        return tuple(Path(path) for path in self.region_keys_file)

    @property
    def is_keyless(self) -> bool:
        """Whether callers need no key: told so, or no key given (the validator has made sure of loopback)."""
        return self.api_keys_file is None and self.api_key is None and self.jwks_file is None

    @property
    def event_policy_of_clients(self) -> EventPolicy:
        """What binds all ephemeral keys and JWTs."""
        return parse_event_policy_text(self.client_policy)

    @property
    def advertised(self) -> tuple[RegionalAddress, ...]:
        """The public relay addresses, in order of preference."""
        return tuple(parse_advertised(text) for text in self.advertise)

    @property
    def regions(self) -> Regions:
        """The rules by which regions are chosen."""
        proxies: tuple[Network, ...] = tuple(ipaddress.ip_network(text) for text in self.trusted_proxies)
        return Regions(self.region, self.region_header, proxies, self.region_fallback)


def parse_advertised(text: str) -> RegionalAddress:
    """Parse `ID=IP:PORT` or `ID=IP:PORT@REGION`. Raises ValueError that says what was expected."""
    listener, equals, rest = text.partition("=")
    address, at, region = rest.partition("@")
    if at and not is_region(region):
        raise ValueError(f"{region!r} in {text!r} is no region: 1 to 64 letters, digits and . _ - are")
    if not equals or not listener.isascii() or not listener.isdigit():
        raise ValueError(f"{text!r} is not ID=IP:PORT with the listener's number as ID")
    try:
        host, port = split_host_port(address)
        ipaddress.ip_address(host)
        return RegionalAddress(AdvertisedAddress(listener=int(listener), host=host, port=port), region)
    except ValidationError as error:
        raise ValueError(f"{text!r}: {describe(error)}") from None
    except LocalError as error:
        raise ValueError(str(error)) from None
    except ValueError:
        raise ValueError(f"{host!r} in {text!r} is no IP address: answers carry addresses, not names") from None
