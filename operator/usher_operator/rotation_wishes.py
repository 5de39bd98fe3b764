"""Hears of wishes for a rotation of keys soon: an annotation on the key set Secret of a namespace.

Asked for and not watched: a watch takes the right to list Secrets, and a look at all programs would cost too much each
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from usher_operator import names
from usher_operator.actions import Reference
from usher_operator.keys import secrets
from usher_operator.kube import KubeApi, KubeError

log = structlog.get_logger()

ASK_EVERY_S = 2.0
NAMESPACE_S = 0.1
"""Where there are many namespaces, they are asked for so many seconds apart."""


class Keeper(Protocol):
    """What looks after the keys; see KeysKeeper."""

    def wishes(self) -> Mapping[str, str]: ...

    def expire(self, namespace: str) -> None: ...


class RotationWishes:
    """Asks for the wishes of all namespaces whose keys we look after.

    Args:
        api: the API server.
        keeper: of the keys; knows the wishes that it has seen.
        wake: has the pools of a namespace looked at.
    """

    def __init__(self, api: KubeApi, keeper: Keeper, wake: Callable[[str], None]) -> None:
        self._api = api
        self._keeper = keeper
        self._wake = wake

    async def follow(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            known = self._keeper.wishes()
            for namespace in known:
                await self.ask(namespace)
                await asyncio.sleep(NAMESPACE_S)
            await asyncio.sleep(max(0.0, ASK_EVERY_S - NAMESPACE_S * len(known)))

    async def ask(self, namespace: str) -> None:
        """Ask for the wish of one namespace, and have its pools looked at if it is a new one."""
        try:
            stored = await self._api.get(Reference("v1", "Secret", namespace, names.KEY_SET_SECRET))
        except KubeError as error:
            # The looks at its pools meet the same, and say so.
            log.debug("the wish for a rotation could not be read", namespace=namespace, error=str(error))
            return
        wish = "" if stored is None else secrets.demand(stored)
        if wish != self._keeper.wishes().get(namespace, wish):
            log.info("new keys are asked for", namespace=namespace)
            self._keeper.expire(namespace)
            self._wake(namespace)
