"""Measuring: one run of the load through one relay, and rows of alternating runs with their medians."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any

from benches.relay.programs import Load, Relay

FLOWS = 6_000
PACKETS_PER_FLOW = 50
FEWEST_FLOWS = 1_000
BUNDLES = ("bundled", "held", "python")
"""These put several records into a hop datagram."""
LOSS_ALLOWED = 0.1
BEHIND_MS = 10.0
"""A relay that takes longer after the last packet only had not lost it yet."""
NUMBERS = ("cpu_us", "user_us", "system_us", "receiver_us", "per_second", "lost_percent", "batch", "headroom_percent")


@dataclass(frozen=True, slots=True)
class Run:
    """What one relay made of one stretch of load. Times are microseconds of CPU per packet."""

    cpu_us: float
    user_us: float
    system_us: float
    receiver_us: float
    per_second: float
    """Live packets that came out at the far end, by the time until the last one had."""
    drain_ms: float
    """How much later than the last was sent the last came out: long where the relay was behind."""
    lost_percent: float
    batch: float
    """Datagrams per receive call of the relay."""
    headroom_percent: float
    """How much of its time the sender had nothing to do."""
    latency_us: tuple[float, float, float]
    """p50, p99, p99.9 from the send call to the kernel's time stamp at the far end; zeros where it was not asked."""


@dataclass(slots=True)
class Row:
    """Runs of one relay under one load. `what` names the load."""

    network: str
    what: str
    direction: str
    engine: str
    runs: list[Run] = field(default_factory=list)

    def of(self, number: str) -> float:
        """Return the median of one number of the runs."""
        return float(median(getattr(run, number) for run in self.runs))

    def latency(self) -> tuple[float, float, float]:
        """Return the medians of p50, p99 and p99.9."""
        p50, p99, p999 = (median(run.latency_us[nth] for run in self.runs) for nth in range(3))
        return p50, p99, p999

    def ratio(self, other: Row, cost: Callable[[Run], float] = lambda run: run.cpu_us) -> float:
        """Return the median of the ratios of runs that stood side by side."""
        return median(cost(mine) / max(cost(theirs), 1e-9) for mine, theirs in zip(self.runs, other.runs, strict=True))

    def as_json(self) -> dict[str, Any]:
        """Return medians and all runs."""
        names = [item.name for item in fields(Run)]
        return {
            "network": self.network,
            "what": self.what,
            "direction": self.direction,
            "engine": self.engine,
            "median": {number: round(self.of(number), 3) for number in NUMBERS},
            "runs": {name: [_rounded(getattr(run, name)) for run in self.runs] for name in names},
        }


def _rounded(value: float | tuple[float, ...]) -> float | list[float]:
    return [round(part, 3) for part in value] if isinstance(value, tuple) else round(value, 3)


@dataclass(frozen=True, slots=True)
class Plan:
    """A load: for each relay its rate in packets per second, and further words of load.c's `read_plan`."""

    what: str
    direction: str
    rates: Mapping[str, float]
    words: Mapping[str, object] = field(default_factory=dict)


def run(load: Load, relay: Relay, plan: Plan, ms: int) -> Run:
    """Run one load through one relay. Raises RuntimeError when what came out is not what should have."""
    rate = plan.rates[relay.name]
    flows = min(max(int(rate / PACKETS_PER_FLOW), FEWEST_FLOWS), FLOWS) if rate else FLOWS
    words = {"rate": rate, "burst": 64 if rate >= 200_000 or not rate else 16, "ms": ms, "flows": flows}
    way = {"up": "u", "down": "d", "direct": "x"}[plan.direction]
    side = "up" if way == "u" else "down"
    counts, cpu = relay.ask()[side], relay.cpu()
    seen = load.send(relay, **{**words, "direction": way, **plan.words})
    cpu, after = relay.cpu() - cpu, relay.ask()[side]
    if seen["wrong"]:
        raise RuntimeError(f"{relay.name}, {plan}: {seen['wrong']} of {seen['read']} datagrams were wrong")
    batches, received, forwarded = (now - then for now, then in zip(after, counts, strict=True))
    everything_read = plan.words.get("sample") == 0
    arrived = seen["records"] if everything_read else seen["arrived"]
    if relay.name in BUNDLES and way == "u" and not everything_read:
        arrived = forwarded  # the kernel counts datagrams, and does not look into them
    packets = max(1, arrived if seen["sent"] else received)
    split = cpu.all / max(cpu.user + cpu.system, 1e-9)
    return Run(
        cpu_us=cpu.all / packets * 1e6,
        user_us=cpu.user * split / packets * 1e6,
        system_us=cpu.system * split / packets * 1e6,
        receiver_us=seen["receiver_cpu"] / packets * 1e6,
        per_second=arrived / (seen["seconds"] + seen["drain"]),
        drain_ms=1000 * seen["drain"],
        lost_percent=100 * (1 - arrived / max(1, seen["sent"])) if seen["sent"] else 0.0,
        batch=received / max(1, batches),
        headroom_percent=100 * seen["waited"] / seen["seconds"],
        latency_us=tuple(seen["latency"]),
    )


@dataclass(slots=True)
class Rig:
    """A network with its load and its relays, and all rows that were measured there."""

    load: Load
    relays: Sequence[Relay]
    rounds: int
    ms: int
    rows: list[Row] = field(default_factory=list)

    @property
    def network(self) -> str:
        """The network's name."""
        return self.load.network.name

    def refresh(self) -> None:
        """Make all flows or let them live on: they expire after 90 s."""
        for relay in self.relays:
            self.load.open(relay, FLOWS)

    def measure(self, plans: Sequence[Plan], rounds: int | None = None) -> None:
        """Run all plans once a round, the relays of a plan one right after the other, in turning order."""
        rows = {
            (plan.what, plan.direction, relay.name): Row(self.network, plan.what, plan.direction, relay.name)
            for plan in plans
            for relay in self.relays
            if relay.name in plan.rates
        }
        for number in range(rounds or self.rounds):
            self.refresh()
            for plan in plans:
                relays = [relay for relay in self.relays if relay.name in plan.rates]
                for relay in relays if number % 2 == 0 else reversed(relays):
                    rows[plan.what, plan.direction, relay.name].runs.append(run(self.load, relay, plan, self.ms))
        self.rows += rows.values()

    def capacity(self, relay: Relay, direction: str) -> float:
        """Return the highest rate tried at which less than 0.1 % is lost, and none waits long."""
        flood = run(self.load, relay, Plan("flood", direction, {relay.name: 0}), self.ms).per_second
        for part in (1.1, 1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5):
            tried = run(self.load, relay, Plan("capacity", direction, {relay.name: part * flood}), self.ms)
            if tried.lost_percent < LOSS_ALLOWED and tried.drain_ms < BEHIND_MS:
                return tried.per_second
        return 0.4 * flood
