"""Times as the Kubernetes API writes them, to and from Unix seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def unix(time: str) -> float:
    """Return the Unix seconds of a time of the API. Raises ValueError for what is none."""
    return datetime.fromisoformat(time).timestamp()


def timestamp(now: float) -> str:
    """Return a `Time`, such as `2025-01-01T00:00:00Z`."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(now: float) -> str:
    """Return a `MicroTime`, as Leases have, such as `2025-01-01T00:00:00.000000Z`."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
