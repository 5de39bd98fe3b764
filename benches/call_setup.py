"""How long a caller waits: `usher up` to ready, offer to answer, offer to first audio.

Run it:  .venv/bin/python benches/call_setup.py [--count 30] [--starts 3] [--json]

The real programs (one relay, one transceiver, signaling), and `usher call` with the stock client (aiortc) as the
caller, one call after the other. *Offer to answer* is one HTTP request as the caller sees it. *Offer to first audio*
ends when the first packet arrives whose sound is above -50 dBFS: it has in it the client's own ICE and DTLS, up to
20 ms of waiting for the next tick, and the client's sound on its way through the echo.

What would make the numbers lie: loopback has no round trip, so add two of yours to the answer and five to the first
audio; client and programs share the CPUs; the first call of a process is slower than the rest, and is among the p95.
"""

from __future__ import annotations

import argparse
import json
import statistics

import _machine
import _up

TIMES = {
    "offer_answer_ms": "offer to answer",
    "ice_ms": "answer to ICE done (the client's part included)",
    "dtls_ms": "ICE done to DTLS done",
    "first_audio_ms": "offer to first audio",
}


def start_times(starts: int) -> list[float]:
    """Start and end everything several times; return the seconds to `ready`."""
    times = []
    for _ in range(starts):
        with _up.running_up() as up:
            times.append(up.ready_s)
    return times


def setup_times(count: int) -> dict[str, list[float]]:
    """Place calls one after the other; return their times in ms."""
    with _up.running_up() as up:
        found = _up.result(_up.calls(up.url, f"--count={count}", "--concurrency=1", "--seconds=0.5"))["calls"]
    times = {name: [call[name] for call in found if call[name] is not None] for name in TIMES}
    if any(len(values) < count for values in times.values()):
        raise SystemExit(f"calls failed: {[call['wrong'] for call in found if call['wrong']]}")
    return times


def percentile(values: list[float], percent: int) -> float:
    """Return the value that so many percent of all do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30, help="calls")
    parser.add_argument("--starts", type=int, default=3, help="starts of usher up")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    print(json.dumps(_machine.describe()) if options.json else _machine.line(), flush=True)
    ready = start_times(options.starts)
    report({"name": "usher up to ready", "unit": "s", "p50": statistics.median(ready), "max": max(ready)}, options.json)
    for name, values in setup_times(options.count).items():
        line = {"name": TIMES[name], "unit": "ms", "p50": percentile(values, 50), "p95": percentile(values, 95)}
        report(line, options.json)


def report(line: dict[str, str | float], as_json: bool) -> None:
    if as_json:
        print(json.dumps(line), flush=True)
        return
    numbers = "  ".join(f"{name} {value:7.1f}" for name, value in line.items() if isinstance(value, float))
    print(f"  {line['name']:48}{numbers} {line['unit']}", flush=True)


if __name__ == "__main__":
    main()
