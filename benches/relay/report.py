"""Tables for people, and a plot where there is matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from benches.relay.goals import Goal
from benches.relay.rows import LOSS_ALLOWED, Row

TIGHT = 5.0
"""Percent of its time below which the sender, and not the relay, may have been the limit."""


def print_rows(rows: Sequence[Row], capacity: Mapping[str, float]) -> None:
    """Print one line per row: medians, and the ratios to the Go reference and the C loop of the same rounds."""
    head = f"{'':<9}{'load':<27}{'way':<7}{'relay':<8}"
    print(f"\n{head}{'CPU us':>7} {'(min-max)':>13}{'user':>6}{'sys':>6}{'x Go':>6}{'x C':>6}", end="")
    print(f"{'recv us':>8}{'packets/s':>10}{'lost %':>8}{'batch':>6}{'free %':>7}")
    table = {(row.network, row.what, row.direction, row.engine): row for row in rows}
    for row in rows:
        if any(row.latency()):
            continue
        key = (row.network, row.what, row.direction)
        ratios = [row.ratio(table[*key, base]) if (*key, base) in table else 0.0 for base in ("go", "c")]
        costs = [run.cpu_us for run in row.runs]
        spread = f"({min(costs):.2f}-{max(costs):.2f})"
        print(f"{row.network:<9}{row.what:<27}{row.direction:<7}{row.engine:<8}", end="")
        print(f"{row.of('cpu_us'):7.2f} {spread:>13}{row.of('user_us'):6.2f}{row.of('system_us'):6.2f}", end="")
        print("".join(f"{ratio:6.2f}" if ratio else f"{'-':>6}" for ratio in ratios), end="")
        print(f"{row.of('receiver_us'):8.2f}{row.of('per_second'):10.0f}{row.of('lost_percent'):8.2f}", end="")
        print(f"{row.of('batch'):6.1f}{row.of('headroom_percent'):7.0f}{_remark(row)}")
    _print_latency(rows)
    for name, rate in capacity.items():
        network = name.partition("/")[0]
        if any(row.network == network for row in rows):
            print(f"{name:<30} {rate:9.0f} packets/s at <{LOSS_ALLOWED} % loss")


def _remark(row: Row) -> str:
    return "  the sender was the limit" if row.of("headroom_percent") < TIGHT and row.what != "flood" else ""


def _print_latency(rows: Sequence[Row]) -> None:
    for row in rows:
        if any(row.latency()):
            p50, p99, p999 = row.latency()
            way = "no relay" if row.direction == "direct" else row.engine
            rate = row.of("per_second")
            print(
                f"{row.network:<9}{row.what:<27}{way:<10}p50 {p50:8.2f}  p99 {p99:8.2f}  p99.9 {p999:8.2f} us", end=""
            )
            print(f"  at {rate:.0f}/s")


def print_goals(goals: Sequence[Goal], flow_bytes: Mapping[str, float]) -> None:
    """Print what each flow takes, and each goal with what was reached."""
    for engine, size in flow_bytes.items():
        if "/" not in engine:
            print(f"{engine}: {size:.0f} bytes per flow")
    print("\ngoals")
    for goal in goals:
        verdict = "ok    " if goal.met else "MISSED"
        print(f"  {verdict} {goal.name}: {goal.value:.2f} {goal.unit} (at most {goal.most:g})")


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw CPU per packet by load. Does nothing without matplotlib."""
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError:
        return
    loads = ("20%", "50%", "saturation")
    places = sorted({(row.network, row.direction) for row in rows if row.what in loads})
    figure, axes = pyplot.subplots(1, len(places), figsize=(4.5 * len(places), 4), sharey=True, squeeze=False)
    engines = list(dict.fromkeys(row.engine for row in rows if row.what in loads))
    width = 1 / (len(engines) + 1)
    for axis, place in zip(axes[0], places, strict=True):
        for nth, engine in enumerate(engines):
            here = [row for row in rows if (row.network, row.direction, row.engine) == (*place, engine)]
            costs = {loads.index(row.what) + nth * width: row.of("cpu_us") for row in here if row.what in loads}
            axis.bar(list(costs), list(costs.values()), width, label=engine, color=f"C{nth}")
        axis.set_title(", ".join(place))
        axis.set_xticks([at + 0.4 for at in range(len(loads))], loads)
    axes[0][0].set_ylabel("us of CPU per packet")
    axes[0][-1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
