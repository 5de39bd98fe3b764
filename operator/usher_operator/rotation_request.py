"""Asks whichever operator runs for a rotation of the keys of a namespace, as `usher keys rotate` does."""

from __future__ import annotations

import asyncio
import time

from usher_core.errors import LocalError
from usher_operator import names
from usher_operator.actions import Reference
from usher_operator.keys import secrets
from usher_operator.keys.key_set import MAX_GENERATIONS, KeySet
from usher_operator.kube import ConflictError, Json, KubeApi, KubeError
from usher_operator.plan.json_patch import escape

BEGUN_WITHIN_S = 45.0
"""An operator hears of a wish within about 2 s; one that takes over from another needs 15 s before."""
LOOK_EVERY_S = 0.5
TRIES = 5


async def ask_for_rotation(api: KubeApi, namespace: str, wish: str) -> None:
    """Leave the wish for a rotation on the key set Secret.

    Raises LocalError when that can't be done, or a rotation is under way.

    Args:
        api: the API server.
        namespace: of the Secret.
        wish: any text that was not left there before.
    """
    # The operator's Secret always has annotations, so that one can be added beside them.
    place = "/metadata/annotations/" + escape(names.ROTATE_ANNOTATION)
    try:
        for tries_left in reversed(range(TRIES)):
            stored = await _stored(api, namespace)
            _expect_idle(stored, namespace)
            unchanged = {
                "op": "test",
                "path": "/metadata/resourceVersion",
                "value": stored["metadata"]["resourceVersion"],
            }
            try:
                await api.json_patch(_secret(namespace), [unchanged, {"op": "add", "path": place, "value": wish}])
            except ConflictError:
                # The operator took a step, or somebody else was faster: then that is said.
                if not tries_left:
                    raise
            else:
                return
    except KubeError as error:
        raise LocalError(f"the operator could not be asked for new keys: {error}") from None


async def until_begun(api: KubeApi, namespace: str, wish: str, within: float = BEGUN_WITHIN_S) -> str:
    """Wait until the operator has begun, and return what it does. Raises LocalError when it does not."""
    end = time.monotonic() + within
    why = ""
    while time.monotonic() < end:
        try:
            keys = _key_set(await _stored(api, namespace), namespace)
            if keys.demand == wish:
                new = keys.given or keys.active
                return (
                    f"rotation began in {namespace}: key {new.letter} goes to all programs and is used once all hold "
                    f"it, in a minute or two. {_watch(namespace)}"
                )
        except KubeError as error:
            why = f" (last: {error})"
        await asyncio.sleep(LOOK_EVERY_S)
    raise LocalError(
        f"asked for new keys in {namespace}, but no operator has begun within {within:g} s{why}",
        f"the wish stays, and the next operator that runs hears it; see whether one does. {_watch(namespace)}",
    )


async def _stored(api: KubeApi, namespace: str) -> Json:
    stored = await api.get(_secret(namespace))
    if stored is None:
        raise LocalError(
            f"namespace {namespace} has no Secret {_secret(namespace).name}",
            "the operator makes it for the first pool there; keys of spec.keys.secretRef are rotated by their owner",
        )
    return stored


def _expect_idle(stored: Json, namespace: str) -> None:
    """Raise LocalError when a rotation is under way or was asked for: another wish would only mean one more."""
    keys, wish = _key_set(stored, namespace), secrets.demand(stored)
    in_use = [each for each in keys.old if each.gone_at is None]
    if keys.given is not None:
        what = f"a rotation is under way in {namespace}, step 1 of 2: not all programs hold key {keys.given.letter} yet"
    elif in_use:
        what = f"a rotation is under way in {namespace}, step 2 of 2: some program still uses key {in_use[0].letter}"
    elif wish not in ("", keys.demand):
        what = f"a rotation was asked for in {namespace} before ({wish}), and no operator has begun yet"
    elif len(keys.generations) >= MAX_GENERATIONS:
        what = f"calls in {namespace} still need all {MAX_GENERATIONS} keys that programs may hold"
    else:
        return
    raise LocalError(what, f"not asked for another one. {_watch(namespace)}")


def _key_set(stored: Json, namespace: str) -> KeySet:
    try:
        return secrets.read_key_set(stored)
    except LocalError as error:
        raise LocalError(f"namespace {namespace}: {error.message}", error.fix) from None


def _secret(namespace: str) -> Reference:
    return Reference("v1", "Secret", namespace, names.KEY_SET_SECRET)


def _watch(namespace: str) -> str:
    return f"KeysReady says whom it waits for: kubectl describe rpool,tpool -n {namespace}"
