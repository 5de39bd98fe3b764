"""Which programs hold which keys, and whom a rotation has to wait for (design D3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from usher_core.internal_api import HeldKeys
from usher_core.keys import KeyState
from usher_operator.keys.key_set import Generation
from usher_operator.seen import PodSeen

SETTLE_S = 180.0
"""A kubelet brings a changed Secret into a running pod within its sync period of 60 to 90 s; with a margin."""
NAMED = 5
"""Pods that a message names."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A relay or transceiver pod whose keys the operator makes, and what it says it holds.

    `held`: its answer (relay: admin page `/keys`; transceiver: `GET /internal/v1/keys`); None when it did not answer.
    """

    pod: PodSeen
    held: HeldKeys | None


def holds(generation: Generation) -> Callable[[HeldKeys], bool]:
    """Return a test: does a program accept what others make with this generation?"""
    return _reports(generation, frozenset(KeyState) - {KeyState.RETIRED})


def uses(generation: Generation) -> Callable[[HeldKeys], bool]:
    """Return a test: does a program make with this generation, and so with no other?"""
    return _reports(generation, frozenset({KeyState.ACTIVE}))


def is_rid_of(generation: Generation) -> Callable[[HeldKeys], bool]:
    """Return a test: does a transceiver have no call whose ufrag this generation made?"""

    def test(held: HeldKeys) -> bool:
        return held.ufrags.get(generation.letter, 0) == 0

    return test


def serves(generations: Iterable[Generation], clusters: Iterable[int]) -> Callable[[HeldKeys], bool]:
    """Return a test: does a relay open ufrags of all these clusters, whichever of these generations made them?"""
    letters, wanted = {generation.letter for generation in generations}, frozenset(clusters)

    def test(held: HeldKeys) -> bool:
        # Keys of trunks may have the same letter, and serve other clusters.
        return letters <= {key.id for key in held.keys if key.list == "ice" and wanted.issubset(key.clusters)}

    return test


def _reports(generation: Generation, states: frozenset[str]) -> Callable[[HeldKeys], bool]:
    wanted = {("ice", generation.letter), ("hop", str(generation.number))}

    def test(held: HeldKeys) -> bool:
        # A hop key with a cluster is a trunk's, which may have the same number.
        ours = (key for key in held.keys if key.list != "hop" or not key.clusters)
        return wanted <= {(key.list, key.id) for key in ours if key.state in states}

    return test


def lagging(
    holders: Iterable[Holder], test: Callable[[HeldKeys], bool], given_at: float, now: float
) -> tuple[Holder, ...]:
    """Return those that have not passed the test and have to be waited for.

    A pod whose program may run is waited for however long it takes, ready or not, ending or not: it may carry calls.
    A node that has lost the API server is the hard case: its pods are not ready, then deleted, get no changed Secret
    and go on with their calls, until their objects are gone. One whose container does not run may run in a moment, so
    it is waited for until its files must be the new ones.

    Args:
        holders: all programs of a kind.
        test: what each shall report.
        given_at: when the Secrets were written, Unix seconds.
        now: Unix seconds.
    """
    return tuple(
        holder for holder in holders if not (holder.held and test(holder.held)) and _counts(holder, given_at, now)
    )


def _counts(holder: Holder, given_at: float, now: float) -> bool:
    pod = holder.pod
    if pod.phase in ("Succeeded", "Failed"):
        return False
    may_run = pod.phase != "Pending" and not pod.waiting_reason
    # The reason may be that of another container in the pod: whatever answers runs.
    return may_run or holder.held is not None or now < given_at + SETTLE_S


def pod_names(holders: Iterable[Holder]) -> str:
    """Return the pods' names for a message, at most NAMED of them, and what is wrong with each."""
    everyone = sorted(holders, key=lambda holder: holder.pod.name)
    words = [holder.pod.name + ("" if holder.held else " (does not answer)") for holder in everyone[:NAMED]]
    if len(everyone) > NAMED:
        words.append(f"{len(everyone) - NAMED} more")
    return ", ".join(words)
