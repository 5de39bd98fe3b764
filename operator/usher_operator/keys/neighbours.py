"""Clusters where clients enter for calls here, and whom a rotation has to wait for there (design D3).

Their relays open ufrags with copies of our ice keys, which people bring there (`usher keys trunk-secrets`). What they
hold is known where relays here probe theirs, too: a PROBE-REPLY names it, each key with its cluster, for one of theirs
may have the same letter. A cluster of which nothing was heard for an hour is waited for an hour from the moment on that
a key is given, and no longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from usher_core.keys import ice_key_name
from usher_operator.seen import EndpointSeen

SILENT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A cluster that the trunk of a RelayPool here names. `held`: the ice keys that each of its relays told of."""

    cluster: int
    held: tuple[frozenset[str], ...] = ()

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard of it for an hour."""
        return not self.held


def neighbours_heard(clusters: Iterable[int], endpoints: Iterable[EndpointSeen]) -> tuple[Neighbour, ...]:
    """Return those clusters with what relays here heard of them within an hour."""
    heard = [each for each in endpoints if each.heard_s is not None and each.heard_s < SILENT_S]
    return tuple(
        Neighbour(cluster, tuple(each.held_ice for each in heard if each.cluster == cluster))
        for cluster in sorted(set(clusters))
    )


def lacking(
    neighbours: Iterable[Neighbour], clusters: Iterable[int], letter: str, given_at: float, now: float
) -> tuple[Neighbour, ...]:
    """Return the clusters to wait for until they hold a key of ours.

    Args:
        neighbours: those that may have copies.
        clusters: our ids; a relay tells of the one by which its trunk leads here.
        letter: of the key.
        given_at: when it was given, Unix seconds.
        now: Unix seconds.
    """
    ours = frozenset(ice_key_name(cluster, letter) for cluster in clusters)
    return tuple(
        each
        for each in neighbours
        if (now < given_at + SILENT_S if each.is_silent else any(ours.isdisjoint(held) for held in each.held))
    )


def cluster_names(neighbours: Iterable[Neighbour]) -> list[str]:
    """Return the clusters for a message."""
    return [f"cluster {each.cluster}" + (" (says nothing)" if each.is_silent else "") for each in neighbours]
