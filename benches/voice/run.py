"""How a voice sounds after a bad network: usher and stock aiortc, each as the far end of the same calls.

Run it:  make bench-voice      (three minutes; ARGS="--out benches/results" to keep it, ARGS="--seeds 1" for a look)

benches/voice/README.md says what is compared and what would make the numbers lie.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from benches import _machine
from benches.voice.goals import Goal, goals
from benches.voice.rows import Row, rows
from benches.voice.speech import speech
from usher_transceiver.media.choose_codec import load_codec

_HEAD = (
    f"{'heard by':9}{'far end':13}{'loss %':>7}{'jitter ms':>10}"
    f"{'STOI':>8}{'delay ms':>10}{'growth ms':>10}{'stall ms':>10}"
)


def line(row: Row) -> str:
    """Return a row of the table."""
    return (
        f"{row.heard_by:9}{row.far_end:13}{row.loss_percent:>7}{row.jitter_ms:>10}"
        f"{row.stoi:>8.3f}{row.delay_ms:>10.0f}{row.growth_ms:>10.0f}{row.stall_ms:>10.0f}"
    )


def as_json(machine: dict[str, object], codec: str, found: Sequence[Goal], all_rows: Sequence[Row]) -> str:
    """Return everything, a row per line."""
    head = json.dumps({**machine, "codec": codec})
    lists = {"goals": [goal.as_json() for goal in found], "rows": [row.as_json() for row in all_rows]}
    parts = [f'"{name}": [\n' + ",\n".join(map(json.dumps, items)) + "\n]" for name, items in lists.items()]
    return "{" + ",\n".join([f'"machine": {head}', *parts]) + "}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="calls of each kind, in other weather each")
    parser.add_argument("--out", type=Path, default=Path("build/bench-voice"), help="folder of voice.json")
    options = parser.parse_args()
    machine, codec, begin = _machine.describe(), load_codec(), time.monotonic()
    print(_machine.line(), f"codec={codec.name}", _HEAD, sep="\n")
    all_rows = []
    for row in rows(codec, speech(), range(options.seeds)):
        all_rows.append(row)
        print(line(row), flush=True)
    found = goals(all_rows)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "voice.json").write_text(as_json(machine, codec.name, found, all_rows))
    missed = [goal for goal in found if not goal.met]
    for goal in missed:
        print(f"missed: {goal.name}: {goal.value}, at most {goal.most}")
    print(f"{len(found) - len(missed)} of {len(found)} goals reached in {time.monotonic() - begin:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
