"""What a packet costs in the relay: our engines, a plain C loop (the limit) and a Go relay (the reference).

Run it:  make bench-relay      (about 8 minutes; ARGS="--quick" for a look, ARGS="--out benches/results" to keep it)

benches/relay/README.md says what is compared and what would make the numbers lie.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from benches import _machine
from benches.relay.goals import Goal, goals
from benches.relay.programs import LOOPBACK, Load, Network, Relay, build, veth
from benches.relay.report import plot, print_goals, print_rows
from benches.relay.rows import Plan, Rig, Row, run

ENGINES = ("native", "bundled", "go", "c", "python")
HELD = "held"
"""Takes part where there is much to bundle."""
SINGLE = ("native", "go", "c", "python")
OF_TRUNK = ("native", "ingress", "home")
"""Compared on loopback, where every part of the way is the same."""
ATTACKS = ("unknown", "junk", "forged", "tampered", "mix")
FLOW_COUNTS = (1_000, 100_000, 1_000_000)
LATENCY_RATE = 20_000
BUNDLE_RATE = 200_000
FLOW_RATE = 100_000
OPENING = 70.0
"""Seconds in which all flows must be made: an idle one lives for 90."""


@dataclass(slots=True)
class Results:
    """All that one run of the bench finds out."""

    rows: list[Row] = field(default_factory=list)
    capacity: dict[str, float] = field(default_factory=dict)
    """`network/direction/engine` → packets per second at less than 0.1 % loss."""
    flow_bytes: dict[str, float] = field(default_factory=dict)
    """`engine` → bytes per flow; `engine/flows` → bytes that all of them take."""

    def as_json(self, machine: dict[str, object], found: list[Goal]) -> str:
        """Return everything, a row per line."""
        head = {
            "machine": machine,
            "capacity": {name: round(rate) for name, rate in self.capacity.items()},
            "flow_bytes": {name: round(size, 1) for name, size in self.flow_bytes.items()},
        }
        lists = {"goals": [goal.as_json() for goal in found], "rows": [row.as_json() for row in self.rows]}
        parts = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        parts += [f'"{name}": [\n' + ",\n".join(map(json.dumps, items)) + "\n]" for name, items in lists.items()]
        return "{" + ",\n".join(parts) + "}\n"


@contextmanager
def rig(folder: Path, network: Network, options: argparse.Namespace) -> Iterator[Rig]:
    """Start load and relays; end them."""
    with ExitStack() as stack:
        load = Load(folder, network, options.cpus[0])
        stack.callback(load.end)
        relays = []
        for name in (*ENGINES, HELD):
            relays.append(Relay(name, folder, load, options.cpus[1], 20_000))
            stack.callback(relays[-1].end)
        if network is LOOPBACK:
            relays += trunk(stack, folder, load, options)
        yield Rig(load, relays, options.rounds, options.ms)


def trunk(stack: ExitStack, folder: Path, load: Load, options: argparse.Namespace) -> list[Relay]:
    """Start the two relays of a trunk."""
    home = Relay("home", folder, load, options.cpus[1], 20_000)
    stack.callback(home.end)
    ingress = Relay("ingress", folder, load, options.cpus[1], 20_000, trunk=int(home.ready["trunk"]))
    stack.callback(ingress.end)
    home.port = ingress.port
    return [ingress, home]


def over_a_trunk(rig: Rig, results: Results) -> None:
    """What each relay of a trunk takes, beside one that has the transceivers itself, and what one more hop adds."""
    single = {"burst": 1, "stamp": 1, "sample": 8}
    plans = []
    for way in ("up", "down"):
        whole = results.capacity[f"{rig.network}/{way}/go"]
        # Both share a CPU: at half of Go's capacity it would be full.
        plans += [Plan(f"trunk, {part:.0%}", way, dict.fromkeys(OF_TRUNK, part * whole)) for part in (0.1, 0.3)]
        plans.append(Plan("trunk, latency", way, dict.fromkeys(("native", "ingress"), LATENCY_RATE), single))
    rig.measure(plans)


def compare(rig: Rig, results: Results) -> None:
    """All relays at 20 %, 50 % and saturation, each way."""
    rig.refresh()
    plans = []
    for direction in ("up", "down"):
        engines = [relay for relay in rig.relays if relay.name in (ENGINES if direction == "up" else SINGLE)]
        for relay in engines:
            results.capacity[f"{rig.network}/{direction}/{relay.name}"] = rig.capacity(relay, direction)
        names = [relay.name for relay in engines]
        whole = results.capacity[f"{rig.network}/{direction}/go"]
        plans += [Plan(f"{part:.0%}", direction, dict.fromkeys(names, part * whole)) for part in (0.2, 0.5)]
        full = {name: 1.15 * results.capacity[f"{rig.network}/{direction}/{name}"] for name in names}
        plans.append(Plan("saturation", direction, full))
    fast = ("native", "bundled", HELD, "go", "c")
    plans.append(Plan("200 k/s", "up", dict.fromkeys(fast, BUNDLE_RATE)))
    # A real receiver, that reads each datagram and checks its MAC.
    plans.append(Plan("200 k/s, received", "up", dict.fromkeys(fast, BUNDLE_RATE), {"sample": 0}))
    rig.measure(plans)


def look_closer(rig: Rig, results: Results) -> None:
    """Long packets, STUN, hostile packets, latency."""

    def rates(part: float, direction: str = "up") -> dict[str, float]:
        return dict.fromkeys(SINGLE, part * results.capacity[f"{rig.network}/{direction}/go"])

    def own(part: float) -> dict[str, float]:
        return {name: part * results.capacity[f"{rig.network}/up/{name}"] for name in SINGLE}

    flood = dict.fromkeys(SINGLE, BUNDLE_RATE)
    plans = [Plan("1200 bytes, 50%", way, rates(0.5, way), {"size": 1200}) for way in ("up", "down")]
    plans.append(Plan("STUN checks, 20%", "up", rates(0.2), {"live": "stun"}))
    plans += [Plan(f"hostile only: {kind}", "up", flood, {"hostile": 100, "attack": kind}) for kind in ATTACKS]
    plans += [Plan(f"{part}% hostile, at capacity", "up", own(1.0), {"hostile": part}) for part in (0, 25, 50, 75, 90)]
    rig.measure(plans, rounds=min(rig.rounds, 3))
    single = {"burst": 1, "stamp": 1, "sample": 8}
    timed = []
    for what, rate in (("latency at 20 k/s", dict.fromkeys(SINGLE, LATENCY_RATE)), ("latency at half load", own(0.5))):
        timed += [Plan(what, "up", rate, single), Plan(what, "direct", {"native": rate["native"]}, single)]
    rig.measure(timed)


def count_flows(folder: Path, options: argparse.Namespace, results: Results) -> None:
    """Memory and cost of many flows, on loopback, each relay by itself; the runs of 1 k, 100 k and 1 M alternate.

    It comes first: that the machine does other work shows here.
    """
    counts = [count for count in FLOW_COUNTS if count <= options.flows]
    for engine in SINGLE:
        load = Load(folder, LOOPBACK, options.cpus[0])
        most = 20_000 if engine == "python" else counts[-1]
        relay = Relay(engine, folder, load, options.cpus[1], most)
        try:
            load.open(relay, 100)
            before = relay.resident()
            seconds = load.open(relay, most)
            if seconds > OPENING:
                raise RuntimeError(
                    f"{most:,} flows took {seconds:.0f} s: the first have expired; wait for a quiet machine"
                )
            grown = relay.resident() - before
            results.flow_bytes[engine] = grown / most
            results.flow_bytes[f"{engine}/{most}"] = grown
            if engine == "python":
                continue
            rows = [Row("loopback", f"{count:,} flows", "up", engine) for count in counts]
            for _ in range(options.rounds):
                for count, row in zip(counts, rows, strict=True):
                    plan = Plan(row.what, "up", {engine: FLOW_RATE}, {"flows": count})
                    row.runs.append(run(load, relay, plan, options.ms))
            results.rows += rows
        finally:
            relay.end()
            load.end()


def describe_machine() -> dict[str, object]:
    """Return what the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = [["gcc", "-dumpfullversion"], ["go", "version"], ["rustc", "--version"]]
    tools = {
        command[0]: subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        for command in versions
    }
    return {**_machine.describe(), "cpu": (cpu or [platform.machine()])[0], **tools}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each row; the medians count")
    parser.add_argument("--ms", type=int, default=400, help="length of a run")
    parser.add_argument("--flows", type=int, default=FLOW_COUNTS[-1], help="most flows")
    parser.add_argument("--networks", default="loopback,veth" if os.geteuid() == 0 else "loopback")
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench-relay"), help="folder of relay.json and relay.png"
    )
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.ms, options.flows = 1, 60, 20_000
    options.cpus = sorted(os.sched_getaffinity(0))[-2:]
    if len(options.cpus) < 2:
        sys.exit("the relay and the load need a CPU each")
    return options


def main() -> int:
    options = parse()
    machine = describe_machine()
    print(" ".join(f"{name}={value}" for name, value in machine.items()), flush=True)
    begin, results = time.monotonic(), Results()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build(folder)
        count_flows(folder, options, results)
        print_rows(results.rows, {})
        for name in options.networks.split(","):
            with veth() if name == "veth" else nullcontext(LOOPBACK) as network, rig(folder, network, options) as here:
                compare(here, results)
                if name == "loopback":
                    over_a_trunk(here, results)
                if name == options.networks.split(",")[-1]:
                    look_closer(here, results)
                results.rows += here.rows
                print_rows(here.rows, results.capacity)
    found = goals(results.rows, results.flow_bytes, options.networks.split(",")[-1])
    print_goals(found, results.flow_bytes)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "relay.json").write_text(results.as_json(machine, found))
    plot(results.rows, options.out / "relay.png")
    print(f"{time.monotonic() - begin:.0f} s; results in {options.out}")
    return 0 if all(goal.met for goal in found) else 1


if __name__ == "__main__":
    sys.exit(main())
