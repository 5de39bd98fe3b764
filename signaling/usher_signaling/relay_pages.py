"""Relays as their admin pages describe them: whether they are ready, some sums out of their metrics, a call's hops.

Only `GET /v1/fleet` and calls that are looked at with `?trace=1` need it. Calls do not depend on it: signaling places
them without knowing a relay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from usher_core.errors import RemoteError
from usher_core.internal_api import SessionPath
from usher_signaling.errors import ApiError
from usher_signaling.hops import Hop, RelayWays, hops_of, read_ways
from usher_signaling.metrics import Metrics
from usher_signaling.turns import turn
from usher_signaling.url_faults import UNUSABLE_URL

TIMEOUT_S = 2.0
"""For a relay with both of its pages, waiting for its turn included: a dead one costs the page no more."""
MAX_UNDER_WAY = 16
"""Relays being asked at once, all viewers of the fleet together. As many again for all traces: they hold up nobody."""
MAX_TRACES = 2
"""Calls that are traced at once: each reads two pages of every relay, 128 MiB of 64 relays at worst."""
TRACE_WAIT_S = 2.0
"""For a place among them."""
MAX_PAGE = 1024 * 1024
MAX_REASON = 200
MAX_ENTRIES = 1000
"""Flows and routes of a relay that are searched for a call; of one with more its hops may stay unknown."""


@dataclass(frozen=True, slots=True)
class RelayState:
    """One relay.

    Args:
        address: host and port of its admin pages.
        ready: whether it says that it can forward.
        reason: why not, "" when it is ready.
        flows: client addresses with a confirmed flow; None when the relay did not tell.
        probation: client addresses whose transceiver has not answered yet.
        packets: datagrams forwarded, both ways, since it started.
        drops: datagrams dropped, of every reason.
    """

    address: str
    ready: bool
    reason: str = ""
    flows: int | None = None
    probation: int | None = None
    packets: int | None = None
    drops: int | None = None


class RelayPages:
    """Asks relays.

    Args:
        admins: base URLs of their admin pages.
        metrics: where traces that got no place are counted.
        transport: replaces the network in tests.
        timeout: seconds for each relay.
    """

    def __init__(
        self,
        admins: Sequence[str],
        metrics: Metrics,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self._admins = tuple(admins)
        self._metrics = metrics
        self._timeout = timeout
        self._turns = asyncio.Semaphore(MAX_UNDER_WAY)
        self._traces = asyncio.Semaphore(MAX_TRACES)
        self._trace_turns = asyncio.Semaphore(MAX_UNDER_WAY)
        # A client of its own: the internal token is not for relays.
        self._http = httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False, timeout=timeout)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def read(self) -> list[RelayState]:
        """Return all relays in the order of the settings. A relay that does not answer is not ready."""
        return await asyncio.gather(*(self._look(admin) for admin in self._admins))

    async def trace(self, path: SessionPath, entry: Collection[int] = ()) -> list[Hop]:
        """Return the hops of a call; what no relay tells is not known. `entry`: see `read_ways`.

        Raises ApiError 503 while others are traced.
        """
        try:
            async with turn(self._traces, TRACE_WAIT_S, "Other calls are being traced; try again soon."):
                ways = await asyncio.gather(*(self._ways(admin, path, entry) for admin in self._admins))
        except ApiError:
            self._metrics.traces_refused.inc()
            raise
        return hops_of([each for each in ways if each is not None])

    async def _ways(self, admin: str, path: SessionPath, entry: Collection[int]) -> RelayWays | None:
        limit = f"limit={MAX_ENTRIES}"
        try:
            async with asyncio.timeout(self._timeout), self._trace_turns:
                has_flows, flows = await self._page(f"{admin}/flows?{limit}")
                has_routes, routes = await self._page(f"{admin}/routes?{limit}")
            return read_ways(path, flows, routes, entry) if has_flows and has_routes else None
        except (TimeoutError, httpx.HTTPError, RemoteError, *UNUSABLE_URL):
            return None

    async def _look(self, admin: str) -> RelayState:
        address = urlsplit(admin).netloc
        try:
            async with asyncio.timeout(self._timeout), self._turns:
                ready, reason = await self._page(f"{admin}/readyz")
                has_metrics, text = await self._page(f"{admin}/metrics")
        except (TimeoutError, httpx.TimeoutException):
            return RelayState(address, ready=False, reason=f"did not answer within {self._timeout:g} s")
        except (httpx.HTTPError, *UNUSABLE_URL) as error:
            return RelayState(address, ready=False, reason=f"{type(error).__name__}: {error}"[:MAX_REASON])
        sums = _sums(text) if has_metrics else {}
        return RelayState(
            address,
            ready,
            "" if ready else reason.strip()[:MAX_REASON],
            flows=sums.get("flows/confirmed"),
            probation=sums.get("flows/probation"),
            packets=sums.get("packets"),
            drops=sums.get("drops"),
        )

    async def _page(self, url: str) -> tuple[bool, str]:
        """Return whether the answer is 2xx, and its text."""
        page = bytearray()
        async with self._http.stream("GET", url) as response:
            async for chunk in response.aiter_bytes():
                page += chunk
                if len(page) > MAX_PAGE:
                    raise httpx.HTTPError(f"{url} answers with more than {MAX_PAGE} bytes")
        return response.is_success, page.decode(errors="replace")


def _sums(text: str) -> dict[str, int]:
    """Return what of a relay's metrics is shown, none of it when the text is none."""
    sums: dict[str, int] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                match sample.name:
                    case "usher_relay_flows":
                        name = f"flows/{sample.labels.get('state')}"
                    case "usher_relay_packets_total":
                        name = "packets"
                    case "usher_relay_drops_total":
                        name = "drops"
                    case _:
                        continue
                sums[name] = sums.get(name, 0) + int(sample.value)
    except (ValueError, OverflowError):  # whoever answers there is no relay
        return {}
    return sums
