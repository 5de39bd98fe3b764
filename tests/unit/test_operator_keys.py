"""The keys of a namespace: who gets which, when a rotation goes on and whom it waits for, and what is never touched."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.operator_keys import ACTIVE_FOR, CLUSTERS, DAY, NOW, World, fresh, pod
from usher_core.keys import KeyFile, KeyState, parse_key_file
from usher_operator import names
from usher_operator.actions import Create, Delete, Replace, Tell
from usher_operator.keys import secrets
from usher_operator.keys.holders import SETTLE_S
from usher_operator.keys.key_set import MAX_CLUSTERS, MAX_GENERATIONS, Phase
from usher_operator.plan.keys import (
    BLOCKED_AFTER_S,
    FRESH_BYTES,
    LOOK_LAG_S,
    OLD_KEY_MARGIN_S,
    SEAL_WAIT_S,
    KeySettings,
    plan_keys,
)


@pytest.fixture
def world() -> World:
    """A namespace with keys, two relays and two transceivers that hold them."""
    made = World()
    made.settle()
    for kind in ("relay", "transceiver"):
        for number in (1, 2):
            made.start(kind, f"{kind}-{number}")
    return made


def edited(secret: Mapping[str, Any], file: str, change: Any) -> dict[str, Any]:
    text = base64.b64decode(secret["data"][file]).decode()
    return {**secret, "data": {file: base64.b64encode(change(text).encode()).decode()}}


# ---- made


def test_keys_and_token_are_made_when_absent_and_each_program_gets_only_what_it_may_know() -> None:
    world = World()
    world.settle()
    assert set(world.secrets) == set(secrets.ALL)
    relay, transceiver, signaling = (world.file(name) for name in secrets.DERIVED)
    assert (len(relay.ice), len(relay.hop), len(relay.store), len(relay.seal)) == (1, 1, 1, 0)
    assert (len(transceiver.ice), len(transceiver.hop), len(transceiver.store), len(transceiver.seal)) == (1, 1, 0, 0)
    assert (len(signaling.ice), len(signaling.hop), len(signaling.store), len(signaling.seal)) == (0, 0, 0, 1)
    assert relay.ice == transceiver.ice
    assert relay.hop == transceiver.hop
    assert relay.ice[0].clusters == CLUSTERS
    token = base64.b64decode(world.secrets[names.TOKEN_SECRET]["data"][names.TOKEN_FILE]).decode()
    assert len(token.strip()) >= 32


def test_the_first_keys_may_be_used_at_once_also_where_clocks_are_a_little_behind() -> None:
    world = World()
    world.settle()
    relay, signaling = world.file(names.RELAY_KEYS_SECRET), world.file(names.SIGNALING_KEYS_SECRET)
    for key in (*relay.ice, *relay.hop, *relay.store, *signaling.seal):
        assert key.state is KeyState.ACTIVE
        assert key.not_before <= NOW - 30


def test_two_installs_get_other_keys_and_mostly_other_letters() -> None:
    files = []
    for seed in range(20):
        world = World(seed=seed)
        world.settle()
        files.append(world.file(names.RELAY_KEYS_SECRET))
    assert len({file.ice[0].ufrag_key for file in files}) == 20
    assert len({file.ice[0].letter for file in files}) > 8


def test_every_part_of_a_generation_is_made_of_its_own_random_bytes() -> None:
    world = World()
    world.settle()
    active = world.keys.active
    parts = [active.ufrag_key, active.password_key, active.hop_key, active.store_key, active.seal_key]
    token = base64.b64decode(world.secrets[names.TOKEN_SECRET]["data"][names.TOKEN_FILE]).strip()
    parts.append(base64.urlsafe_b64decode(token + b"="))
    random = fresh(0, 0)
    places = [random.index(part) for part in parts]
    ends = [start + len(part) for start, part in zip(places, parts, strict=True)]
    assert all(end <= start for end, start in zip(ends, places[1:], strict=False))
    assert ends[-1] == len(random) == FRESH_BYTES


def test_a_settled_namespace_is_left_alone(world: World) -> None:
    plan = world.look()
    assert (plan.actions, plan.fault, plan.note) == ((), "", "")
    assert plan.served == frozenset(CLUSTERS)


def test_without_pools_the_secrets_go_but_only_ours(world: World) -> None:
    world.secrets[names.TOKEN_SECRET] = {
        **world.secrets[names.TOKEN_SECRET],
        "metadata": {"name": names.TOKEN_SECRET, "namespace": "calls", "uid": "theirs"},
    }
    plan = plan_keys(replace(world.seen(), is_wanted=False), world.settings, world.now, fresh(9, 9))
    deleted = {action.target.name for action in plan.actions if isinstance(action, Delete)}
    assert len(plan.actions) == 4
    assert deleted == set(secrets.ALL) - {names.TOKEN_SECRET}


# ---- rotation


def test_a_rotation_on_demand_gives_out_switches_and_removes_in_order(world: World) -> None:
    old = world.keys.active
    world.demand("now")
    world.settle()
    given = world.keys.given
    assert given is not None
    for name in (names.RELAY_KEYS_SECRET, names.TRANSCEIVER_KEYS_SECRET):
        file = world.file(name)
        assert [key.state for key in file.ice] == [key.state for key in file.hop] == ["active", "accepted"]

    world.wait(LOOK_LAG_S)
    world.reload_all()
    world.settle()
    assert (world.keys.active.letter, [each.letter for each in world.keys.old]) == (given.letter, [old.letter])
    file = world.file(names.TRANSCEIVER_KEYS_SECRET)
    assert [key.state for key in file.ice] == [key.state for key in file.hop] == ["accepted", "active"]

    world.wait(LOOK_LAG_S)
    world.reload_all()
    world.settle()
    world.wait(ACTIVE_FOR + OLD_KEY_MARGIN_S - 1)
    world.settle()
    assert len(world.keys.generations) == 2
    world.wait(1)
    world.settle()
    assert [each.letter for each in world.keys.generations] == [given.letter]
    assert [key.letter for key in world.file(names.RELAY_KEYS_SECRET).ice] == [given.letter]


def test_a_wish_is_heard_once_and_one_during_a_rotation_starts_another_one_after_it(world: World) -> None:
    world.demand("first")
    world.settle()
    assert f"as was asked for: key {world.keys.generations[1].letter} goes to all programs" in world.told[-1].message
    world.demand("second")
    assert "another rotation was asked for, and begins once step 1 of this one is done" in world.settle().note
    assert len(world.keys.generations) == 2
    world.rotate_through()
    assert len(world.keys.generations) == 3
    world.rotate_through()
    world.rotate_through()
    assert len(world.keys.generations) == 3


def test_a_rotation_on_schedule(world: World) -> None:
    world.settings = KeySettings(30 * DAY, CLUSTERS)
    assert world.look().look_again == 30 * DAY
    world.wait(30 * DAY - 1)
    world.settle()
    assert world.keys.given is None
    world.wait(1)
    world.settle()
    assert world.keys.given is not None
    assert "since the key in use is old enough" in world.told[-1].message


@pytest.mark.parametrize("kind", ["relay", "transceiver"])
def test_a_program_that_lags_blocks_the_switch_and_is_named(world: World, kind: str) -> None:
    world.demand("now")
    world.settle()
    world.reload_all(but=f"{kind}-2")
    world.wait(LOOK_LAG_S)
    plan = world.settle()
    assert world.keys.given is not None
    assert f"rotation, step 1 of 2: key {world.keys.given.letter} is not in use yet: waiting for {kind}-2" in plan.note
    assert plan.waits_since == world.keys.given.since
    assert f"{kind}-1" not in plan.note
    assert plan.fault == ""
    world.wait(BLOCKED_AFTER_S)
    assert f"blocked for more than 10 minutes by {kind}-2" in world.settle().note
    world.wait(DAY)
    world.settle()
    assert world.keys.given is not None
    world.reload(f"{kind}-2")
    switched_at = world.now
    world.settle()
    assert world.keys.given is None
    world.wait(DAY)
    assert world.settle().waits_since == switched_at
    world.reload_all()
    assert world.settle().waits_since is None


def test_a_ready_program_that_does_not_answer_blocks_and_the_message_says_so(world: World) -> None:
    world.demand("now")
    world.settle()
    world.reload_all()
    world.silent.add("relay-1")
    world.wait(DAY)
    assert "relay-1 (does not answer)" in world.settle().note
    assert world.keys.given is not None


def test_a_message_names_a_few_pods_and_counts_the_rest(world: World) -> None:
    for number in range(10, 30):
        world.start("relay", f"relay-{number}")
    world.demand("now")
    world.settle()
    world.wait(LOOK_LAG_S)
    note = world.settle().note
    assert "relay-10" in note
    assert note.endswith(", 19 more")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_blocks_nothing(world: World, phase: str) -> None:
    world.demand("now")
    world.settle()
    world.reload_all(but="relay-2")
    world.pods["relay-2"] = replace(world.pods["relay-2"], phase=phase, ready=False)
    world.wait(LOOK_LAG_S)
    world.settle()
    assert world.keys.given is None


def test_a_pod_that_is_gone_blocks_nothing(world: World) -> None:
    world.demand("now")
    world.settle()
    world.reload_all(but="relay-2")
    del world.pods["relay-2"]
    world.wait(LOOK_LAG_S)
    world.settle()
    assert world.keys.given is None


@pytest.mark.parametrize("kind", ["relay", "transceiver"])
def test_a_pod_that_runs_but_is_not_ready_blocks_however_long_since_it_may_carry_calls(world: World, kind: str) -> None:
    name = f"{kind}-2"
    world.pods[name] = replace(world.pods[name], ready=False)
    world.silent.add(name)
    world.demand("now")
    world.settle()
    world.reload_all(but=name)
    world.wait(DAY)
    assert f"blocked for more than 10 minutes by {name} (does not answer)" in world.settle().note
    assert world.keys.given is not None


def test_a_pod_of_a_lost_node_blocks_until_its_object_is_gone_also_past_its_grace(world: World) -> None:
    world.pods["relay-2"] = replace(world.pods["relay-2"], ready=False)
    world.silent.add("relay-2")
    world.end("relay-2", grace=30)
    world.demand("now")
    world.settle()
    world.reload_all()
    world.wait(DAY)
    assert "relay-2" in world.settle().note
    assert world.keys.given is not None
    del world.pods["relay-2"]
    world.settle()
    assert world.keys.given is None


def test_an_ending_pod_blocks_as_long_as_it_is_there(world: World) -> None:
    world.end("transceiver-2", grace=3600)
    world.demand("now")
    world.settle()
    world.reload_all()
    world.wait(3600)
    assert "transceiver-2" in world.settle().note
    assert world.keys.given is not None
    world.pods["transceiver-2"] = replace(world.pods["transceiver-2"], phase="Succeeded", ready=False)
    world.settle()
    assert world.keys.given is None


@pytest.mark.parametrize("change", [{"phase": "Pending"}, {"waiting_reason": "CrashLoopBackOff"}])
def test_a_pod_whose_container_does_not_run_blocks_until_its_files_must_be_new(
    world: World, change: dict[str, Any]
) -> None:
    world.demand("now")
    world.settle()
    world.reload_all(but="relay-2")
    world.pods["relay-2"] = replace(world.pods["relay-2"], ready=False, **change)
    world.wait(SETTLE_S - 1)
    world.settle()
    assert world.keys.given is not None
    world.wait(1)
    world.settle()
    assert world.keys.given is None


def test_a_pod_that_answers_runs_though_another_container_of_it_waits(world: World) -> None:
    world.demand("now")
    world.settle()
    world.reload_all(but="relay-2")
    seen = world.seen()
    relays = [
        replace(each, pod=replace(each.pod, ready=False, waiting_reason="CrashLoopBackOff")) for each in seen.relays
    ]
    plan = plan_keys(replace(seen, relays=tuple(relays)), world.settings, world.now + DAY, fresh(0, 0))
    assert "relay-2" in plan.note
    assert plan.actions == ()


def test_an_old_key_stays_while_a_program_still_uses_it(world: World) -> None:
    world.demand("now")
    world.settle()
    world.reload_all()
    world.wait(LOOK_LAG_S)
    world.settle()
    world.reload_all(but="transceiver-1")
    world.wait(DAY)
    plan = world.settle()
    assert [each.gone_at for each in world.keys.old] == [None]
    assert f"rotation, step 2 of 2: key {world.keys.old[0].letter} is still in use" in plan.note
    assert "transceiver-1" in plan.note


def with_an_old_key_whose_time_is_over(world: World) -> str:
    """Let a key be left while pools say that calls are short, and let that time pass; return its letter."""
    old = world.keys.active.letter
    world.longest_call = 0
    world.demand("now")
    world.rotate_through()
    world.wait(OLD_KEY_MARGIN_S)
    return old


def test_an_old_key_stays_while_a_call_has_it_however_short_calls_are_to_be_now(world: World) -> None:
    old = world.keys.active.letter
    world.ufrags["transceiver-2"] = {old: 1}
    assert with_an_old_key_whose_time_is_over(world) == old
    plan = world.settle()
    assert [each.letter for each in world.keys.old] == [old]
    assert f"key {old} is still needed by calls: waiting for transceiver-2" in plan.note
    assert "transceiver-1" not in plan.note
    world.wait(DAY)
    assert "blocked for more than 10 minutes by transceiver-2" in world.settle().note
    world.ufrags["transceiver-2"] = {old: 0}
    world.settle()
    assert world.keys.old == ()


def test_an_old_key_stays_while_a_transceiver_that_runs_does_not_say_that_it_has_no_call_with_it(world: World) -> None:
    old = with_an_old_key_whose_time_is_over(world)
    world.silent.add("transceiver-2")
    plan = world.settle()
    assert [each.letter for each in world.keys.old] == [old]
    assert "transceiver-2 (does not answer)" in plan.note
    world.pods["transceiver-2"] = replace(world.pods["transceiver-2"], ready=False, waiting_reason="CrashLoopBackOff")
    world.settle()
    assert world.keys.old == ()


def test_a_silent_relay_does_not_keep_an_old_key(world: World) -> None:
    with_an_old_key_whose_time_is_over(world)
    world.silent.add("relay-1")
    world.settle()
    assert world.keys.old == ()


def test_signaling_uses_a_new_seal_only_when_all_replicas_must_have_it(world: World) -> None:
    old = world.keys.active.number
    world.demand("now")
    world.settle()
    states = {key.id: key.state for key in world.file(names.SIGNALING_KEYS_SECRET).seal}
    assert states == {old: "active", old + 1: "accepted"}
    world.reload_all()
    world.wait(LOOK_LAG_S)
    world.settle()
    keys = {key.id: key for key in world.file(names.SIGNALING_KEYS_SECRET).seal}
    assert keys[old].state == keys[old + 1].state == "active"
    assert keys[old].not_before < world.now < keys[old + 1].not_before <= world.now + SEAL_WAIT_S


def test_the_number_of_keys_is_bounded_and_a_rotation_waits_for_room(world: World) -> None:
    for number in range(MAX_GENERATIONS + 3):
        world.demand(f"wish {number}")
        plan = world.rotate_through()
    assert len(world.keys.generations) == MAX_GENERATIONS
    assert "a rotation waits" in plan.note
    assert len(world.look().key_ids) <= 64


def test_letters_and_numbers_roll_over_and_are_never_taken_twice_at_a_time(world: World) -> None:
    seen = []
    for number in range(300):
        world.demand(f"wish {number}")
        world.rotate_through()
        seen.append(world.keys.active.letter)
        world.wait(ACTIVE_FOR + OLD_KEY_MARGIN_S)
        world.rotate_through()
    assert len(set(seen[:52])) == 52
    assert set(seen) == set(seen[:52])
    assert {len(world.keys.generations)} == {1}


# ---- clusters


def test_transceivers_get_a_new_cluster_only_when_all_relays_know_it(world: World) -> None:
    world.clusters = frozenset({7})
    plan = world.settle()
    assert 7 in world.file(names.RELAY_KEYS_SECRET).ice[0].clusters
    assert 7 not in world.file(names.TRANSCEIVER_KEYS_SECRET).ice[0].clusters
    assert "cluster 7" in plan.fault_for(7)
    assert plan.fault_for(CLUSTERS[0]) == plan.fault_for(None) == plan.fault == ""
    world.wait(LOOK_LAG_S)
    world.reload("relay-1")
    assert "relay-2" in world.settle().note
    world.reload("relay-2")
    assert world.settle().fault_for(7) == ""
    assert 7 in world.file(names.TRANSCEIVER_KEYS_SECRET).ice[0].clusters


def test_one_look_without_a_cluster_takes_it_from_nobody(world: World) -> None:
    world.clusters = frozenset({7})
    world.settle()
    world.clusters = frozenset()
    world.settle()
    assert 7 in world.file(names.RELAY_KEYS_SECRET).ice[0].clusters


def test_clusters_are_bounded_and_those_without_pools_make_room(world: World) -> None:
    for start in range(100, 3100, 500):
        world.clusters = frozenset(range(start, start + 500))
        world.reload_all()
        world.wait(LOOK_LAG_S)
        plan = world.settle()
        assert world.clusters <= set(world.file(names.RELAY_KEYS_SECRET).ice[0].clusters)
    world.clusters = frozenset(range(1, 2000))
    plan = world.settle()
    assert len(world.keys.clusters) == MAX_CLUSTERS
    assert "use more namespaces" in plan.note
    assert world.settle().actions == ()


# ---- what is wrong stays as it is


def fault_without_writes(world: World, *words: str) -> None:
    plan = world.look()
    assert not [action for action in plan.actions if isinstance(action, Create | Replace | Delete)], plan.actions
    for word in words:
        assert word in plan.fault


@pytest.mark.parametrize("name", [names.KEY_SET_SECRET, *secrets.DERIVED])
def test_a_secret_that_was_edited_is_not_overwritten(world: World, name: str) -> None:
    file = secrets.KEY_SET_FILE if name == names.KEY_SET_SECRET else names.KEYS_FILE
    world.secrets[name] = edited(world.secrets[name], file, lambda text: text.replace("active", "retired", 1))
    world.demand("now")
    fault_without_writes(world, name, "edited by hand")


@pytest.mark.parametrize("name", [names.KEY_SET_SECRET, *secrets.DERIVED])
@pytest.mark.parametrize("data", [None, {}, {"other": "eA=="}, {"keys.json": "%", "key-set.json": "%"}])
def test_a_secret_without_its_file_is_not_overwritten(world: World, name: str, data: object) -> None:
    world.secrets[name] = {**world.secrets[name], "data": data}
    fault_without_writes(world, name, "no readable")


@pytest.mark.parametrize("name", [names.KEY_SET_SECRET, *secrets.DERIVED])
def test_a_secret_of_somebody_else_is_not_overwritten(world: World, name: str) -> None:
    metadata = {**world.secrets[name]["metadata"], "annotations": None}
    world.secrets[name] = {**world.secrets[name], "metadata": metadata}
    fault_without_writes(world, name, "not made by the operator")


@pytest.mark.parametrize("token", [None, "", "\n", "caf\u00e9"])
def test_a_broken_token_is_not_overwritten(world: World, token: str | None) -> None:
    data = {} if token is None else {names.TOKEN_FILE: base64.b64encode(token.encode()).decode()}
    world.secrets[names.TOKEN_SECRET] = {**world.secrets[names.TOKEN_SECRET], "data": data}
    fault_without_writes(world, names.TOKEN_SECRET)


def test_a_token_of_somebody_else_is_taken(world: World) -> None:
    data = {names.TOKEN_FILE: base64.b64encode(b"theirs").decode()}
    world.secrets[names.TOKEN_SECRET] = {"metadata": {"name": names.TOKEN_SECRET}, "data": data}
    assert world.look().fault == ""


def test_a_key_set_that_was_restored_from_a_backup_is_told_and_rolls_nothing_back(world: World) -> None:
    backup = world.secrets[names.KEY_SET_SECRET]
    world.demand("now")
    world.settle()
    world.secrets[names.KEY_SET_SECRET] = backup
    fault_without_writes(world, names.KEY_SET_SECRET, "is older than")


def test_a_key_set_that_is_gone_is_not_made_anew_while_programs_have_keys(world: World) -> None:
    del world.secrets[names.KEY_SET_SECRET]
    fault_without_writes(world, "is gone", "restore it", names.TRANSCEIVER_KEYS_SECRET)


@pytest.mark.parametrize("name", secrets.DERIVED)
def test_a_secret_that_was_rolled_back_or_deleted_is_made_again(world: World, name: str) -> None:
    before = world.secrets[name]
    world.demand("now")
    world.settle()
    wanted = world.file(name)
    world.secrets[name] = before
    world.settle()
    assert world.file(name) == wanted
    del world.secrets[name]
    world.settle()
    assert world.file(name) == wanted


def test_a_new_operator_that_derives_other_files_writes_them(world: World) -> None:
    name = names.RELAY_KEYS_SECRET
    secret = edited(world.secrets[name], names.KEYS_FILE, lambda text: text.replace("\n", ""))
    digest = hashlib.sha256(base64.b64decode(secret["data"][names.KEYS_FILE])).hexdigest()
    annotations = {**secret["metadata"]["annotations"], secrets.DIGEST_ANNOTATION: digest}
    world.secrets[name] = {**secret, "metadata": {**secret["metadata"], "annotations": annotations}}
    (write,) = world.look().actions
    assert isinstance(write, Replace)


def test_labels_and_annotations_of_others_survive_a_write(world: World) -> None:
    metadata = world.secrets[names.RELAY_KEYS_SECRET]["metadata"]
    metadata["labels"]["theirs"] = metadata["annotations"]["theirs"] = "kept"
    world.demand("now")
    world.settle()
    metadata = world.secrets[names.RELAY_KEYS_SECRET]["metadata"]
    assert metadata["labels"]["theirs"] == metadata["annotations"]["theirs"] == "kept"
    assert metadata["labels"][names.MANAGED_BY_LABEL] == names.MANAGED_BY


# ---- what people see


def test_status_lines_tell_state_age_and_calls_coarsely(world: World) -> None:
    letter = world.keys.active.letter
    world.ufrags["transceiver-1"] = {letter: 30}
    world.ufrags["transceiver-2"] = {letter: 17}
    world.wait(12 * DAY)
    assert world.look().key_ids == (
        f"ice/{letter} active 12d, ≤50 calls",
        "hop/1 active 12d",
        "store/1 active 12d",
        "seal/1 active 12d",
    )


def test_status_lines_of_a_busy_fleet_change_seldom(world: World) -> None:
    letter, lines = world.keys.active.letter, set()
    for calls in range(1000):
        world.ufrags["transceiver-1"] = {letter: calls}
        lines.add(world.look().key_ids[0])
    assert len(lines) < 40


def test_neither_status_nor_events_nor_repr_show_key_material(world: World) -> None:
    world.demand("now")
    shown = []
    for _ in range(40):
        plan = world.look()
        told = [action for action in plan.actions if isinstance(action, Tell)]
        shown += [repr(world.keys), repr(told), plan.fault, plan.note, *plan.key_ids]
        world.apply(plan)
        world.reload_all()
        world.wait(LOOK_LAG_S)
    world.secrets[names.KEY_SET_SECRET] = edited(
        world.secrets[names.KEY_SET_SECRET], secrets.KEY_SET_FILE, lambda text: text[:-20]
    )
    shown.append(world.look().fault)
    text = "\n".join(shown)
    assert any(action.reason == "KeySwitched" for action in world.told)
    for generation in world.generations:
        for value in json.loads(generation.model_dump_json()).values():
            if isinstance(value, str) and len(value) > 20:
                assert value not in text
        assert repr(generation.ufrag_key)[2:-1] not in text


def test_key_files_are_what_programs_can_read(world: World) -> None:
    for name in secrets.DERIVED:
        text = base64.b64decode(world.secrets[name]["data"][names.KEYS_FILE]).decode()
        assert isinstance(parse_key_file(text), KeyFile)


def test_a_pod_that_waits_for_a_node_and_one_without_a_status_do_not_hold_up_a_rotation_for_ever(world: World) -> None:
    world.pods["relay-9"] = pod("relay", "relay-9", ready=False, phase="Pending", ip="")
    world.silent.add("relay-9")
    world.demand("now")
    world.settle()
    world.reload_all()
    world.wait(SETTLE_S)
    world.settle()
    assert world.keys.active.phase is Phase.ACTIVE
    assert world.keys.given is None
