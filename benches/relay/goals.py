"""The goals of the relay, as ratios taken in one run, and whether this run reached them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from benches.relay.rows import Row, Run


@dataclass(frozen=True, slots=True)
class Goal:
    """What was to be reached, and what was."""

    name: str
    most: float
    value: float
    unit: str = "×"

    @property
    def met(self) -> bool:
        """Tell whether it was reached."""
        return self.value <= self.most

    def as_json(self) -> dict[str, Any]:
        """Return it with its verdict."""
        return {**asdict(self), "met": self.met}


def goals(rows: Sequence[Row], flow_bytes: Mapping[str, float], network: str) -> list[Goal]:
    """Return all goals that these rows can tell, those of single packets as seen on `network`."""
    table = {(row.what, row.direction, row.engine): row for row in rows if row.network == network}
    flows = {(row.what, row.engine): row for row in rows if row.what.endswith("flows")}
    # Where every part of the way is the same.
    trunks = {(row.what, row.direction, row.engine): row for row in rows if row.network == "loopback"}
    singles = [*_forwarding(table), *_bundling(table), *_hostile(table), *_latency(table)]
    return [*singles, *_trunks(trunks), *_flows(flows, flow_bytes)]


Table = Mapping[tuple[str, str, str], Row]


def _forwarding(table: Table) -> Iterator[Goal]:
    for way in ("up", "down"):
        for load in ("20%", "50%", "saturation"):
            native, go, c, python = (table[load, way, engine] for engine in ("native", "go", "c", "python"))
            yield Goal(f"native engine against Go, {way}, {load}", 0.75, native.ratio(go))
            yield Goal(f"native engine against the C loop, {way}, {load}", 1.2, native.ratio(c))
            yield Goal(f"Python engine against Go, {way}, {load}", 1.1, python.ratio(go))


def _bundling(table: Table) -> Iterator[Goal]:
    def together(run: Run) -> float:
        return run.cpu_us + run.receiver_us

    alone, received = "200 k/s", "200 k/s, received"
    yield Goal("bundling against Go, 200 k/s", 0.5, table[alone, "up", "bundled"].ratio(table[alone, "up", "go"]))
    ratio = table[received, "up", "bundled"].ratio(table[received, "up", "go"], together)
    yield Goal("bundling against Go, 200 k/s, relay and receiver together", 0.4, ratio)


def _hostile(table: Table) -> Iterator[Goal]:
    forwarding = table["200 k/s", "up", "native"].of("cpu_us")
    dropping = table["hostile only: mix", "up", "native"].of("cpu_us")
    yield Goal("dropping a hostile packet against forwarding one, 200 k/s", 0.6, dropping / forwarding)
    lost = table["50% hostile, at capacity", "up", "native"].of("lost_percent")
    yield Goal("live packets lost at half load and as much hostile traffic", 0.1, lost, "%")


def _latency(table: Table) -> Iterator[Goal]:
    what = "latency at 20 k/s"
    through, direct = table[what, "up", "native"].latency(), table[what, "direct", "native"].latency()
    for name, most, nth in (("p50", 40.0, 0), ("p99", 100.0, 1)):
        yield Goal(f"latency that the native engine adds at 20 k/s, {name}", most, through[nth] - direct[nth], "us")


def _trunks(table: Table) -> Iterator[Goal]:
    for hop, way, load in product(("ingress", "home"), ("up", "down"), (10, 30)):
        row, direct = (table.get((f"trunk, {load}%", way, engine)) for engine in (hop, "native"))
        if row and direct:
            yield Goal(f"{hop} relay of a trunk against one without, {way}, {load}%", 1.3, row.ratio(direct))


def _flows(flows: Mapping[tuple[str, str], Row], flow_bytes: Mapping[str, float]) -> Iterator[Goal]:
    few, many = flows.get(("1,000 flows", "native")), flows.get(("1,000,000 flows", "native"))
    if few and many:
        yield Goal("1,000,000 flows of the native engine", 160.0, flow_bytes["native/1000000"] / 1e6, "MB")
        yield Goal("cost of a packet at 1,000,000 flows against 1,000", 1.3, many.ratio(few))
