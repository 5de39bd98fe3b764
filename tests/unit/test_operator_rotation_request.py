"""A wish for new keys: left on the operator's Secret, refused while a rotation is under way, heard within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from tests.kube_fake import KubeFake
from tests.operator_keys import NAMESPACE, World
from usher_core.errors import LocalError
from usher_operator import names
from usher_operator.keys.key_set import MAX_GENERATIONS
from usher_operator.kube import HttpKubeApi
from usher_operator.plan.keys import LOOK_LAG_S
from usher_operator.rotation_request import ask_for_rotation, until_begun
from usher_operator.rotation_wishes import RotationWishes

KEPT = names.KEY_SET_SECRET


class Rig:
    """An API server with the Secret of a namespace as its operator has left it."""

    def __init__(self, server: KubeFake) -> None:
        self.server = server
        self.api = HttpKubeApi(Configuration(host=server.url))
        self.world = World()
        self.world.settle()
        self.world.start("relay", "relay-1")

    def publish(self) -> None:
        """Store what the operator has made of the Secret by now."""
        secret: dict[str, Any] = dict(self.world.secrets[KEPT])

        def write(body: dict[str, Any]) -> None:
            body["data"] = secret["data"]
            body["metadata"]["annotations"].update(secret["metadata"]["annotations"])

        if self.server.get("Secret", NAMESPACE, KEPT) is None:
            metadata = {key: value for key, value in secret["metadata"].items() if key != "resourceVersion"}
            self.server.create({**secret, "metadata": metadata})
        else:
            self.server.change("Secret", NAMESPACE, KEPT, write)

    def annotations(self) -> dict[str, str]:
        found = self.server.get("Secret", NAMESPACE, KEPT)
        assert found is not None
        return dict(found["metadata"]["annotations"])

    async def ask(self, wish: str) -> None:
        await ask_for_rotation(self.api, NAMESPACE, wish)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with KubeFake() as server:
        rig = Rig(server)
        yield rig
        await rig.api.close()


async def test_it_leaves_a_wish_and_touches_nothing_else(rig: Rig) -> None:
    rig.publish()
    before = rig.annotations()
    await rig.ask("now")
    assert rig.annotations() == {**before, names.ROTATE_ANNOTATION: "now"}


async def test_without_the_secret_it_says_where_keys_come_from(rig: Rig) -> None:
    with pytest.raises(LocalError, match=r"namespace calls has no Secret usher-keys; the operator makes it"):
        await rig.ask("now")


async def test_without_a_cluster_it_says_so() -> None:
    async with KubeFake() as server:
        api = HttpKubeApi(Configuration(host=server.url))
    with pytest.raises(LocalError, match="could not be asked for new keys"):
        await ask_for_rotation(api, NAMESPACE, "now")
    await api.close()


async def test_it_says_which_key_is_handed_out_once_the_operator_has_begun(rig: Rig) -> None:
    rig.publish()
    await rig.ask("now")
    waiting = asyncio.create_task(until_begun(rig.api, NAMESPACE, "now"))
    rig.world.demand("now")
    rig.world.settle()
    rig.publish()
    said = await waiting
    assert rig.world.keys.given is not None
    assert f"rotation began in calls: key {rig.world.keys.given.letter} goes to all programs" in said
    assert "kubectl describe rpool,tpool -n calls" in said


async def test_without_an_operator_it_says_that_the_wish_stays(rig: Rig) -> None:
    rig.publish()
    await rig.ask("now")
    with pytest.raises(LocalError, match=r"no operator has begun within 0\.6 s; the wish stays"):
        await until_begun(rig.api, NAMESPACE, "now", within=0.6)
    with pytest.raises(LocalError, match=r"was asked for in calls before \(now\), and no operator has begun yet"):
        await rig.ask("again")
    assert rig.annotations()[names.ROTATE_ANNOTATION] == "now"


def first_step(world: World) -> str:
    world.demand("now")
    world.settle()
    assert world.keys.given is not None
    return f"under way in calls, step 1 of 2: not all programs hold key {world.keys.given.letter} yet"


def second_step(world: World) -> str:
    first_step(world)
    world.reload_all()
    world.wait(LOOK_LAG_S)
    world.settle()
    return f"under way in calls, step 2 of 2: some program still uses key {world.keys.old[0].letter}"


def no_room(world: World) -> str:
    for number in range(MAX_GENERATIONS):
        world.demand(f"wish {number}")
        world.rotate_through()
    world.demand(world.keys.demand)
    return f"calls in calls still need all {MAX_GENERATIONS} keys"


@pytest.mark.parametrize("state", [first_step, second_step, no_room])
async def test_while_a_rotation_is_under_way_another_one_is_refused(rig: Rig, state: Callable[[World], str]) -> None:
    why = state(rig.world)
    rig.publish()
    before = rig.annotations()
    with pytest.raises(LocalError, match=f"{why}.*; not asked for another one"):
        await rig.ask("again")
    assert rig.annotations() == before


async def test_once_the_old_key_is_only_kept_for_its_calls_another_rotation_may_begin(rig: Rig) -> None:
    rig.world.demand("now")
    rig.world.rotate_through()
    assert rig.world.keys.old
    rig.publish()
    await rig.ask("again")
    assert rig.annotations()[names.ROTATE_ANNOTATION] == "again"


async def test_of_two_that_ask_at_a_time_one_is_told_that_the_other_was_first(rig: Rig) -> None:
    rig.publish()
    answers = await asyncio.gather(rig.ask("one"), rig.ask("two"), return_exceptions=True)
    (refusal,) = [answer for answer in answers if answer is not None]
    first = rig.annotations()[names.ROTATE_ANNOTATION]
    assert f"was asked for in calls before ({first})" in str(refusal)


class Keeper:
    """Remembers what it was told to forget."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}
        self.expired: list[str] = []

    def wishes(self) -> dict[str, str]:
        return self.seen

    def expire(self, namespace: str) -> None:
        self.expired.append(namespace)


async def test_a_wish_that_no_look_has_seen_brings_a_look_at_once_and_only_then(rig: Rig) -> None:
    rig.publish()
    keeper, woken = Keeper(), list[str]()
    wishes = RotationWishes(rig.api, keeper, woken.append)
    keeper.seen = {NAMESPACE: "", "other": ""}
    for namespace in keeper.seen:
        await wishes.ask(namespace)
    assert (keeper.expired, woken) == ([], [])
    await rig.ask("now")
    for namespace in keeper.seen:
        await wishes.ask(namespace)
    assert (keeper.expired, woken) == ([NAMESPACE], [NAMESPACE])
    keeper.seen[NAMESPACE] = "now"
    await wishes.ask(NAMESPACE)
    rig.server.fail(503, verb="get", resource="secrets")
    await wishes.ask(NAMESPACE)
    assert woken == [NAMESPACE]
