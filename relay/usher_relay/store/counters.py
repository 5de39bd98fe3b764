"""What the store of a relay counts. All labels are bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Lookup(StrEnum):
    """What came of a look-up."""

    FOUND = "found"
    MISSED = "missed"
    """Redis has nothing of this client."""
    REFUSED = "refused"
    """Redis has something that is not believed."""
    FAILED = "failed"
    """Redis failed or was late."""
    BUSY = "busy"
    """As many were under way as may be."""
    AWAY = "away"
    """Redis was known to be away, so it was not asked."""


class Write(StrEnum):
    """What came of a mapping to be written."""

    WRITTEN = "written"
    FAILED = "failed"
    """Redis refused it: no memory, or read only."""
    LATE = "late"
    """It waited until its next refresh was due."""
    LOST = "lost"
    """The queue was full, or no store key was active."""


class Refusal(StrEnum):
    """Why what Redis holds is not believed; the reasons of `mapping.Mappings.open`."""

    LENGTH = "mapping_length"
    VERSION = "mapping_version"
    KEY = "mapping_key"
    MAC = "mapping_mac"
    EXPIRED = "mapping_expired"
    FAR = "mapping_far"


@dataclass(slots=True)
class StoreCounters:
    """Written by the control thread alone."""

    lookups: dict[Lookup, int] = field(default_factory=lambda: dict.fromkeys(Lookup, 0))
    writes: dict[Write, int] = field(default_factory=lambda: dict.fromkeys(Write, 0))
    refusals: dict[Refusal, int] = field(default_factory=lambda: dict.fromkeys(Refusal, 0))
    failures: int = 0
    """Operations that Redis did not answer, or not in time."""
    loaded: int = 0
    """Mappings of the pool that were loaded at the start."""
    queued: int = 0
    """Mappings that wait to be written."""
