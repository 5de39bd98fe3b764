"""What a person reads: progress on stderr, the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from usher_cli.call.result import CallResult
from usher_cli.call.trace import lines_of

_COLUMNS: tuple[tuple[str, str, str, int], ...] = (
    ("answer", "ms", "offer_answer_ms", 7),
    ("ICE", "ms", "ice_ms", 7),
    ("DTLS", "ms", "dtls_ms", 7),
    ("first audio", "ms", "first_audio_ms", 12),
    ("RTT", "ms", "rtt_ms", 7),
    ("delay", "ms", "delay_ms", 7),
    ("gap", "ms", "longest_gap_ms", 8),
    ("lost", "packets", "lost", 8),
    ("tone", "Hz", "tone_hz", 8),
    ("level", "dBFS", "level_dbfs", 7),
)
"""Title, unit, field and width of each column."""


def progress(number: int, step: str, why: str | None = None) -> None:
    """Say on stderr what a call does."""
    said = printable(f"{step}: {why}" if why else step)
    print(f"call {number}: {said}" if number else f"load: {said}", file=sys.stderr, flush=True)


def short_progress(number: int, step: str, why: str | None = None) -> None:  # noqa: ARG001  (the table says why)
    """Say the same, for those who read the table next."""
    progress(number, step)


def printable(text: str) -> str:
    """Return a text in one line and without control characters: what a server says must not steer a terminal."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def printable_line(line: str) -> str:
    """Return a line of ours without control characters that a server may have put in; blanks stay."""
    return "".join(character for character in line if character.isprintable())


def text(results: Sequence[CallResult], summary: dict[str, Any]) -> str:
    """Return the table of calls and the summary."""
    lines = [
        "call  ok " + "".join(f"{title:>{width}}" for title, _, _, width in _COLUMNS) + "  transceiver",
        "         " + "".join(f"{unit:>{width}}" for _, unit, _, width in _COLUMNS),
    ]
    for number, result in enumerate(results, 1):
        cells = "".join(f"{_cell(getattr(result, name)):>{width}}" for _, _, name, width in _COLUMNS)
        lines.append(f"{number:>4}  {'yes' if result.ok else 'NO ':<3}{cells}  {printable(result.transceiver or '-')}")
        lines += [f"      {printable(fault)}" for fault in result.wrong]
        if result.elsewhere and result.path is not None:
            served = result.path.get("region") or "no region"
            lines.append(f"      not in the region asked for: it is served in {printable(str(served))}")
    for number, result in enumerate(results, 1):
        if result.trace is not None:
            lines += ["", *map(printable_line, lines_of(number, result.trace))]
    lines.append("")
    lines.append(f"{summary['ok']} of {summary['calls']} calls right in {summary['elapsed_s']} s")
    for title, name in (
        ("offer to answer", "offer_answer_ms"),
        ("offer to first audio", "first_audio_ms"),
        ("delay of the echo", "delay_ms"),
    ):
        spread = summary[name]
        if spread:
            lines.append(f"{title}: p50 {spread['p50']:.1f} ms, p95 {spread['p95']:.1f} ms, max {spread['max']:.1f} ms")
    return "\n".join(lines)


def load_text(load: dict[str, Any]) -> str:
    """Return what the light calls saw, and whether this client kept up."""
    lines = ["", f"{load['connected']} of {load['light_calls']} light calls connected"]
    lines += [f"  {count} x {printable(fault)}" for fault, count in load["wrong"].items()]
    lines.append(f"packets: {load['sent']} sent, {load['received']} came back, {100 * load['lost_share']:.2f} % lost")
    lag = load["send_lag_ms"] or {"p99": 0.0, "max": 0.0}
    lines.append(
        f"this client: {100 * load['client_cpu_share']:.0f} % of a core, send lag p99 {lag['p99']:.1f} ms, "
        f"max {lag['max']:.1f} ms"
    )
    if not load["client_has_head_room"]:
        lines.append("this client was at its limit: its numbers say little about the server")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
