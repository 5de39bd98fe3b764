"""A rotation of keys and the clusters that have copies of them: whom it waits for, and for how long."""

from __future__ import annotations

import pytest

from tests.operator_keys import CLUSTERS, NOW, World, pod
from usher_core.internal_api import HeldKeys
from usher_core.keys import HeldKey, ice_key_name
from usher_operator.keys.holders import holds, serves
from usher_operator.keys.neighbours import SILENT_S, Neighbour, neighbours_heard
from usher_operator.plan.keys import LOOK_LAG_S
from usher_operator.seen import EndpointSeen


@pytest.fixture
def world() -> World:
    """A namespace whose own programs hold what a rotation has just given."""
    made = World(clusters=frozenset(CLUSTERS))
    made.settle()
    for kind in ("relay", "transceiver"):
        made.start(kind, f"{kind}-1")
    made.neighbours = (Neighbour(9),)
    made.demand("now")
    made.settle()
    made.wait(LOOK_LAG_S)
    made.reload_all()
    return made


def told(world: World, *letters: str) -> tuple[Neighbour, ...]:
    """Cluster 9 with relays that each hold these letters of ours."""
    held = (frozenset(ice_key_name(CLUSTERS[0], letter) for letter in each) for each in letters)
    return (Neighbour(9, tuple(held)),)


def test_it_waits_until_all_relays_over_there_hold_the_key_and_says_what_people_have_to_do(world: World) -> None:
    old, given = world.keys.active.letter, world.keys.given
    assert given is not None
    world.neighbours = told(world, old + given.letter, old)
    world.wait(10 * SILENT_S)
    note = world.settle().note
    assert f"key {given.letter} is not in use yet: give it to cluster 9 by `usher keys trunk-secrets`" in note
    assert world.keys.active.letter == old, "whoever speaks is waited for however long it takes"
    world.neighbours = told(world, old + given.letter, given.letter)
    world.settle()
    assert world.keys.active.letter == given.letter


def test_the_neighbour_s_own_key_with_the_letter_of_ours_is_no_copy_of_it(world: World) -> None:
    old, given = world.keys.active.letter, world.keys.given
    assert given is not None
    theirs = frozenset({f"9:{given.letter}", f"{CLUSTERS[0]}:{old}"})
    world.neighbours = (Neighbour(9, (theirs,)),)
    assert "give it to cluster 9" in world.settle().note
    assert world.keys.active.letter == old
    world.neighbours = (Neighbour(9, (theirs | {f"{CLUSTERS[1]}:{given.letter}"},)),)
    world.settle()
    assert world.keys.active.letter == given.letter


def test_a_cluster_of_which_nothing_is_heard_is_waited_for_an_hour(world: World) -> None:
    given = world.keys.given
    assert given is not None
    assert "cluster 9 (says nothing)" in world.settle().note
    world.now = given.since + SILENT_S - 1
    world.settle()
    assert world.keys.given is not None
    world.wait(1)
    world.settle()
    assert world.keys.active.letter == given.letter


def test_own_pods_that_lag_are_named_first(world: World) -> None:
    world.pods["relay-2"] = pod("relay", "relay-2")
    assert "waiting for relay-2 (does not answer)" in world.settle().note


def test_what_was_said_more_than_an_hour_ago_counts_for_nothing() -> None:
    def endpoint(cluster: int, heard_s: float | None, held: str = "1:a") -> EndpointSeen:
        return EndpointSeen(cluster, "192.0.2.1:3479", True, frozenset({held}), heard_s)

    heard = neighbours_heard(
        [9, 8, 7],
        [endpoint(9, 1.0), endpoint(9, 3599.0, "1:b"), endpoint(8, 3600.0), endpoint(7, None), endpoint(6, 0.0)],
    )
    assert heard == (Neighbour(7), Neighbour(8), Neighbour(9, (frozenset({"1:a"}), frozenset({"1:b"}))))


def test_a_trunk_s_keys_with_the_number_or_letter_of_ours_are_no_sign_that_a_relay_holds_ours(world: World) -> None:
    given = world.keys.given
    assert given is not None
    ice = HeldKey("ice", given.letter, "accepted", (1,))
    assert not holds(given)(HeldKeys(keys=(ice, HeldKey("hop", str(given.number), "active", (9,)))))
    own = HeldKey("ice", given.letter, "accepted", CLUSTERS)
    assert holds(given)(HeldKeys(keys=(own, HeldKey("hop", str(given.number), "accepted"))))
    for keys in ((own, ice), (ice, own)):
        assert serves([given], CLUSTERS)(HeldKeys(keys=keys)), "nor do they hide them"
    assert not serves([given], CLUSTERS)(HeldKeys(keys=(ice,)))
    assert given.since >= NOW
