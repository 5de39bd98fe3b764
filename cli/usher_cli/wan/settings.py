"""Settings of `usher wan`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field, field_validator

from usher_cli.wan.duration import Duration, seconds
from usher_cli.wan.link import Address, Weather
from usher_core.errors import LocalError
from usher_core.ids import split_host_port
from usher_core.settings import HostPort, ProgramSettings, TextList

MAX_LINKS = 256


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of a link: where it takes packets, and where they go."""

    here: Address
    there: Address


class WanSettings(ProgramSettings):
    """Carry UDP between two places of this machine as late, and as lossy, as between two regions. For trials only."""

    program: ClassVar[str] = "wan"

    link: TextList = Field(
        min_length=1,
        max_length=MAX_LINKS,
        description="HERE=THERE, both IP:PORT (repeatable): what comes to HERE goes to THERE, and answers go back; "
        "port 0 of HERE takes a free one",
    )
    rtt: Duration = Field(default="40ms", description="round trip that a link adds, such as 40ms: half of it each way")
    jitter: Duration = Field(
        default="0ms", description="most that a packet may wait longer than others, each way; they overtake each other"
    )
    loss: float = Field(default=0.0, ge=0, lt=1, description="share of packets that get lost, each way: 0.05 is 5 %")
    admin: HostPort = Field(default="127.0.0.1:0", description="HOST:PORT of /metrics")

    @field_validator("link")
    @classmethod
    def _are_links(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            parse_link(text)
        return value

    @property
    def links(self) -> tuple[Ends, ...]:
        """The ends of all links."""
        return tuple(parse_link(text) for text in self.link)

    @property
    def weather(self) -> Weather:
        """What happens on each link."""
        return Weather(loss=self.loss, delay_s=seconds(self.rtt) / 2, jitter_s=seconds(self.jitter))


def parse_link(text: str) -> Ends:
    """Parse `IP:PORT=IP:PORT`. Raises ValueError that says what was expected."""
    here, _, there = text.partition("=")
    try:
        ends = Ends(split_host_port(here), split_host_port(there))
        for host, _ in (ends.here, ends.there):
            ipaddress.ip_address(host)
    except (LocalError, ValueError):
        raise ValueError(f"{text[:80]!r} is no HERE=THERE such as 127.0.0.1:0=127.0.0.1:3478") from None
    if ends.there[1] == 0:
        raise ValueError(f"{text[:80]!r}: port 0 is no place to send to")
    return ends
