"""Settings of `usher relay`: flags, environment `USHER_*`, defaults, and the reason of each."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from usher_core.errors import LocalError
from usher_core.ids import pack_address, split_host_port
from usher_core.peers import MAX_TRUNKS
from usher_core.route_settings import RouteSettings
from usher_core.settings import HostPort, RedisUrl, TextList
from usher_relay.flows import PROBATION_PER_UFRAG
from usher_relay.listeners import Listener, parse_listener
from usher_relay.state import Limits

MIB = 1 << 20
MINIMUM_MTU = 1_280
LONGEST_HOLD = 0.0003


class RelaySettings(RouteSettings):
    """Forward the datagrams of clients to their transceivers, and the answers back."""

    program: ClassVar[str] = "relay"

    listen: TextList = Field(
        min_length=1,
        description="ID=HOST:PORT of a public UDP listener (repeatable; [V6]:PORT for IPv6). The id (0..65535) is the"
        " same in all replicas, never re-used, and other for each address family and public address",
    )
    upstream: str = Field(
        default="0.0.0.0",
        description="local IP of the socket towards transceivers; :: when pods have IPv6 addresses (it serves both)",
    )
    admin: HostPort = Field(
        default="127.0.0.1:9478", description="HOST:PORT of /livez, /readyz, /metrics, /routes, /flows, /keys"
    )
    keys_file: Path = Field(description="key file with `ice` and `hop` keys, re-read when it changes")
    trunk_keys_file: TextList = Field(
        default=(),
        max_length=MAX_TRUNKS,
        description="key file of a trunk (repeatable), re-read when it changes: its `hop` keys, and `ice` keys that"
        " open ufrags of the cluster at its other end. Used beside --keys-file; one that is missing or broken costs"
        " that trunk alone",
    )
    engine: Literal["auto", "python", "native"] = Field(
        default="auto", description="data path: native where installed, or the Python one"
    )
    workers: int = Field(
        default=0,
        ge=0,
        le=256,
        description="data threads of the native engine, 0 = as many as the process may run at the same time:"
        " CPU affinity and cgroup quota count",
    )
    bundle: bool = Field(
        default=True,
        description="let client datagrams that arrive together share a datagram to their transceiver, where it fits the"
        " hop",
    )
    bundle_hold: float = Field(
        default=0,
        ge=0,
        le=LONGEST_HOLD,
        description="seconds for which a datagram may wait for others before it is read: they share system calls and"
        " datagrams to their transceiver. It adds that to the delay, and saves CPU where calls are many; native engine"
        " only",
    )
    grace: float = Field(
        default=0,
        ge=0,
        le=86_400,
        description="seconds between SIGTERM and the end, as the pod's terminationGracePeriodSeconds;"
        " 0 outside Kubernetes: exit at once",
    )
    max_flows: int = Field(
        default=100_000,
        ge=10,
        le=10_000_000,
        description="most client addresses remembered (about 1 KB each in the Python engine); a call has 1 to 3",
    )
    probation_per_ufrag: int = Field(
        default=PROBATION_PER_UFRAG,
        ge=PROBATION_PER_UFRAG,
        le=1024,
        description="most addresses of one ufrag that wait for their first answer: more than any client has,"
        " few enough that a replayed check fills nothing",
    )
    peers_file: Path | None = Field(
        default=None,
        description="peers file, read again when it changes: other clusters, and where their relays take datagrams for"
        " sessions there from this one; the key file needs a `hop` key of the scope of each",
    )
    trunk: HostPort | None = Field(
        default=None,
        description="IP:PORT where relays of other clusters send datagrams for our transceivers; none: nowhere. Open it"
        " to those relays only",
    )
    hop_mtu: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="bytes of an IP packet on the way to transceivers, 0 = ask the kernel for each;"
        " larger datagrams are cut in two",
    )
    receive_buffer: int = Field(
        default=4 * MIB,
        ge=4_096,
        le=256 * MIB,
        description="bytes of SO_RCVBUF per socket: about 0.1 s of 100,000 small packets a second, longer than any"
        " pause of the data thread; sysctl net.core.rmem_max must allow it",
    )
    send_buffer: int = Field(
        default=4 * MIB,
        ge=4_096,
        le=256 * MIB,
        description="bytes of SO_SNDBUF per socket; sysctl net.core.wmem_max must allow it",
    )
    packets_per_client: int = Field(
        default=2_000,
        ge=100,
        description="datagrams per second from one (address, port) with a flow: a call sends 50 to 150,"
        " a data channel at full speed more",
    )
    packets_per_address: int = Field(
        default=50_000,
        ge=50_000,
        description="datagrams per second from one whole IP: one NAT or one node may stand for hundreds of calls,"
        " so never lower",
    )
    checks_per_client: int = Field(
        default=200,
        ge=60,
        description="valid STUN requests per second forwarded from one (address, port):"
        " clients send at most 50 while they connect",
    )
    checks_per_ufrag: int = Field(
        default=1_000,
        ge=60,
        description="valid STUN requests per second forwarded for one ufrag from addresses not yet answered:"
        " bounds what a replayed check costs its transceiver",
    )
    tentative_per_client: int = Field(
        default=200,
        ge=50,
        description="RTP packets per second from one unknown (address, port) that are tried by SSRC: speech is 50",
    )
    tentative_per_second: int = Field(
        default=10_000,
        ge=50,
        description="RTP packets per second from all unknown addresses that are tried by SSRC:"
        " each costs a transceiver an SRTP check",
    )
    who_has_limit: int = Field(
        default=64,
        ge=0,
        le=1_000,
        description="most live transceivers that are all asked whose an unknown client address is (WHO-HAS), as after"
        " the death of another relay; with more of them nobody is asked, 0 = never",
    )
    questions_per_second: int = Field(
        default=1_000,
        ge=10,
        le=10_000,
        description="such questions per second in all, one for each unknown address; every one goes to all of them, so"
        " with more than 16 there are accordingly fewer after a burst of so many",
    )

    redis_url: RedisUrl | None = Field(
        default=None,
        description="redis://, rediss://, unix:// or redis+sentinel:// URL where the relays of a fleet keep whose each"
        " client address is, for fleets too large to ask all transceivers; with a password better as USHER_REDIS_URL."
        " It may fail: then unknown clients are found as without it",
    )
    redis_timeout: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="seconds that Redis may take for an unknown client, whose packets wait 0.05 s at most;"
        " in one zone it takes about 0.001",
    )

    @field_validator("listen")
    @classmethod
    def _listeners_are_unique(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        ids: set[int] = set()
        for text in value:
            try:
                listener = parse_listener(text)
            except LocalError as error:
                raise ValueError(str(error)) from None
            if listener.id in ids:
                raise ValueError(f"listener id {listener.id} stands twice; each listener has its own")
            ids.add(listener.id)
        return value

    @field_validator("upstream")
    @classmethod
    def _is_ip(cls, value: str) -> str:
        pack_address(value)
        return value

    @field_validator("trunk")
    @classmethod
    def _is_ip_and_port(cls, value: str | None) -> str | None:
        if value is not None:
            pack_address(split_host_port(value)[0])
        return value

    @field_validator("hop_mtu")
    @classmethod
    def _carries_ipv6(cls, value: int) -> int:
        if 0 < value < MINIMUM_MTU:
            raise ValueError(f"no link carries less than {MINIMUM_MTU} bytes (RFC 8200); 0 asks the kernel")
        return value

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners, parsed."""
        return tuple(map(parse_listener, self.listen))

    @property
    def limits(self) -> Limits:
        """The limits of the data path."""
        return Limits(
            max_flows=self.max_flows,
            probation_per_ufrag=self.probation_per_ufrag,
            packets_per_client=self.packets_per_client,
            packets_per_address=self.packets_per_address,
            checks_per_client=self.checks_per_client,
            checks_per_ufrag=self.checks_per_ufrag,
            tentative_per_client=self.tentative_per_client,
            tentative_per_second=self.tentative_per_second,
            who_has_limit=self.who_has_limit,
            questions_per_second=self.questions_per_second,
        )
