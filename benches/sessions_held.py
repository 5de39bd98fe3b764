"""How many calls one core holds: CPU of a whole transceiver process, and of the relay, by the number of live calls.

Run it:  .venv/bin/python benches/sessions_held.py [--sessions 20,40,60] [--seconds 8] [--json]

The real programs with the `echo` backend, and `usher call --load` as the callers: light clients that send ready Opus
packets, 50 a second each, and one full client whose sound is judged. Each call costs the transceiver all of it:
socket, hop header and MAC, SRTP both ways, jitter buffer, decoder, speech detection, encoder, RTCP, checks. CPU time
comes from /proc, from the moment at which all calls are connected. A line through the points, one without calls among
them, gives the cost of one
more call, apart from what an idle process needs; *calls per core* is what that makes of a core used to 80 %, since a
core without a reserve makes late ticks.

What would make the numbers lie: the tone never pauses, and people do (`media_capacity.py` has pauses in it); under
more load an event loop finds more to do at each turn, so a full core is a little cheaper per call than these points;
other work on the machine adds cache misses, and a transceiver that gets too little CPU does less, not more: a point at
which ticks were given up or the clients were late is shown, and counts for nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from typing import Any

import _machine
import _up

CONNECTED_WITHIN_S = 30
USABLE_SHARE = 0.8
IDLE_S = 3.0
SPARE_S = 4.0
"""How much longer calls last than is measured: the full client has its own set-up."""


@dataclass(frozen=True)
class Point:
    """What so many calls cost in CPU ms per second. `counts`: no tick was given up, and the clients kept up."""

    sessions: int
    transceiver_ms: float
    relay_ms: float
    late_percent: float
    lost_percent: float
    counts: bool


@dataclass(frozen=True)
class Programs:
    """The transceiver and the relay that are looked at: pid and base URL."""

    transceiver: dict[str, Any]
    relay: dict[str, Any]

    def ticks(self) -> tuple[float, float, float]:
        """Return the transceiver's ticks so far: all, late ones, given up ones."""
        found = _up.metrics(self.transceiver["admin"])
        return tuple(found[f"usher_transceiver_{name}_total"] for name in ("ticks", "late_ticks", "skipped_ticks"))

    def connected(self) -> float:
        """Return the number of connected calls."""
        return _up.metrics(self.transceiver["admin"])['usher_transceiver_sessions{state="connected"}']

    def cpu_ms(self, seconds: float) -> tuple[float, float]:
        """Return the CPU ms per second of the two programs during so many seconds."""
        programs = (self.transceiver, self.relay)
        begin, before = time.monotonic(), [_up.cpu_seconds(program["pid"]) for program in programs]
        time.sleep(seconds)
        took, after = time.monotonic() - begin, [_up.cpu_seconds(program["pid"]) for program in programs]
        return tuple(1000 * (last - first) / took for first, last in zip(before, after, strict=True))


def measure_idle(programs: Programs, seconds: float) -> Point:
    """Measure without calls: answering signaling's question for the load, once a second, and little else."""
    return Point(0, *programs.cpu_ms(seconds), late_percent=0, lost_percent=0, counts=True)


def measure(programs: Programs, url: str, sessions: int, seconds: float) -> Point:
    """Hold so many calls and measure for so long."""
    caller = _up.calls(
        url, "--load", f"--count={sessions}", f"--full-every={sessions}", f"--seconds={seconds + SPARE_S}"
    )
    try:
        deadline = time.monotonic() + CONNECTED_WITHIN_S
        while programs.connected() < sessions:
            if time.monotonic() > deadline or caller.poll() is not None:
                raise SystemExit(f"{sessions} calls did not connect")
            time.sleep(0.1)
        before = programs.ticks()
        cpu = programs.cpu_ms(seconds)
        ticks, late, skipped = (now - then for now, then in zip(programs.ticks(), before, strict=True))
        if programs.connected() < sessions:
            raise SystemExit("calls ended while they were measured")
        load = _up.result(caller)["load"]
    finally:
        caller.kill()
    counts = not skipped and load["client_has_head_room"]
    return Point(sessions, *cpu, 100 * late / ticks, 100 * load["lost_share"], counts)


def slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the line with the least squares through the points."""
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", default="20,40,60", help="numbers of calls")
    parser.add_argument("--seconds", type=float, default=8, help="per number")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    print(json.dumps(_machine.describe()) if options.json else _machine.line(), flush=True)
    numbers = [int(number) for number in options.sessions.split(",")]
    with _up.running_up(USHER_MAX_SESSIONS=str(max(numbers))) as up:
        (transceiver,), (relay,) = up.state["transceivers"], up.state["relays"]
        programs = Programs(transceiver, relay)
        points = [measure_idle(programs, min(options.seconds, IDLE_S))]
        for number in numbers:
            points.append(measure(programs, up.url, number, options.seconds))
            report_point(points[-1], options.json)
    points = [point for point in points if point.counts]
    if len(points) < 2:
        raise SystemExit("no point counts: this machine is too busy, or --sessions too many for its cores")
    for program in ("transceiver", "relay"):
        cost = slope([(point.sessions, getattr(point, f"{program}_ms")) for point in points])
        per_core = 1000 * USABLE_SHARE / cost
        if options.json:
            print(json.dumps({"name": program, "ms_per_second_and_call": cost, "calls_per_core": per_core}))
        else:
            print(f"  one more call: {cost:6.2f} ms CPU per second of a {program}, {per_core:5.0f} calls per core")


def report_point(point: Point, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"name": "point", **point.__dict__}), flush=True)
        return
    print(
        f"  {point.sessions:4} calls  transceiver {point.transceiver_ms:6.0f} ms CPU per second  relay"
        f" {point.relay_ms:5.0f} ms  late ticks {point.late_percent:4.1f} %  lost {point.lost_percent:5.2f} %"
        f"{'' if point.counts else '  too little CPU: does not count'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
