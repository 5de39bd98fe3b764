"""How many calls one core of a transceiver holds, against stock aiortc; what a call takes; bursts of new calls.

Run it:  make bench-transceiver     (6 minutes; ARGS="--quick" for a look, ARGS="--out benches/results" to keep it)

benches/transceiver/README.md says what is measured and what would make the numbers lie.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benches import _machine
from benches.transceiver import burst, servers
from benches.transceiver.holding import LAG_P99_MS, Point, Row, cpus, find_most
from benches.transceiver.servers import Server

FULL, TALKER, PASSING = "usher, full codec both ways", "usher, bot talks 40 %", "usher, passed through"
BRIDGED, STOCK = "usher, realtime bridge", "aiortc"
GOAL_HELD = 100
GOAL_RATIO = 5.0
GOAL_ANSWER_MS = 10.0


@dataclass(frozen=True, slots=True)
class Goal:
    """What was to be reached, and what was."""

    name: str
    wanted: str
    value: float
    met: bool


def goals(rows: dict[str, Row], bursts: dict[str, float]) -> list[Goal]:
    """Return the goals with what this run reached."""
    held, stock = rows[FULL].held, rows[STOCK].held
    ratio = held / stock if stock else 0.0
    answer = bursts["answer_p50"]
    lag = f"loop lag p99 of at most {LAG_P99_MS:g} ms"
    return [
        Goal(f"calls on one core with full codec both ways, {lag}", f">= {GOAL_HELD}", held, held >= GOAL_HELD),
        Goal("the same against stock aiortc", f">= {GOAL_RATIO:g} x", round(ratio, 2), ratio >= GOAL_RATIO),
        Goal(
            f"offer to answer at {burst.RATE} calls a second, p50 in ms",
            f"<= {GOAL_ANSWER_MS:g}",
            answer,
            answer <= GOAL_ANSWER_MS,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a point")
    parser.add_argument("--quick", action="store_true", help="one short point each: to see that it works")
    parser.add_argument("--out", type=Path, default=Path("build/bench-transceiver"), help="folder of transceiver.json")
    options = parser.parse_args()
    begin, machine = time.monotonic(), _machine.describe()
    print(_machine.line(), flush=True)
    rows = {row.name: row for row in hold(options.quick, options.seconds)}
    bursts = set_up(options.quick)
    reached = goals(rows, bursts)
    for goal in reached:
        print(f"  {'ok    ' if goal.met else 'MISSED'} {goal.name}: {goal.value:g} ({goal.wanted})")
    options.out.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine, "quick": options.quick, "goals": [asdict(goal) for goal in reached], "burst": bursts}
    text = as_json({**found, "rows": [row.as_json() for row in rows.values()]})
    (options.out / "transceiver.json").write_text(text)
    print(f"{time.monotonic() - begin:.0f} s; results in {options.out}")
    return 0 if options.quick or all(goal.met for goal in reached) else 1


def hold(quick: bool, seconds: float) -> list[Row]:
    """Find how many calls each server holds."""
    server_cpu, load_cpu = cpus()
    plans: list[tuple[AbstractContextManager[Server], int]] = [
        (servers.usher(FULL, "echo", server_cpu, load_cpu), 30),
        (servers.usher(TALKER, "bench-talker", server_cpu, load_cpu), 30),
        (servers.usher(PASSING, "bench-passing", server_cpu, load_cpu), 60),
        (servers.bridged(BRIDGED, server_cpu, load_cpu), 30),
        (servers.stock(STOCK, server_cpu), 8),
    ]
    print(f"\n{'':<30}{'calls':>6}{'CPU %':>7}{'MB':>7}{'lag p50':>9}{'p99 ms':>8}{'lost %':>8}{'gap ms':>8}", end="")
    print(f"{'bundled':>9}   generator CPU %, lag p99 ms")
    rows = []
    for starting, first in plans:
        with starting as server:
            found = find_most(server, load_cpu, 8, 0.5, 0) if quick else find_most(server, load_cpu, first, seconds)
        for point in found.points:
            print(line_of(found.name, point), flush=True)
        rows.append(found)
    for row in rows:
        bound = ", as many as the generator can make" if row.is_generator_bound else ""
        per_call = f"{row.cpu_ms:.2f} ms CPU per second and {row.memory_kb:.0f} kB a call"
        print(f"  {row.name}: {row.held} calls{bound}; {per_call}")
    return rows


def line_of(name: str, point: Point) -> str:
    """Return a point as a line of the table."""
    remark = "" if point.goes_well else "  too many"
    remark += "" if point.generator_has_room else "  the generator was the limit"
    return (
        f"{name:<30}{point.calls:>6}{point.cpu_percent:>7.1f}{point.memory_mb:>7.1f}{point.lag_p50_ms:>9.1f}"
        f"{point.lag_p99_ms:>8.1f}{point.lost_percent:>8.2f}{point.longest_gap_ms:>8.0f}{point.bundled:>9.1f}"
        f"   {point.generator_cpu_percent:.0f}, {point.generator_lag_p99_ms:.1f}{remark}"
    )


def set_up(quick: bool) -> dict[str, float]:
    """Measure bursts of new calls beside live ones."""
    server_cpu, load_cpu = cpus()
    live, calls, rounds = (2, 8, 1) if quick else (20, 60, 3)
    with servers.usher(FULL, "echo", server_cpu, load_cpu) as server:
        found = burst.median_of([burst.measure(server, load_cpu, calls, live) for _ in range(rounds)])
    print(f"\n{calls} calls at {burst.RATE} a second beside {live} live ones, medians of {rounds}")
    print(f"  offer to answer p50 {found['answer_p50']:.1f} ms, p99 {found['answer_p99']:.1f} ms", end="")
    print(f"; to DTLS done p50 {found['connected_p50']:.0f} ms, p99 {found['connected_p99']:.0f} ms", end="")
    print(f"; failed {found['failed']:g}")
    print(f"  live calls: longest gap p50 {found['live_gap_p50']:.0f} ms, p99 {found['live_gap_p99']:.0f} ms", end="")
    print(f", lost {found['live_lost_percent']:.2f} %, checks p99 {found['live_check_p99']:.1f} ms")
    print(f"  loop lag p99 {found['lag_p99']:.1f} ms\n")
    return found


def as_json(found: dict[str, Any]) -> str:
    """Return everything, a line for each row."""
    rows = ",\n".join(map(json.dumps, found.pop("rows")))
    head = ",\n".join(f'"{name}": {json.dumps(value)}' for name, value in found.items())
    return f'{{{head},\n"rows": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    sys.exit(main())
