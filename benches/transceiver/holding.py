"""How many calls a server holds on its CPU: points at numbers of calls, and the search for the most that goes well."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benches import _up
from benches.transceiver.servers import Sample, Server, pin
from usher_transceiver.media.ticker import LATENESS_S

LAG_P99_MS = 10.0
LOST_PERCENT = 0.5
USED_SHARE = 0.9
"""Of its CPU that a server may use at the first try of the search."""
CONNECTED_WITHIN_S = 40.0
SETTLE_S = 1.0
SPARE_S = 3.0
"""How much longer calls last than is measured: the full client has its own set-up."""
MOST_CALLS = 400
MAX_TRIES = 5


@dataclass(frozen=True, slots=True)
class Point:
    """What so many calls took. `lag_*`: of the server's loop in ms, the upper bound of the share's bucket."""

    calls: int
    cpu_percent: float
    memory_mb: float
    lag_p50_ms: float
    lag_p99_ms: float
    skipped_ticks: int
    lost_percent: float
    longest_gap_ms: float
    bundled: float
    """Packets per datagram sent."""
    generator_cpu_percent: float
    generator_lag_p99_ms: float
    generator_has_room: bool

    @property
    def goes_well(self) -> bool:
        """Whether the server kept up with all of its calls."""
        return self.lag_p99_ms <= LAG_P99_MS and not self.skipped_ticks and self.lost_percent <= LOST_PERCENT


@dataclass(frozen=True, slots=True)
class Row:
    """A server at several numbers of calls, in the order in which they were tried; the first has none."""

    name: str
    points: tuple[Point, ...]

    @property
    def good(self) -> list[Point]:
        return [point for point in self.points if point.goes_well or not point.calls]

    @property
    def held(self) -> int:
        """The most calls that went well."""
        return max(point.calls for point in self.good)

    @property
    def is_generator_bound(self) -> bool:
        """Whether more calls were not to be had from this load generator."""
        busiest = max(self.points, key=lambda point: point.calls)
        return not busiest.generator_has_room or (busiest.goes_well and busiest.calls >= MOST_CALLS)

    @property
    def cpu_ms(self) -> float:
        """CPU per second of one more call, in ms."""
        return 10 * slope([(point.calls, point.cpu_percent) for point in self.good])

    @property
    def memory_kb(self) -> float:
        """Memory of one more call."""
        return 1000 * slope([(point.calls, point.memory_mb) for point in self.good])

    def as_json(self) -> dict[str, Any]:
        """Return it with all points."""
        return {
            "name": self.name,
            "held": self.held,
            "generator_bound": self.is_generator_bound,
            "cpu_ms_per_second_and_call": round(self.cpu_ms, 2),
            "memory_kb_per_call": round(self.memory_kb),
            "points": [{**asdict(point), "goes_well": point.goes_well} for point in self.points],
        }


def find_most(server: Server, load_cpu: int, first: int, seconds: float, tries: int = MAX_TRIES) -> Row:
    """Measure idle and at `first` calls, guess from that how many there can be, and go up or down from there."""
    points = [_idle(server, min(seconds, 2.0)), measure(server, load_cpu, first, seconds)]
    cost = (points[1].cpu_percent - points[0].cpu_percent) / first
    calls = min(MOST_CALLS, max(first, int((100 * USED_SHARE - points[0].cpu_percent) / cost) // 5 * 5))
    step = max(5, calls // 10 // 5 * 5)
    low, high = first, MOST_CALLS + step
    for _ in range(tries):
        point = measure(server, load_cpu, calls, seconds)
        points.append(point)
        if point.goes_well:
            low = calls
        else:
            high = calls
        if not point.generator_has_room or high - low <= step:
            break
        # The guess is good: up by one step, down by two, and between them by halves.
        calls = min(low + step, MOST_CALLS) if high > MOST_CALLS else max((low + high) // 2 // 5 * 5, high - 2 * step)
    return Row(server.name, tuple(points))


def measure(server: Server, load_cpu: int, calls: int, seconds: float) -> Point:
    """Hold so many calls for so long."""
    length = seconds + SETTLE_S + SPARE_S
    caller = start_load(server.url, load_cpu, calls, length)
    try:
        wait_connected(server, calls, caller)
        time.sleep(SETTLE_S)
        before, begin = server.sample(), time.monotonic()
        time.sleep(seconds)
        after, took = server.sample(), time.monotonic() - begin
        found = _up.result(caller)["load"]
    finally:
        caller.kill()
    lost_calls = calls - after.connected
    lost = 100.0 if lost_calls > 0 else 100 * found["lost_share"]
    gaps, lag = found["longest_gap_ms"], found["send_lag_ms"]
    return _point(calls, before, after, took, lost=lost, gap=gaps["p99"] if gaps else 0.0, load=found, lag=lag)


def start_load(url: str, cpu: int, calls: int, seconds: float, *flags: str) -> subprocess.Popen[str]:
    """Start `usher call --load` on its CPU."""
    words = ["--load", f"--count={calls}", f"--full-every={calls}", f"--seconds={seconds}", "--any-reply", *flags]
    caller = _up.calls(url, *words)
    pin(caller.pid, cpu)
    return caller


def wait_connected(server: Server, calls: int, caller: subprocess.Popen[str]) -> None:
    """Wait until all calls are connected."""
    deadline = time.monotonic() + CONNECTED_WITHIN_S
    while server.sample().connected < calls:
        if time.monotonic() > deadline or caller.poll() is not None:
            raise SystemExit(f"{server.name}: {calls} calls did not connect; is this machine busy?")
        time.sleep(0.1)


def _idle(server: Server, seconds: float) -> Point:
    before, begin = server.sample(), time.monotonic()
    time.sleep(seconds)
    after, took = server.sample(), time.monotonic() - begin
    room = {"client_cpu_share": 0.0, "client_has_head_room": True}
    return _point(0, before, after, took, lost=0.0, gap=0.0, load=room, lag=None)


def _point(
    calls: int,
    before: Sample,
    after: Sample,
    took: float,
    *,
    lost: float,
    gap: float,
    load: dict[str, Any],
    lag: dict[str, float] | None,
) -> Point:
    late = [last - first for first, last in zip(before.lateness, after.lateness, strict=True)]
    datagrams = after.sent_datagrams - before.sent_datagrams
    return Point(
        calls=calls,
        cpu_percent=round(100 * (after.cpu_s - before.cpu_s) / took, 1),
        memory_mb=round(after.memory / 1e6, 1),
        lag_p50_ms=quantile_ms(late, 0.50),
        lag_p99_ms=quantile_ms(late, 0.99),
        skipped_ticks=after.skipped - before.skipped,
        lost_percent=round(lost, 2),
        longest_gap_ms=round(gap, 1),
        bundled=round((after.sent_packets - before.sent_packets) / datagrams, 1) if datagrams else 0.0,
        generator_cpu_percent=round(100 * load["client_cpu_share"], 1),
        generator_lag_p99_ms=round(lag["p99"], 1) if lag else 0.0,
        generator_has_room=load["client_has_head_room"],
    )


def quantile_ms(cumulative: Sequence[int], share: float) -> float:
    """Return the bound in ms below which so large a share of the ticks came; 1000 when it is beyond all bounds."""
    wanted = share * cumulative[-1]
    for bound, count in zip(LATENESS_S, cumulative, strict=False):
        if count >= wanted:
            return 1000 * bound
    return 1000.0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line with the least squares through the points; 0 for fewer than two."""
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def cpus() -> tuple[int, int]:
    """Return the CPU of the servers and that of the load. Raises SystemExit on a machine with one."""
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        raise SystemExit("the server and the load need a CPU each")
    return found[-1], found[-2]
