"""Where the round trip of a call goes: what the server tells of its hops, beside what the client's checks take."""

from __future__ import annotations

from typing import Any

Hops = list[dict[str, Any]]

MAX_HOPS = 8
ROUNDED_MS = 0.2
"""By so much parts may differ from the whole because each is rounded."""


def trace_of(total_ms: float | None, description: dict[str, Any]) -> dict[str, Any]:
    """Return `total_ms`, the `hops` with their `rtt_ms`, and `rest_ms`: what the hops of unknown length take together.

    A single hop of unknown length gets the rest, unless the others take more than the whole: they were timed at other
    moments. `description` is what the server tells of the call; what has not the form of hops in it is left out.
    """
    path = description.get("path")
    told = path.get("hops") if isinstance(path, dict) else None
    hops = [_hop(entry) for entry in told[:MAX_HOPS] if isinstance(entry, dict)] if isinstance(told, list) else []
    known = [hop["rtt_ms"] for hop in hops if hop["rtt_ms"] is not None]
    rest = None if total_ms is None or total_ms < sum(known) else round(total_ms - sum(known), 1)
    unknown = [hop for hop in hops if hop["rtt_ms"] is None]
    if len(unknown) == 1:
        unknown[0]["rtt_ms"] = rest
    return {"total_ms": total_ms, "hops": hops, "rest_ms": rest if len(unknown) > 1 else None}


def lines_of(number: int, trace: dict[str, Any]) -> list[str]:
    """Return the lines that a person reads of one call."""
    hops: Hops = trace["hops"]
    total = trace["total_ms"]
    lines = [
        f"call {number}: round trip {_ms(total)}" if total is not None else f"call {number}: no check was answered"
    ]
    if not hops:
        return [*lines, "      the server does not tell the hops: it needs --relay-admin, and you an API key"]
    lines += [f"      {_ends(hop):<26}{_ms(hop['rtt_ms']):>10}" for hop in hops]
    known = sum(hop["rtt_ms"] or 0.0 for hop in hops)
    if total is not None and known > total + ROUNDED_MS:
        lines.append("      the hops were timed at other moments than the whole, and take more here")
    if [hop["from"] for hop in hops] == ["client"] and hops[0]["to"] == "transceiver":
        lines.append("      no relay that the server asks (--relay-admin) carries this call")
    if trace["rest_ms"] is not None:
        lines.append(f"      {'what is not told takes':<26}{_ms(trace['rest_ms']):>10}")
    return lines


def _hop(told: dict[str, Any]) -> dict[str, Any]:
    rtt = told.get("rtt_ms")
    ends = {name: str(told.get(name))[:32] for name in ("from", "to")}
    return {**ends, "rtt_ms": float(rtt) if isinstance(rtt, int | float) and not isinstance(rtt, bool) else None}


def _ends(hop: dict[str, Any]) -> str:
    return f"{hop['from']} ↔ {hop['to']}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
